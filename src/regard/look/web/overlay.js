// The weights of the cells of an image as a veil over it: light where it is looked at.

import { prepare } from "./colours.js";

const VEIL = 0.86, CONTRAST = 0.8; // opacity over a cell of weight 0, and the exponent with which it falls

function drawImage(canvas, image, side) {
  const [width, height] = [side, Math.round((side * image.height) / image.width)];
  const context = prepare(canvas, width, height);
  Object.assign(canvas.style, { width: `${width}px`, height: "auto" }); // keeps its shape where there is less room
  context.imageSmoothingEnabled = width < image.width; // the pixels of small images are enlarged as squares
  context.drawImage(image, 0, 0, width, height);
  return { context, width, height };
}

const veil = (share) => `rgb(8 12 24 / ${VEIL * (1 - share ** CONTRAST)})`;

/** Draw an image, `side` pixels wide, under a veil with its boxes of positive weight above it, the heaviest on top. */
export function drawBoxes(canvas, image, side, boxes, weights) {
  const { context, width, height } = drawImage(canvas, image, side);
  const peak = Math.max(...weights, 0) || 1;
  const lit = boxes.map((box, at) => ({ box, share: weights[at] / peak })).filter(({ share }) => share > 0);
  context.fillStyle = veil(0);
  context.fillRect(0, 0, width, height);
  for (const { box: [left, top, right, bottom], share } of lit.sort((one, other) => one.share - other.share)) {
    const place = [left * width, top * height, (right - left) * width, (bottom - top) * height];
    const part = [left * image.width, top * image.height, (right - left) * image.width, (bottom - top) * image.height];
    context.drawImage(image, ...part, ...place);
    context.fillStyle = veil(share);
    context.fillRect(...place);
    for (const [strokeStyle, lineWidth] of [["rgb(8 12 24)", 3], ["white", 1]]) { // seen on light and dark images
      Object.assign(context, { strokeStyle, lineWidth });
      context.strokeRect(place[0] + 2, place[1] + 2, place[2] - 4, place[3] - 4);
    }
  }
}

/** Draw an image, `side` pixels wide, under the veil of some weights; without weights, the image alone. */
export function drawUnderVeil(canvas, image, side, { grid: [rows, columns], weights }) {
  const { context, width, height } = drawImage(canvas, image, side);
  const peak = weights.reduce((most, each) => Math.max(most, each), 0) || 1;
  weights.forEach((weight, at) => {
    const [row, column] = [Math.floor(at / columns), at % columns];
    const [left, right] = [column, column + 1].map((each) => Math.round((each * width) / columns));
    const [top, bottom] = [row, row + 1].map((each) => Math.round((each * height) / rows));
    context.fillStyle = veil(weight / peak);
    context.fillRect(left, top, right - left, bottom - top);
  });
  return { context, width, height };
}
