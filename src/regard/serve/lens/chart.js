// A line over training steps, with labelled axes, as SVG.

import { makeSvg } from "./dom.js";
import { count } from "./format.js";

const SIZE = { width: 460, height: 220, left: 46, right: 14, top: 14, bottom: 38 };

/** Draw `points` ([[step, value], …]) into an element; `most` is a value the scale should reach. */
export function drawChart(place, { points, title, unit, lastStep, most = 0, digits = 2 }) {
  const values = points.map(([, value]) => value);
  const top = points.length || most ? niceCeiling(Math.max(most, ...values, Number.MIN_VALUE)) : 0;
  const right = Math.max(lastStep || 0, points.at(-1)?.[0] ?? 0, 1);
  const x = (step) => SIZE.left + (step / right) * (SIZE.width - SIZE.left - SIZE.right);
  const y = (value) => SIZE.height - SIZE.bottom - (value / top) * (SIZE.height - SIZE.top - SIZE.bottom);
  const words = points.length
    ? `${title}: ${values[0].toFixed(digits)} at step ${count(points[0][0])}, ${values.at(-1).toFixed(digits)} at step ${count(points.at(-1)[0])}`
    : `${title}: nothing measured yet`;
  const drawing = makeSvg("svg", { viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: "img", "aria-label": words, class: "chart" });
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const height = SIZE.height - SIZE.bottom - share * (SIZE.height - SIZE.top - SIZE.bottom);
    drawing.append(makeSvg("line", { class: "grid", x1: SIZE.left, x2: SIZE.width - SIZE.right, y1: height, y2: height }));
    if (top) drawing.append(text(SIZE.left - 8, height + 4, short(top * share), "end"));
  }
  for (const [share, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
    drawing.append(text(x(right * share), SIZE.height - SIZE.bottom + 17, count(Math.round(right * share)), anchor));
  }
  drawing.append(text((SIZE.left + SIZE.width - SIZE.right) / 2, SIZE.height - 4, "step", "middle"), text(SIZE.left, 10, unit, "start"));
  if (points.length) {
    const path = points.map(([step, value], index) => `${index ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    const [lastX, lastY] = [x(points.at(-1)[0]), y(points.at(-1)[1])];
    drawing.append(makeSvg("path", { class: "line", d: path }), makeSvg("circle", { class: "dot", cx: lastX, cy: lastY, r: 4 }),
      text(Math.min(lastX, SIZE.width - 40), lastY < 40 ? lastY + 20 : lastY - 10, values.at(-1).toFixed(digits), "middle", "value"));
  } else drawing.append(text((SIZE.left + SIZE.width) / 2, SIZE.height / 2, "nothing measured yet", "middle"));
  place.replaceChildren(drawing);
}

function text(x, y, words, anchor, className = "") {
  const made = makeSvg("text", { x, y, "text-anchor": anchor, class: className });
  made.textContent = words;
  return made;
}

const short = (value) => (value >= 1000 ? `${Math.round(value / 1000)}k` : String(Number(value.toPrecision(3))));

/** The next number that quarters well. */
function niceCeiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 4, 6, 8, 10].find((step) => step * power >= value * 0.9999);
}
