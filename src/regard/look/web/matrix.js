// A map of weights on a canvas: keys on top, queries down the side. The weights become a bitmap of one pixel a cell once;
// zooming and moving only draw that bitmap at another scale, so a thousand words stay smooth. A matrix that cannot be
// zoomed keeps its cells large enough to read, and its frame scrolls.

import { bitmap, cssColour, font, onTheme, prepare } from "./colours.js";
import { make, onWidth, within } from "./dom.js";
import { listenToPointing, listenToZooming } from "./matrix_input.js";
import { drawGrid, drawLabels, drawNumbers } from "./matrix_labels.js";
import { NOTHING } from "./pointing.js";

const LABEL_ROOM = 130; // pixels for the longest label
const READABLE = 12; // pixels a cell needs for its label; of smaller ones only every so many get one
const LARGEST = 68;
const NUMBERS = 34; // pixels a cell needs for its weight as a number
const UNLABELLED = 160; // words from which a matrix that cannot be zoomed has no labels
const SMALLEST = 13; // pixels of a cell with labels in such a matrix

export class Matrix {
  map = null;
  relative = false;

  /**
   * `frame` is an empty element. `zoom` says when there are buttons to zoom: always, only when the whole is too small to
   * read, or never, which also switches off every other way to zoom. `describedBy` is the id of a text about the matrix.
   */
  constructor(frame, pointing, { zoom = "when small", label = "Attention", describedBy = "" } = {}) {
    [this.frame, this.pointing, this.label] = [frame, pointing, label];
    [this.zoomable, this.alwaysZoom, this.dragged] = [zoom !== "never", zoom === "always", false];
    this.smallestFont = this.zoomable ? 10.5 : 0; // pixels; cells that can be zoomed may be smaller than their labels
    this.canvas = make("canvas", { tabIndex: 0, role: "img", ...(describedBy && { "aria-describedby": describedBy }) });
    this.buttons = this.#zoomButtons();
    frame.replaceChildren(this.canvas, ...(this.zoomable ? [this.buttons] : []));
    listenToPointing(this);
    if (this.zoomable) listenToZooming(this);
    pointing.watch(() => this.draw());
    onWidth(frame, () => this.lay());
    onTheme(() => this.show(this.map, this.relative));
  }

  /** Show a map; one of the same shape keeps its zoom, so that rows can arrive in pieces. */
  show(map, relative = false) {
    if (!map) return;
    const isNew = this.map !== map;
    [this.map, this.relative] = [map, relative];
    this.image = bitmap(map, relative ? (row) => map.peaks[row] : () => 1);
    this.canvas.setAttribute("aria-label", `${this.label}: ${map.rows} rows, ${map.columns} columns. Move with the arrow keys.`);
    if (isNew || !this.cell) this.lay();
    else this.draw();
  }

  lay() {
    const { map, frame } = this;
    if (!map || !frame.clientWidth) return;
    const context = this.canvas.getContext("2d");
    context.font = font(13);
    const widest = (words) => Math.min(LABEL_ROOM, words.reduce((most, word) => Math.max(most, context.measureText(word).width), 0));
    if (this.zoomable) this.#layToFit(widest);
    else this.#layToScroll(widest);
    this.whole();
  }

  /** All of the map in the frame, in the middle where there is room to spare. */
  #layToFit(widest) {
    const { map, frame } = this;
    const slope = widest(map.keys) * 0.72 + 16;
    this.labelled = true;
    this.width = frame.clientWidth;
    this.left = Math.min(widest(map.queries), this.width * 0.3) + 14;
    this.top = slope;
    const room = this.width - this.left - Math.min(slope * 0.8, this.width * 0.2);
    this.tallest = Math.max(320, Math.min(680, innerHeight * 0.72)) - this.top;
    const fit = room / Math.max(map.columns, 1);
    this.fit = Math.min(fit, LARGEST, map.rows <= 20 ? Math.max(24, 480 / map.rows) : this.tallest / map.rows);
    this.buttons.hidden = !this.alwaysZoom && this.fit > READABLE;
    this.viewWidth = Math.min(room, map.columns * this.fit);
    this.viewHeight = Math.min(this.tallest, map.rows * this.fit);
    this.height = this.top + this.viewHeight + 3;
    this.left += Math.max(0, (room - this.viewWidth) / 2);
  }

  /** Cells that can be read, in a canvas that may be larger than the frame; very long texts are fitted, without labels. */
  #layToScroll(widest) {
    const { map, frame } = this;
    const room = Math.max(frame.clientWidth, 200) - 2;
    this.labelled = Math.max(map.rows, map.columns) <= UNLABELLED;
    const slope = this.labelled ? widest(map.keys) * 0.72 + 16 : 0;
    [this.left, this.top] = this.labelled ? [Math.min(widest(map.queries), room * 0.3) + 14, slope] : [0, 0];
    const fit = (room - this.left - slope * 0.8) / Math.max(map.columns, 1);
    this.fit = this.labelled ? Math.max(SMALLEST, Math.min(LARGEST, fit, Math.max(24, 620 / map.rows))) : Math.max(0.5, fit);
    [this.viewWidth, this.viewHeight] = [map.columns * this.fit, map.rows * this.fit];
    this.width = this.left + this.viewWidth + slope * 0.8 + 2;
    this.height = this.top + this.viewHeight + 4;
  }

  whole() {
    [this.cell, this.x, this.y] = [this.fit, 0, 0];
    this.draw();
  }

  /** Zoom by a factor around a point of the view, in pixels from its corner. */
  zoom(factor, px = this.viewWidth / 2, py = this.viewHeight / 2) {
    const cell = within(this.cell * factor, this.fit, Math.max(LARGEST, this.fit));
    const scale = cell / this.cell;
    [this.x, this.y, this.cell] = [(this.x + px) * scale - px, (this.y + py) * scale - py, cell];
    this.pan(0, 0);
  }

  /** Move the view; true if there was anywhere to move to. */
  pan(dx, dy) {
    const before = [this.x, this.y];
    this.x = within(this.x + dx, 0, Math.max(0, this.map.columns * this.cell - this.viewWidth));
    this.y = within(this.y + dy, 0, Math.max(0, this.map.rows * this.cell - this.viewHeight));
    this.draw();
    return this.x !== before[0] || this.y !== before[1];
  }

  get overflows() {
    return this.map.columns * this.cell > this.viewWidth + 1 || this.map.rows * this.cell > this.viewHeight + 1;
  }

  /** The cell, row or column under a point of the page. */
  under({ clientX, clientY }) {
    const box = this.canvas.getBoundingClientRect();
    const [px, py] = [clientX - box.left - this.left, clientY - box.top - this.top];
    const column = Math.floor((px + this.x) / this.cell), row = Math.floor((py + this.y) / this.cell);
    const inColumns = px >= 0 && px < this.viewWidth && column < this.map.columns;
    const inRows = py >= 0 && py < this.viewHeight && row < this.map.rows;
    if (inColumns && inRows) return { row, column };
    if (inRows && px < 0) return { row, column: null };
    if (inColumns && py < 0) return { row: null, column };
    return NOTHING;
  }

  /** Move the view so that a cell is in it. */
  reveal({ row, column }) {
    const shift = (index, offset, room) => Math.min(0, index * this.cell - offset) + Math.max(0, (index + 1) * this.cell - offset - room);
    this.pan(column === null ? 0 : shift(column, this.x, this.viewWidth), row === null ? 0 : shift(row, this.y, this.viewHeight));
  }

  draw() {
    if (!this.map || !this.cell) return;
    const { map, cell, left, top, x, y, viewWidth, viewHeight, canvas } = this;
    canvas.style.touchAction = !this.zoomable ? "auto" : this.overflows ? "none" : "pan-y";
    const context = prepare(canvas, this.width, this.height);
    const seen = { column: Math.floor(x / cell), row: Math.floor(y / cell) };
    seen.columns = Math.min(map.columns, Math.ceil((x + viewWidth) / cell)) - seen.column;
    seen.rows = Math.min(map.rows, Math.ceil((y + viewHeight) / cell)) - seen.row;
    context.save();
    if (this.zoomable) this.#clip(context);
    context.imageSmoothingEnabled = cell < 1;
    context.drawImage(this.image, seen.column, seen.row, seen.columns, seen.rows,
      left + seen.column * cell - x, top + seen.row * cell - y, seen.columns * cell, seen.rows * cell);
    if (cell >= 10) drawGrid(context, this, seen);
    if (cell >= NUMBERS) drawNumbers(context, this, seen);
    this.#outline(context);
    context.restore();
    if (this.labelled) drawLabels(context, this, seen, READABLE);
  }

  /** What is zoomed must not be drawn over the labels. */
  #clip(context) {
    context.beginPath();
    context.roundRect(this.left, this.top, this.viewWidth, this.viewHeight, 6);
    context.clip();
  }

  /** Frames around the row and the column pointed at. */
  #outline(context) {
    const { map, cell, left, top, x, y } = this, inset = this.zoomable ? 1 : 0; // inside the clip
    const { row, column } = this.pointing.place;
    context.strokeStyle = cssColour("--accent");
    context.lineWidth = 2;
    if (row !== null) context.strokeRect(left - x + inset, top + row * cell - y, map.columns * cell - 2 * inset, cell);
    if (column !== null) context.strokeRect(left + column * cell - x, top - y + inset, cell, map.rows * cell - 2 * inset);
  }

  #zoomButtons() {
    const button = (text, label, action) => {
      const made = make("button", { type: "button", textContent: text, title: label, "aria-label": label });
      made.addEventListener("click", action);
      return made;
    };
    return make("div", { className: "zoom", role: "group", "aria-label": "Zoom" },
      button("+", "Zoom in", () => this.zoom(1.6)),
      button("−", "Zoom out", () => this.zoom(1 / 1.6)),
      button("⤢", "Show all of it", () => this.whole()));
  }
}
