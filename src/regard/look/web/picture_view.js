// A picture, and over it what one of its places looks at, in one head or the mean of a layer; small maps show all heads.
// Shared by the offline page and the lens, so everything it needs is handed to it: where its elements are, what is known
// of the picture, `weightsOf(layer)` (bytes q with weight (q / 255)², head by head, row by row), and how to draw.

const MEAN = -1, CLASS = -1; // in place of a head, of a place
const SIDE = 460, THUMB = 88, VEIL = 0.86, CONTRAST = 0.8;

export class PictureView {
  constructor(root, sight, { weightsOf, prepare, percent }) {
    Object.assign(this, { root, sight, weightsOf, prepare, percent });
    Object.assign(this, { layer: sight.layers.length - 1, head: MEAN, place: CLASS, held: false, rolled: false });
    this.image = new Image();
    this.canvas = this.#find("canvas");
    this.#buildAtlas();
    this.#listen();
    this.image.addEventListener("load", () => this.show());
    this.image.src = sight.picture;
  }

  #find(part) { return this.root.querySelector(`[data-part="${part}"]`); }
  get #described() { return this.sight.layers[this.layer]; }

  /** What a place looks at: one weight for each place of the keys. */
  async #lookOf(number, head, from) {
    const { heads, queries, keys, extra } = this.sight.layers[number];
    const bytes = await this.weightsOf(number);
    const rows = queries[0] * queries[1] + extra, columns = keys[0] * keys[1] + extra;
    const row = from === CLASS ? 0 : from + extra;
    const weights = new Float32Array(columns);
    const chosen = head === MEAN ? [...Array(heads).keys()] : [head];
    for (const each of chosen) {
      const start = (each * rows + row) * columns;
      for (let at = 0; at < columns; at++) weights[at] += (bytes[start + at] / 255) ** 2 / chosen.length;
    }
    return { grid: keys, weights: weights.subarray(extra) };
  }

  /** The same place on the map of another layer. */
  #moved(number) {
    const { queries: to, extra } = this.sight.layers[number], [rows, columns] = this.#described.queries;
    if (this.place === CLASS) return extra ? CLASS : Math.floor(to[0] / 2) * to[1] + Math.floor(to[1] / 2);
    const [row, column] = [Math.floor(this.place / columns), this.place % columns];
    return Math.floor(((row + 0.5) * to[0]) / rows) * to[1] + Math.floor(((column + 0.5) * to[1]) / columns);
  }

  #draw(canvas, side, { grid: [rows, columns], weights }) {
    const [width, height] = [side, Math.round((side * this.image.height) / this.image.width)];
    const context = this.prepare(canvas, width, height);
    Object.assign(canvas.style, { width: `${width}px`, height: "auto" }); // keeps its shape where there is less room
    context.imageSmoothingEnabled = width < this.image.width; // small pictures are enlarged as the squares they are
    context.drawImage(this.image, 0, 0, width, height);
    const peak = weights.reduce((most, each) => Math.max(most, each), 0) || 1;
    weights.forEach((weight, at) => {
      const [row, column] = [Math.floor(at / columns), at % columns];
      const [left, right] = [column, column + 1].map((each) => Math.round((each * width) / columns));
      const [top, bottom] = [row, row + 1].map((each) => Math.round((each * height) / rows));
      context.fillStyle = `rgb(8 12 24 / ${VEIL * (1 - (weight / peak) ** CONTRAST)})`;
      context.fillRect(left, top, right - left, bottom - top);
    });
    return { context, width, height };
  }

  /** The borders of windows, where attention stays within them. */
  #drawWindows({ context, width, height }) {
    const { windows, queries: [rows, columns] } = this.#described;
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

  #drawPlace({ context, width, height }) {
    if (this.place === CLASS) return;
    const [rows, columns] = this.#described.queries;
    const box = [((this.place % columns) * width) / columns, (Math.floor(this.place / columns) * height) / rows, width / columns, height / rows];
    for (const [colour, thick] of [["#ffffff", 6], ["#ff7a1a", 3]]) {
      Object.assign(context, { strokeStyle: colour, lineWidth: thick, lineJoin: "round" });
      context.strokeRect(...box);
    }
  }

  async show() {
    const { extra, name, queries } = this.#described, { rollout } = this.sight;
    if (this.place === CLASS && !extra) this.place = this.#moved(this.layer);
    const look = this.rolled ? rollout : await this.#lookOf(this.layer, this.head, this.place);
    const drawn = this.#draw(this.canvas, SIDE, look);
    if (!this.rolled) { this.#drawWindows(drawn); this.#drawPlace(drawn); }
    const cell = (at, columns) => `row ${1 + Math.floor(at / columns)}, column ${1 + (at % columns)}`;
    const best = look.weights.reduce((most, weight, at) => (weight > look.weights[most] ? at : most), 0);
    const from = this.place === CLASS ? "The class token" : `The place at ${cell(this.place, queries[1])}`;
    this.#find("name").textContent = this.rolled ? "All layers, rolled out" : `${name} · ${this.head === MEAN ? "mean of its heads" : `head ${this.head}`}`;
    this.#find("readout").textContent = `${this.rolled ? "What reaches the answer comes most from" : `${from} looks most at`} ${cell(best, look.grid[1])} (${this.percent(look.weights[best])})`;
    this.#find("class").hidden = !extra;
    this.#find("rollout").hidden = !rollout;
    this.#find("class").setAttribute("aria-pressed", this.place === CLASS && !this.rolled);
    this.#find("rollout").setAttribute("aria-pressed", this.rolled);
    await this.#showAtlas();
  }

  async #showAtlas() {
    for (const canvas of this.#find("atlas").querySelectorAll("canvas")) {
      const [number, head] = [Number(canvas.dataset.layer), Number(canvas.dataset.head)];
      this.#draw(canvas, THUMB, await this.#lookOf(number, head, this.#moved(number)));
      canvas.parentElement.setAttribute("aria-pressed", number === this.layer && head === this.head && !this.rolled);
    }
  }

  #buildAtlas() {
    const rows = this.sight.layers.map(({ name, heads }, number) => {
      const row = Object.assign(document.createElement("div"), { className: "map-row" });
      row.append(Object.assign(document.createElement("h3"), { textContent: name }));
      for (const head of heads > 1 ? [MEAN, ...Array(heads).keys()] : [0]) {
        const button = Object.assign(document.createElement("button"), { type: "button", title: head === MEAN ? "mean" : `head ${head}` });
        button.setAttribute("aria-label", `${name}, ${button.title}`);
        const canvas = document.createElement("canvas");
        Object.assign(canvas.dataset, { layer: number, head });
        button.append(canvas, head === MEAN ? "mean" : String(head));
        button.addEventListener("click", () => {
          this.place = this.#moved(number);
          Object.assign(this, { layer: number, head, rolled: false });
          this.show();
        });
        row.append(button);
      }
      return row;
    });
    this.#find("atlas").replaceChildren(...rows);
  }

  #pointAt(row, column) {
    const [rows, columns] = this.#described.queries;
    this.place = Math.max(0, Math.min(rows - 1, row)) * columns + Math.max(0, Math.min(columns - 1, column));
    this.rolled = false;
    this.show();
  }

  #listen() {
    const at = (event) => {
      const box = this.canvas.getBoundingClientRect(), [rows, columns] = this.#described.queries;
      return [Math.floor(((event.clientY - box.top) / box.height) * rows), Math.floor(((event.clientX - box.left) / box.width) * columns)];
    };
    this.canvas.onpointermove = (event) => { if (!this.held) this.#pointAt(...at(event)); };
    this.canvas.onclick = (event) => { this.held = !this.held; this.#pointAt(...at(event)); };
    this.canvas.onkeydown = (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      const columns = this.#described.queries[1], from = Math.max(this.place, 0);
      if (step) this.#pointAt(Math.floor(from / columns) + step[0], (from % columns) + step[1]);
      else if (event.key === "Enter") this.held = !this.held;
      else if (event.key === "Escape") this.held = false;
      else return;
      event.preventDefault();
    };
    this.#find("class").onclick = () => { Object.assign(this, { place: CLASS, rolled: false, held: true }); this.show(); };
    this.#find("rollout").onclick = () => { Object.assign(this, { rolled: !this.rolled, held: true }); this.show(); };
  }
}
