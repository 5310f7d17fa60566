// The words of a caption over its image: the image once for every word and layer, light where that word looked. Places
// that hard attention drew are dots, below the weights that they were drawn from; gates are written at the words. The
// offline page and the lens make their elements from `markup`.

import { announce, make, partsOf } from "../../look/dom.js";
import { layerTitle, percent } from "../../look/format.js";
import { registerView } from "../../look/offline.js";
import { drawUnderVeil } from "../../look/overlay.js";

const SIDE = 380, THUMB = 84; // pixels of a large image, of a small one
const MEAN = -1; // in place of a head

export class StripView {
  /** `weightsOf(number)` gives the bytes q of a panel, with weight (q / 255)², head by head and row by row. */
  constructor(root, report, weightsOf) {
    const { gates = [], drawn = [] } = report.details ?? {};
    Object.assign(this, { root, report, weightsOf, gates, drawn, parts: partsOf(root), panel: 0, word: 0, head: MEAN, held: false });
    this.words = report.axes[report.panels[0].axes[0]].texts;
    this.keys = report.axes[report.panels[0].axes[1]];
    this.image = new Image();
    this.#build();
    this.image.addEventListener("load", () => this.#paint());
    this.image.src = report.picture;
  }

  /** What a word looked at: one weight for each cell, of one head or the mean of a layer. */
  async #weightsFrom(number, word) {
    const { heads } = this.report.panels[number], { rows, columns, extra } = this.keys;
    const bytes = await this.weightsOf(number), cells = rows * columns + extra, weights = new Float32Array(cells);
    const chosen = this.head === MEAN || this.head >= heads ? [...Array(heads).keys()] : [this.head];
    for (const head of chosen) {
      const start = (head * this.words.length + word) * cells;
      for (let at = 0; at < cells; at++) weights[at] += (bytes[start + at] / 255) ** 2 / chosen.length;
    }
    return { grid: [rows, columns], weights: weights.subarray(extra) };
  }

  async #draw(canvas, side, number, word) {
    const seen = await this.#weightsFrom(number, word), { rows, columns } = this.keys;
    if (!this.drawn[number]) { drawUnderVeil(canvas, this.image, side, seen); return seen; }
    const { context, width, height } = drawUnderVeil(canvas, this.image, side, { grid: [1, 1], weights: [1] });
    const at = heaviest(seen.weights), x = ((at % columns) + 0.5) * (width / columns), y = (Math.floor(at / columns) + 0.5) * (height / rows);
    for (const [colour, radius] of [["#ffffff", side / 28 + 2], ["#ff7a1a", side / 28]]) {
      context.beginPath();
      context.arc(x, y, radius, 0, 2 * Math.PI);
      context.fillStyle = colour;
      context.fill();
    }
    return seen;
  }

  #build() {
    const { said, stack, strip, heads } = this.parts, { panels } = this.report;
    const point = (word) => ({ onpointerenter: () => { if (!this.held) this.choose(word); }, onfocus: () => this.choose(word),
      onclick: () => { this.held = !this.held || word !== this.word; this.choose(word); } });
    said.replaceChildren(...this.words.map((word, number) => make("li", {}, make("button", { type: "button", data: { word: number }, ...point(number) },
      word, ...(this.gates.length ? [make("small", { textContent: `β ${this.gates[number].toFixed(2)}`, title: "how much of what it saw reached the word" })] : [])))));
    stack.replaceChildren(...panels.map(({ name }, number) => make("figure", { data: { panel: number }, onclick: () => { this.panel = number; this.choose(this.word); } },
      make("canvas", { className: "picture", role: "img", "aria-label": layerTitle(name) }), make("figcaption", { textContent: layerTitle(name) }))));
    strip.replaceChildren(...panels.map(({ name }, number) => make("div", { className: "map-row" }, make("h3", { textContent: layerTitle(name) }),
      ...this.words.map((word, at) => make("button", { type: "button", title: word, "aria-label": `${word}, ${layerTitle(name)}`, data: { word: at }, ...point(at) },
        make("canvas", { data: { panel: number, word: at } }), word)))));
    const most = Math.max(...panels.map((panel) => panel.heads));
    heads.hidden = most === 1;
    heads.replaceChildren(...[MEAN, ...Array(most).keys()].map((head) => make("button", { type: "button", className: "pill", data: { head },
      textContent: head === MEAN ? "mean of heads" : String(head + 1), onclick: () => { this.head = head; this.#paint(); } })));
  }

  /** Show where a word looked. */
  async choose(word) {
    this.word = word;
    for (const button of [...this.parts.said.querySelectorAll("button"), ...this.parts.strip.querySelectorAll("button")])
      button.setAttribute("aria-pressed", Number(button.dataset.word) === word);
    const drawn = [...this.parts.stack.querySelectorAll("canvas")].map((canvas, number) => this.#draw(canvas, SIDE, number, word));
    const { weights } = (await Promise.all(drawn))[this.panel], best = heaviest(weights), { columns, extra } = this.keys;
    if (word !== this.word) return; // another word was pointed at in the meantime
    for (const figure of this.parts.stack.children) figure.toggleAttribute("data-chosen", this.report.panels.length > 1 && Number(figure.dataset.panel) === this.panel);
    announce(this.root, { panel: this.panel, head: this.head, query: word, key: best + extra });
    const gate = this.gates.length ? `; gate β ${this.gates[word].toFixed(2)}` : "";
    this.parts.readout.textContent = `“${this.words[word]}” looked most at row ${1 + Math.floor(best / columns)}, column ${1 + (best % columns)} (${percent(weights[best])})${gate}`;
  }

  async #paint() {
    for (const button of this.parts.heads.children) button.setAttribute("aria-pressed", Number(button.dataset.head) === this.head);
    await this.choose(this.word);
    for (const canvas of this.parts.strip.querySelectorAll("canvas")) await this.#draw(canvas, THUMB, Number(canvas.dataset.panel), Number(canvas.dataset.word));
  }
}

const heaviest = (weights) => weights.reduce((most, weight, at) => (weight > weights[most] ? at : most), 0);

const markup = `
  <section class="stage" aria-labelledby="view-name">
    <div class="bar"><h2 id="view-name">Where each word looked</h2><div class="filters" data-part="heads"></div></div>
    <ul class="said" data-part="said"></ul>
    <p class="readout" id="readout" data-part="readout" role="status"></p>
    <div class="stack" data-part="stack"></div>
    <p class="hint">Point at a word, or move with Tab: what it looked at stays light. Click to hold it.</p>
  </section>
  <section class="atlas" aria-labelledby="atlas-name">
    <div class="bar"><h2 id="atlas-name">Word by word</h2></div>
    <div class="strip" data-part="strip"></div>
  </section>`;

registerView("strip", { markup, open: (root, report, weightsOf) => new StripView(root, report, weightsOf) });
