// Attention as lines between words, in two shapes: `Threads` between two columns that may be long and scroll together,
// and `Ribbons` between a sentence and its translation below.

import { cssColour, lineColour, onTheme, prepare } from "./colours.js";
import { onWidth } from "./dom.js";
import { WordPair } from "./words.js";

const PITCH = 30, MIDDLE = 13.5; // pixels from word to word in a column, and to the middle of one
const FAINT = 0.03; // weights below this get no line

/** How a line looks: thicker and more opaque the heavier it is; in the accent colour when it is pointed at. */
function styleLine(context, weight, isOn, colours) {
  context.globalAlpha = isOn === false ? 0.1 : 0.12 + 0.88 * weight;
  context.strokeStyle = isOn ? colours.accent : colours.plain;
  context.lineWidth = 0.6 + 4.4 * weight;
}

/** Whether a cell is pointed at; null when nothing is. */
function isPointed({ row, column }, atRow, atColumn) {
  if (row === null && column === null) return null;
  return (row ?? atRow) === atRow && (column ?? atColumn) === atColumn;
}

export class Threads {
  constructor(frame, pointing) {
    [this.frame, this.pointing, this.map] = [frame, pointing, null];
    [this.canvas, this.scroller] = [frame.querySelector("canvas"), frame.querySelector(".scroller")];
    [this.keys, this.queries] = [frame.querySelector(".keys-side"), frame.querySelector(".queries-side")];
    this.words = new WordPair(this.keys, this.queries, pointing);
    this.scroller.addEventListener("scroll", () => this.draw(), { passive: true });
    pointing.watch(() => this.draw());
    onWidth(frame, () => this.#lay());
    onTheme(() => { this.words.update(); this.draw(); });
  }

  show(map, relative = false) {
    const isNew = map !== this.map;
    this.map = map;
    this.words.show(map, relative);
    if (isNew) {
      this.scroller.scrollTop = 0;
      this.#lay();
    } else this.draw();
  }

  /** Scroll so that a query is in sight. */
  reveal(row) {
    const { scrollTop, clientHeight } = this.scroller, top = row * PITCH;
    if (top < scrollTop || top + PITCH > scrollTop + clientHeight) this.scroller.scrollTop = top - clientHeight / 2;
  }

  /** Measure once; pointing then needs no layout. */
  #lay() {
    const [width, height] = [this.frame.clientWidth, this.frame.clientHeight];
    const left = this.keys.offsetLeft + this.keys.offsetWidth + 3, right = this.queries.offsetLeft - 3;
    this.size = { width, height, left, right };
    this.draw();
  }

  /** Only what is scrolled into sight is drawn, and of the rest what is pointed at. */
  draw() {
    const { map, size } = this;
    if (!map || !size?.width) return;
    const context = prepare(this.canvas, size.width, size.height);
    const place = this.pointing.place, top = this.scroller.scrollTop;
    const first = Math.max(0, Math.floor(top / PITCH) - 1), last = Math.min(map.rows, Math.ceil((top + size.height) / PITCH));
    const colours = { plain: lineColour(), accent: cssColour("--accent") };
    const line = (row, column) => {
      const weight = Math.min(1, map.at(row, column) * this.words.gain(row));
      const isOn = isPointed(place, row, column);
      if (weight < (isOn === false ? 0.12 : FAINT)) return;
      styleLine(context, weight, isOn, colours);
      this.#stroke(context, column * PITCH + MIDDLE - top, row * PITCH + MIDDLE - top);
    };
    for (let row = first; row < last; row++) for (let column = 0; column < map.columns; column++) line(row, column);
    if (place.row !== null && (place.row < first || place.row >= last)) for (let column = 0; column < map.columns; column++) line(place.row, column);
    else if (place.column !== null) for (let row = 0; row < map.rows; row++) if (row < first || row >= last) line(row, place.column);
  }

  #stroke(context, from, to) {
    const { left, right } = this.size;
    const bend = (right - left) * 0.45;
    context.beginPath();
    context.moveTo(left, from);
    context.bezierCurveTo(left + bend, from, right - bend, to, right, to);
    context.stroke();
  }
}

export class Ribbons {
  constructor(frame, pointing) {
    [this.frame, this.pointing, this.map, this.canvas] = [frame, pointing, null, frame.querySelector("canvas")];
    [this.sources, this.targets] = frame.querySelectorAll(".words");
    pointing.watch(() => this.draw());
    onWidth(frame, () => this.draw());
    onTheme(() => this.draw());
  }

  show(map) {
    this.map = map;
    this.draw();
  }

  /** Between wrapped lines only the lines that are pointed at are drawn: all together would hide the words. */
  draw() {
    const { frame, map, canvas, sources, targets } = this;
    if (!map || !frame.clientWidth) return;
    const context = prepare(canvas, frame.clientWidth, frame.clientHeight);
    const wrapped = [sources, targets].some((list) => list.lastElementChild?.offsetTop > list.firstElementChild?.offsetTop);
    frame.classList.toggle("wrapped", wrapped);
    const place = this.pointing.place;
    const colours = { plain: lineColour(), accent: cssColour("--accent") };
    for (let row = 0; row < map.rows; row++) {
      for (let column = 0; column < map.columns; column++) {
        const isOn = isPointed(place, row, column);
        if (map.at(row, column) < FAINT || (wrapped && !isOn)) continue;
        styleLine(context, map.at(row, column), isOn, colours);
        this.#line(context, sources.children[column], targets.children[row]);
      }
    }
  }

  #line(context, source, target) {
    if (!source || !target) return;
    const from = source.offsetTop + source.offsetHeight + 2, to = target.offsetTop - 2, bend = (to - from) * 0.5;
    const [x1, x2] = [source.offsetLeft + source.offsetWidth / 2, target.offsetLeft + target.offsetWidth / 2];
    context.beginPath();
    context.moveTo(x1, from);
    context.bezierCurveTo(x1, from + bend, x2, to - bend, x2, to);
    context.stroke();
  }
}
