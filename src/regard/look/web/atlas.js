// Every layer and head as small maps. They are drawn layer by layer as they arrive from a server (`load`), or one by one
// as they are scrolled into sight (`drawWhenVisible`).
//
// A panel is { name, title, about, kind, heads, queryTexts, keyTexts }.

import { bitmap, onTheme } from "./colours.js";
import { make } from "./dom.js";
import { headTitle, KINDS } from "./format.js";
import { WeightMap } from "./weights.js";

export const MEAN = -1; // the head number that stands for the mean of all heads
const SIDE = 168; // pixels of a small map, twice its size on the page

/** The heads of a panel that can be chosen; with `means`, the mean of several heads comes first. */
export function headsOf(panel, means) {
  const heads = [...Array(panel.heads).keys()];
  return means && panel.heads > 1 ? [MEAN, ...heads] : heads;
}

export class Atlas {
  #rows = new Map(); // panel -> its element
  #maps = new Map(); // button -> its small map, kept to draw it again in the other theme

  /** `frame` and `filters` are empty elements; `onChoose(panel, head)` is called when a small map is chosen. */
  constructor(frame, filters, onChoose, { means = false } = {}) {
    [this.frame, this.filters, this.onChoose, this.means, this.kind] = [frame, filters, onChoose, means, "all"];
    onTheme(() => this.#maps.forEach((map, button) => this.#draw(button, map)));
  }

  build(panels) {
    this.panels = panels;
    this.#maps.clear();
    this.#rows = new Map(panels.map((panel) => [panel, this.#layer(panel)]));
    this.frame.replaceChildren(...this.#rows.values());
    this.frame.classList.toggle("few", panels.every((panel) => panel.heads <= 4));
    const kinds = [...new Set(panels.map((panel) => panel.kind).filter((kind) => kind in KINDS))];
    this.filters.replaceChildren(...(kinds.length > 1 ? ["all", ...kinds].map((kind) => this.#filter(kind)) : []));
    this.show(kinds.includes(this.kind) ? this.kind : "all");
  }

  /** Fetch the small maps, those of the visible kind first. */
  async load(fetchLayer) {
    const waiting = [...this.panels];
    while (waiting.length) {
      const next = waiting.findIndex((panel) => !this.#rows.get(panel).hidden);
      const [panel] = waiting.splice(Math.max(0, next), 1);
      const { pieces } = await fetchLayer(panel);
      const buttons = this.#rows.get(panel)?.querySelectorAll("button") ?? [];
      for (const piece of pieces) {
        const [rows, columns] = piece.shape;
        const map = WeightMap.of(Array(rows), Array(columns), piece);
        this.#maps.set(buttons[piece.head], map);
        this.#draw(buttons[piece.head], map);
      }
    }
  }

  /** Draw each map when it is scrolled into sight; one at a time with pauses, so that many large maps never freeze the page. */
  drawWhenVisible(mapOf) {
    let last = Promise.resolve();
    const draw = (button) => {
      const [panel, head] = button.shows;
      last = last.then(() => mapOf(panel, head)).then((map) => this.#draw(button, map)).then(() => new Promise((done) => setTimeout(done)));
    };
    const observer = new IntersectionObserver((entries) => entries.forEach(({ isIntersecting, target }) => {
      if (!isIntersecting) return;
      observer.unobserve(target);
      draw(target);
    }), { rootMargin: "300px" });
    const observeAll = () => this.frame.querySelectorAll(".heads button").forEach((button) => observer.observe(button));
    observeAll();
    onTheme(observeAll);
  }

  show(kind) {
    this.kind = kind;
    for (const button of this.filters.children) button.setAttribute("aria-pressed", button.dataset.kind === kind);
    for (const [panel, row] of this.#rows) row.hidden = kind !== "all" && panel.kind !== kind;
  }

  mark(panel, head) {
    for (const button of this.frame.querySelectorAll(".heads button")) {
      button.setAttribute("aria-pressed", button.shows[0] === panel && button.shows[1] === head);
    }
  }

  #filter(kind) {
    const button = make("button", { type: "button", textContent: kind, data: { kind } });
    button.addEventListener("click", () => this.show(kind));
    return button;
  }

  #layer(panel) {
    const { name, title, about, kind, queryTexts, keyTexts } = panel;
    const size = `${queryTexts.length} × ${keyTexts.length}`;
    return make("div", { className: "layer", data: { layer: name, kind } },
      make("div", {}, make("h3", {}, ...breakable(title)), make("p", { textContent: `${about}, ${size}` })),
      make("div", { className: "heads" }, ...headsOf(panel, this.means).map((head) => this.#thumbnail(panel, head))));
  }

  #thumbnail(panel, head) {
    const canvas = make("canvas", { width: SIDE, height: SIDE, "aria-hidden": "true" });
    const isOnly = panel.heads === 1, caption = isOnly ? "open" : head === MEAN ? "mean" : headTitle(head);
    const label = isOnly ? `Open ${panel.title}` : `${panel.title}, ${caption}`;
    const button = make("button", { type: "button", "aria-label": label, "aria-pressed": false, data: { layer: panel.name, head } }, canvas, caption);
    button.shows = [panel, head];
    button.addEventListener("click", () => this.onChoose(panel, head));
    return button;
  }

  #draw(button, map) {
    const context = button.querySelector("canvas").getContext("2d");
    const peak = map.peak();
    context.imageSmoothingEnabled = Math.max(map.rows, map.columns) > SIDE;
    context.drawImage(bitmap(map, () => peak), 0, 0, SIDE, SIDE);
    button.dataset.drawn = "yes";
  }
}

/** A dotted name that may be broken after its dots. */
const breakable = (name) => name.split(/(?<=\.)/).flatMap((part, index) => (index ? [make("wbr"), part] : [part]));
