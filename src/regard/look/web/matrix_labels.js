// What is drawn on and around a matrix: lines between cells, words, and weights as numbers. `view` is the Matrix,
// `seen` says which rows and columns are visible.

import { cssColour, font, inkOn } from "./colours.js";

const LABEL_ROOM = 130;

export function drawGrid(context, { cell, left, top, x, y, viewWidth, viewHeight }, seen) {
  context.fillStyle = cssColour("--card");
  for (let row = 1; row < seen.rows; row++) context.fillRect(left, top + (seen.row + row) * cell - y - 0.5, viewWidth, 1);
  for (let column = 1; column < seen.columns; column++) context.fillRect(left + (seen.column + column) * cell - x - 0.5, top, 1, viewHeight);
}

/** Words down the side and on top; where cells are small only every so many. */
export function drawLabels(context, view, seen, readable) {
  const { cell, left, top, x, y, map } = view;
  const size = Math.min(13, Math.max(view.smallestFont, cell * 0.66));
  const stride = Math.max(1, Math.ceil(readable / cell));
  const [ink, accent] = [cssColour(stride > 1 ? "--muted" : "--ink"), cssColour("--accent")];
  const style = (isOn) => { context.fillStyle = isOn ? accent : ink; context.font = font(size, isOn ? 650 : 400); };
  const place = view.pointing.place;
  const near = (index, pointed) => stride > 1 && pointed !== null && index !== pointed && Math.abs(index - pointed) < stride;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const row of shown(seen.row, seen.rows, stride, place.row)) {
    const middle = (row + 0.5) * cell - y;
    if (middle < 0 || middle > view.viewHeight || near(row, place.row)) continue;
    style(row === place.row);
    context.fillText(cut(context, map.queries[row], left - 14), left - 8, top + middle);
  }
  context.textAlign = "left";
  for (const column of shown(seen.column, seen.columns, stride, place.column)) {
    const middle = (column + 0.5) * cell - x;
    if (middle < 0 || middle > view.viewWidth || near(column, place.column)) continue;
    style(column === place.column);
    context.save();
    context.translate(left + middle, top - 7);
    context.rotate(-Math.PI / 4);
    context.fillText(cut(context, map.keys[column], LABEL_ROOM), 0, 0);
    context.restore();
  }
}

/** Every so many of a range, and always the one pointed at. */
function shown(first, length, stride, pointed) {
  const start = Math.ceil(first / stride) * stride;
  const indices = [];
  for (let index = start; index < first + length; index += stride) indices.push(index);
  if (pointed !== null && pointed >= first && pointed < first + length && pointed % stride) indices.push(pointed);
  return indices;
}

function cut(context, word, room) {
  if (context.measureText(word).width <= room) return word;
  const letters = [...word];
  while (letters.length && context.measureText(`${letters.join("")}…`).width > room) letters.pop();
  return `${letters.join("")}…`;
}

export function drawNumbers(context, { cell, left, top, x, y, map, relative }, seen) {
  context.font = font(Math.min(12.5, cell * 0.3));
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let row = seen.row; row < seen.row + seen.rows; row++) {
    const gain = relative ? 1 / (map.peaks[row] || 1) : 1;
    for (let column = seen.column; column < seen.column + seen.columns; column++) {
      const weight = map.at(row, column);
      if (weight < 0.05) continue; // lighter cells stay empty, so that the numbers that matter stand out
      context.fillStyle = inkOn(Math.min(1, weight * gain));
      context.fillText(String(Math.round(weight * 100)), left + (column + 0.5) * cell - x, top + (row + 0.5) * cell - y);
    }
  }
}
