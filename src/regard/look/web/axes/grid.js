// Attention between the cells of an image: the image, and over it what one of its cells looks at, in one head or the mean
// of a layer; small maps show all heads. The offline page makes its elements from `markup`; the lens has its own, with
// the same `data-part` names.

import { announce, make, partsOf } from "../dom.js";
import { headTitle, layerTitle, percent } from "../format.js";
import { registerView } from "../offline.js";
import { drawUnderVeil } from "../overlay.js";

const MEAN = -1, CLASS = -1; // in place of a head, of a cell
const SIDE = 460, THUMB = 88; // pixels of the image, of a small map

export class GridView {
  /** `weightsOf(number)` gives the bytes q of a panel, with weight (q / 255)², head by head and row by row. */
  constructor(root, report, weightsOf) {
    Object.assign(this, { root, report, weightsOf, parts: partsOf(root), panels: report.panels.map((panel) => withGrids(panel, report.axes)) });
    Object.assign(this, { number: this.panels.length - 1, head: MEAN, cell: CLASS, held: false, rolled: false, asked: 0 });
    this.image = new Image();
    this.#buildAtlas();
    this.#listen();
    this.image.addEventListener("load", () => this.show());
    this.image.src = report.picture;
  }

  get #panel() { return this.panels[this.number]; }

  /** What a cell looks at: one weight for each cell of the keys. */
  async #weightsFrom(number, head, from) {
    const { heads, queries, keys } = this.panels[number];
    const bytes = await this.weightsOf(number);
    const rows = queries.rows * queries.columns + queries.extra, columns = keys.rows * keys.columns + keys.extra;
    const row = from === CLASS ? 0 : from + queries.extra;
    const weights = new Float32Array(columns);
    const chosen = head === MEAN ? [...Array(heads).keys()] : [head];
    for (const each of chosen) {
      const start = (each * rows + row) * columns;
      for (let at = 0; at < columns; at++) weights[at] += (bytes[start + at] / 255) ** 2 / chosen.length;
    }
    return { grid: [keys.rows, keys.columns], weights: weights.subarray(keys.extra) };
  }

  /** The same cell on the grid of another panel. */
  #moved(number) {
    const to = this.panels[number].queries, { rows, columns } = this.#panel.queries;
    if (this.cell === CLASS) return to.extra ? CLASS : Math.floor(to.rows / 2) * to.columns + Math.floor(to.columns / 2);
    const [row, column] = [Math.floor(this.cell / columns), this.cell % columns];
    return Math.floor(((row + 0.5) * to.rows) / rows) * to.columns + Math.floor(((column + 0.5) * to.columns) / columns);
  }

  /** The borders between windows, in layers whose attention stays within them. */
  #drawWindows({ context, width, height }) {
    const { windows, rows, columns } = this.#panel.queries;
    if (!windows) return;
    const [x, y] = [(column) => (column * width) / columns, (row) => (row * height) / rows];
    context.strokeStyle = "rgb(255 255 255 / 55%)";
    context.lineWidth = 1;
    context.beginPath();
    windows.forEach((window, at) => {
      const [row, column] = [Math.floor(at / columns), at % columns];
      if (column + 1 < columns && windows[at + 1] !== window) { context.moveTo(x(column + 1), y(row)); context.lineTo(x(column + 1), y(row + 1)); }
      if (row + 1 < rows && windows[at + columns] !== window) { context.moveTo(x(column), y(row + 1)); context.lineTo(x(column + 1), y(row + 1)); }
    });
    context.stroke();
  }

  #drawCell({ context, width, height }) {
    if (this.cell === CLASS) return;
    const { rows, columns } = this.#panel.queries;
    const box = [((this.cell % columns) * width) / columns, (Math.floor(this.cell / columns) * height) / rows, width / columns, height / rows];
    for (const [colour, thick] of [["#ffffff", 6], ["#ff7a1a", 3]]) {
      Object.assign(context, { strokeStyle: colour, lineWidth: thick, lineJoin: "round" });
      context.strokeRect(...box);
    }
  }

  async show() {
    const { name: layer, queries } = this.#panel, { rollout } = this.report, { parts } = this, asked = ++this.asked;
    if (this.cell === CLASS && !queries.extra) this.cell = this.#moved(this.number);
    const shown = this.rolled ? rollout : await this.#weightsFrom(this.number, this.head, this.cell);
    if (asked !== this.asked) return; // something else was chosen while the weights were on their way
    const drawn = drawUnderVeil(parts.canvas, this.image, SIDE, shown);
    if (!this.rolled) { this.#drawWindows(drawn); this.#drawCell(drawn); }
    parts.name.textContent = this.rolled ? "All layers, rolled out" : `${layerTitle(layer)}, ${headTitle(this.head)}`;
    parts.readout.textContent = this.#describe(shown);
    if (!this.rolled) this.#announce(shown);
    parts.class.hidden = !queries.extra;
    parts.rollout.hidden = !rollout;
    parts.class.setAttribute("aria-pressed", this.cell === CLASS && !this.rolled);
    parts.rollout.setAttribute("aria-pressed", this.rolled);
    await this.#showAtlas();
  }

  #announce({ weights }) {
    const { queries, keys } = this.#panel, query = this.cell === CLASS ? 0 : this.cell + queries.extra;
    announce(this.root, { panel: this.number, head: this.head, query, key: heaviest(weights) + keys.extra });
  }

  #describe({ grid: [, columns], weights }) {
    const named = (at, width) => `row ${1 + Math.floor(at / width)}, column ${1 + (at % width)}`;
    const best = heaviest(weights);
    const from = this.cell === CLASS ? "The class token" : `The place at ${named(this.cell, this.#panel.queries.columns)}`;
    return `${this.rolled ? "What reaches the answer comes most from" : `${from} looks most at`} ${named(best, columns)} (${percent(weights[best])})`;
  }

  async #showAtlas() {
    for (const canvas of this.parts.atlas.querySelectorAll("canvas")) {
      const [number, head] = [Number(canvas.dataset.panel), Number(canvas.dataset.head)];
      drawUnderVeil(canvas, this.image, THUMB, await this.#weightsFrom(number, head, this.#moved(number)));
      canvas.parentElement.setAttribute("aria-pressed", number === this.number && head === this.head && !this.rolled);
    }
  }

  #buildAtlas() {
    const rows = this.panels.map(({ name, heads }, number) => {
      const buttons = (heads > 1 ? [MEAN, ...Array(heads).keys()] : [0]).map((head) => this.#thumbnail(number, head));
      return make("div", { className: "map-row" }, make("h3", { textContent: layerTitle(name) }), ...buttons);
    });
    this.parts.atlas.replaceChildren(...rows);
  }

  #thumbnail(number, head) {
    const title = head === MEAN ? "mean" : headTitle(head);
    const button = make("button", { type: "button", title, "aria-label": `${layerTitle(this.panels[number].name)}, ${title}` },
      make("canvas", { data: { panel: number, head } }), head === MEAN ? "mean" : String(head + 1));
    button.addEventListener("click", () => {
      this.cell = this.#moved(number);
      Object.assign(this, { number, head, rolled: false });
      this.show();
    });
    return button;
  }

  #pointAt(row, column) {
    const { rows, columns } = this.#panel.queries;
    this.cell = Math.max(0, Math.min(rows - 1, row)) * columns + Math.max(0, Math.min(columns - 1, column));
    this.rolled = false;
    this.show();
  }

  /** Handlers are properties, so that a view of another image in the same elements replaces this one. */
  #listen() {
    const { canvas } = this.parts;
    const at = (event) => {
      const box = canvas.getBoundingClientRect(), { rows, columns } = this.#panel.queries;
      return [Math.floor(((event.clientY - box.top) / box.height) * rows), Math.floor(((event.clientX - box.left) / box.width) * columns)];
    };
    canvas.onpointermove = (event) => { if (!this.held) this.#pointAt(...at(event)); };
    canvas.onclick = (event) => { this.held = !this.held; this.#pointAt(...at(event)); };
    canvas.onkeydown = (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      const { columns } = this.#panel.queries, from = Math.max(this.cell, 0);
      if (step) this.#pointAt(Math.floor(from / columns) + step[0], (from % columns) + step[1]);
      else if (event.key === "Enter") this.held = !this.held;
      else if (event.key === "Escape") this.held = false;
      else return;
      event.preventDefault();
    };
    this.parts.class.onclick = () => { Object.assign(this, { cell: CLASS, rolled: false, held: true }); this.show(); };
    this.parts.rollout.onclick = () => { Object.assign(this, { rolled: !this.rolled, held: true }); this.show(); };
  }
}

const heaviest = (weights) => weights.reduce((most, weight, at) => (weight > weights[most] ? at : most), 0);

/** A panel with its axes in place of their numbers. */
function withGrids(panel, axes) {
  const [queries, keys] = panel.axes.map((number) => axes[number]);
  return { ...panel, queries, keys };
}

// The offline page

const markup = `
  <section class="stage" aria-labelledby="view-name">
    <div class="bar">
      <h2 id="view-name" data-part="name"></h2>
      <button type="button" class="pill" data-part="class">Class token</button>
      <button type="button" class="pill" data-part="rollout">All layers together</button>
    </div>
    <p class="readout" id="readout" data-part="readout" role="status"></p>
    <canvas class="picture" data-part="canvas" tabindex="0" role="img" aria-label="The image, bright where is looked" aria-describedby="readout"></canvas>
    <p class="hint">Point at a place of the image, or move with the arrow keys: what it looks at stays light. Click or press Enter to hold it, Esc to let go.</p>
  </section>
  <section class="atlas" aria-labelledby="atlas-name">
    <div class="bar"><h2 id="atlas-name">Every layer and head</h2></div>
    <div data-part="atlas"></div>
  </section>`;

registerView("grid", { markup, layout: "gallery", open: (root, report, weightsOf) => new GridView(root, report, weightsOf) });
