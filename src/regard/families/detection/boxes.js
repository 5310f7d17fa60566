// Attention that boxes of an image take part in, with words or with each other: the image with its boxes, the words beside
// it, and what one box or word looks at; small matrices show all heads. A report without panels shows its boxes alone:
// `details.boxes` is then a list of { name, boxes: [{ box, name, score }] }, one set for each stage of a detector.

import { registerLabels } from "../../look/axis_labels.js";
import { prepare } from "../../look/colours.js";
import { announce, make, partsOf } from "../../look/dom.js";
import { headTitle, layerTitle, percent } from "../../look/format.js";
import { registerView } from "../../look/offline.js";

const MEAN = -1; // in place of a head
const SIDE = 520, CELL = 5; // pixels of the image, of a cell of a small matrix
const HUE = 137.5; // degrees from one name's colour to the next: they stay distinct

/** A colour for each name of a list, the same for equal names. */
export function colourOf(names) {
  const kinds = [...new Set(names)];
  return (name) => `hsl(${(kinds.indexOf(name) * HUE) % 360} 85% 58%)`;
}

/** Draw boxes over an image; `strength(number)` from 0 to 1 fills a box. */
export function drawBoxes(canvas, image, boxes, names, { side = SIDE, strength = null, chosen = -1 } = {}) {
  const [width, height] = [side, Math.round((side * image.height) / image.width)];
  const context = prepare(canvas, width, height), colour = colourOf(names);
  Object.assign(canvas.style, { width: `${width}px`, height: "auto" });
  context.imageSmoothingEnabled = width < image.width;
  context.drawImage(image, 0, 0, width, height);
  context.font = "600 12px ui-sans-serif, system-ui, sans-serif";
  boxes.forEach(([x1, y1, x2, y2], number) => {
    const place = [x1 * width, y1 * height, (x2 - x1) * width, (y2 - y1) * height];
    const lit = strength ? strength(number) : 0, name = names[number];
    context.strokeStyle = context.fillStyle = number === chosen ? "#ff7a1a" : colour(name);
    context.lineWidth = number === chosen ? 4 : strength ? 1 + 3 * lit : 2;
    context.globalAlpha = 0.55 * lit;
    if (x2 - x1 < 1 || y2 - y1 < 1) context.fillRect(...place); // a region as large as the image would tint all others
    context.globalAlpha = strength && number !== chosen ? 0.35 + 0.65 * lit : 1;
    context.strokeRect(...place);
    if (name && (!strength || lit > 0.3 || number === chosen)) {
      const text = context.measureText(name).width + 8, top = Math.max(0, place[1] - 16);
      context.fillRect(place[0], top, text, 16);
      context.fillStyle = "#10131a";
      context.fillText(name, place[0] + 4, top + 12);
    }
    context.globalAlpha = 1;
  });
}

export class BoxesView {
  /** `weightsOf(number)` gives the bytes q of a panel, with weight (q / 255)², head by head and row by row. */
  constructor(root, report, weightsOf) {
    Object.assign(this, { root, report, weightsOf, parts: partsOf(root), number: 0, head: MEAN, query: null, held: false, asked: 0 });
    this.panels = report.panels.map((panel) => ({ ...panel, queries: report.axes[panel.axes[0]], keys: report.axes[panel.axes[1]] }));
    this.sets = report.details?.boxes ?? [];
    this.image = new Image();
    this.image.addEventListener("load", () => this.show());
    this.image.src = report.picture;
    for (const part of ["words", "hint"]) this.parts[part].hidden = !this.panels.length;
    this.parts["atlas-name"].textContent = this.panels.length ? "Every layer and head" : "Every stage";
    this.#buildAtlas();
    this.#listen();
  }

  get #panel() { return this.panels[this.number]; }

  async #weights(number, head) {
    const { heads, queries, keys } = this.panels[number], bytes = await this.weightsOf(number);
    const [rows, columns] = [queries, keys].map(lengthOf), chosen = head === MEAN ? [...Array(heads).keys()] : [head];
    const weights = new Float32Array(rows * columns);
    for (const each of chosen)
      for (let at = 0; at < weights.length; at++) weights[at] += (bytes[each * rows * columns + at] / 255) ** 2 / chosen.length;
    return { rows, columns, weights };
  }

  async show() {
    const { parts } = this;
    if (!this.panels.length) return this.#showSets();
    const asked = ++this.asked, panel = this.#panel, { columns, weights } = await this.#weights(this.number, this.head);
    if (asked !== this.asked) return; // something else was pointed at in the meantime
    parts.name.textContent = `${layerTitle(panel.name)}, ${headTitle(this.head)}`;
    const row = this.query === null ? null : weights.subarray(this.query * columns, (this.query + 1) * columns);
    const peak = row ? Math.max(...row, 1e-9) : 1, lit = (number) => (row ? row[number] / peak : 0);
    const regions = [panel.keys, panel.queries].find((axis) => axis.kind === "boxes");
    const isKey = regions === panel.keys;
    if (regions) drawBoxes(parts.canvas, this.image, regions.boxes, regions.names, { strength: isKey && row ? lit : null, chosen: panel.queries === regions && this.query !== null ? this.query : -1 });
    this.#words(parts.queries, panel.queries, (number) => (number === this.query ? 1 : 0), (number) => this.#point(number));
    this.#words(parts.keys, panel.keys, lit, null);
    const best = row ? row.indexOf(Math.max(...row)) : 0;
    announce(this.root, { panel: this.number, head: this.head, query: this.query, key: row ? best : null });
    parts.readout.textContent = row ? `“${nameOf(panel.queries, this.query)}” looks most at “${nameOf(panel.keys, best)}” (${percent(row[best])})` : "Point at a word or a box: what it looks at lights up.";
    await this.#drawAtlas();
  }

  /** The names of an axis as buttons; those that are pointed at or looked at are marked. */
  #words(place, axis, strength, choose) {
    place.replaceChildren(...namesOf(axis).map((name, number) => {
      const word = make(choose ? "button" : "span", { className: "pill", textContent: name });
      word.style.display = "inline-block"; // a name stays on one line
      word.style.background = `color-mix(in srgb, var(--accent) ${Math.round(70 * strength(number))}%, transparent)`;
      if (choose) {
        Object.assign(word, { type: "button", onpointerenter: () => { if (!this.held && this.query !== number) choose(number); }, onclick: () => { this.held = this.query !== number || !this.held; choose(number); } });
        word.setAttribute("aria-pressed", this.query === number);
      }
      return word;
    }));
  }

  #point(number) { this.query = number; this.show(); }

  #showSets() {
    const { parts } = this, set = this.sets[this.number] ?? { name: "", boxes: [] };
    parts.name.textContent = set.name;
    drawBoxes(parts.canvas, this.image, set.boxes.map(({ box }) => box), set.boxes.map(({ name }) => name));
    parts.readout.textContent = set.boxes.length ? set.boxes.slice(0, 12).map(({ name, score }) => `${name} ${percent(score)}`.trim()).join(", ") : "None.";
    for (const button of parts.atlas.querySelectorAll("button")) button.setAttribute("aria-pressed", Number(button.dataset.panel) === this.number);
  }

  #buildAtlas() {
    const rows = this.panels.map(({ name, heads }, number) => {
      const buttons = (heads > 1 ? [MEAN, ...Array(heads).keys()] : [0]).map((head) => this.#button(number, head, head === MEAN ? "mean" : String(head + 1), make("canvas")));
      return make("div", { className: "map-row" }, make("h3", { textContent: layerTitle(name) }), ...buttons);
    });
    const sets = this.panels.length ? [] : this.sets.map(({ name, boxes }, number) => this.#button(number, MEAN, `${name} (${boxes.length})`));
    this.parts.atlas.replaceChildren(...rows, ...sets);
  }

  #button(number, head, title, ...inside) {
    const button = make("button", { type: "button", className: "pill", title, data: { panel: number, head } }, ...inside, title);
    button.addEventListener("click", () => {
      if (number !== this.number) this.query = null;
      Object.assign(this, { number, head });
      this.show();
    });
    return button;
  }

  async #drawAtlas() {
    for (const button of this.parts.atlas.querySelectorAll("button")) {
      const [number, head] = [Number(button.dataset.panel), Number(button.dataset.head)];
      const { rows, columns, weights } = await this.#weights(number, head), peak = Math.max(...weights, 1e-9);
      const context = prepare(button.querySelector("canvas"), columns * CELL, rows * CELL);
      weights.forEach((weight, at) => {
        context.fillStyle = `rgb(217 95 14 / ${weight / peak})`;
        context.fillRect((at % columns) * CELL, Math.floor(at / columns) * CELL, CELL, CELL);
      });
      button.setAttribute("aria-pressed", number === this.number && head === this.head);
    }
  }

  /** Pointing at the image chooses the smallest box there, in panels whose queries are boxes. */
  #listen() {
    const { canvas } = this.parts;
    canvas.onpointermove = (event) => {
      if (this.held || !this.panels.length || this.#panel.queries.kind !== "boxes") return;
      const place = canvas.getBoundingClientRect(), [x, y] = [(event.clientX - place.left) / place.width, (event.clientY - place.top) / place.height];
      const inside = this.#panel.queries.boxes.map((box, number) => ({ box, number })).filter(({ box: [x1, y1, x2, y2] }) => x >= x1 && x <= x2 && y >= y1 && y <= y2);
      const area = ({ box: [x1, y1, x2, y2] }) => (x2 - x1) * (y2 - y1);
      const found = inside.sort((one, other) => area(one) - area(other))[0];
      if (found && found.number !== this.query) this.#point(found.number);
    };
    canvas.onclick = () => { this.held = !this.held; };
  }
}

const namesOf = (axis) => axis.names ?? axis.texts ?? [...Array(lengthOf(axis)).keys()].map(String);
const nameOf = (axis, number) => namesOf(axis)[number];
const lengthOf = (axis) => (axis.names ?? axis.texts)?.length ?? axis.rows * axis.columns + axis.extra;

// The offline page

const markup = `
  <section class="stage" aria-labelledby="view-name">
    <div class="bar"><h2 id="view-name" data-part="name"></h2></div>
    <p class="readout" id="readout" data-part="readout" role="status"></p>
    <div class="text" data-part="words"><span class="side">looking</span><div class="words" data-part="queries"></div><span class="side">looked at</span><div class="words" data-part="keys"></div></div>
    <canvas class="picture" data-part="canvas" role="img" aria-label="The image with boxes" aria-describedby="readout"></canvas>
    <p class="hint" data-part="hint">Point at a word or a box: what it looks at lights up. Click to hold it.</p>
  </section>
  <section class="atlas" aria-labelledby="atlas-name">
    <div class="bar"><h2 id="atlas-name" data-part="atlas-name"></h2></div>
    <div data-part="atlas"></div>
  </section>`;

registerView("boxes", { markup, layout: "gallery", open: (root, report, weightsOf) => new BoxesView(root, report, weightsOf) });
registerLabels("boxes", ({ names }, at) => names[at]);
