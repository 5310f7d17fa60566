// Every layer and head as small maps, drawn layer by layer as they arrive.

import { onTheme, picture } from "./colours.js";
import { byId, make } from "./dom.js";
import { KINDS } from "./format.js";
import { WeightMap } from "./weights.js";

const SIDE = 168; // pixels of a small map, twice its size on the page

export class Atlas {
  #rows = new Map(); // panel -> its element
  #maps = new Map(); // button -> its small map, kept to draw it again in the other theme

  /** `onChoose(panel, head)` is called when a small map is chosen. */
  constructor(onChoose) {
    [this.onChoose, this.kind] = [onChoose, "all"];
    onTheme(() => this.#maps.forEach((map, button) => this.#draw(button, map)));
  }

  build(panels, texts) {
    this.panels = panels;
    this.#maps.clear();
    this.#rows = new Map(panels.map((panel) => [panel, this.#layer(panel, texts)]));
    byId("atlas").replaceChildren(...this.#rows.values());
    byId("atlas").classList.toggle("few", panels.every((panel) => panel.heads <= 4));
    const kinds = [...new Set(panels.map((panel) => panel.kind).filter((kind) => kind in KINDS))];
    byId("kinds").replaceChildren(...(kinds.length > 1 ? ["all", ...kinds].map((kind) => this.#filter(kind)) : []));
    this.show(kinds.includes(this.kind) ? this.kind : "all");
  }

  /** Fetch the small maps, those of the kind in sight first. */
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

  show(kind) {
    this.kind = kind;
    for (const button of byId("kinds").children) button.setAttribute("aria-pressed", button.dataset.kind === kind);
    for (const [panel, row] of this.#rows) row.hidden = kind !== "all" && panel.kind !== kind;
  }

  mark(panel, head) {
    for (const [each, row] of this.#rows) {
      row.querySelectorAll("button").forEach((button, index) => button.setAttribute("aria-pressed", each === panel && index === head));
    }
  }

  #filter(kind) {
    const button = make("button", { type: "button", textContent: kind, data: { kind } });
    button.addEventListener("click", () => this.show(kind));
    return button;
  }

  #layer(panel, texts) {
    const title = panel.kind === "alignment" ? "Word alignment" : panel.name;
    const size = `${texts[panel.queries].length} × ${texts[panel.keys].length}`;
    const heads = Array.from({ length: panel.heads }, (_, head) => this.#thumbnail(panel, head, title));
    return make("div", { className: "layer", data: { layer: panel.name, kind: panel.kind } },
      make("div", {}, make("h3", {}, ...breakable(title)), make("p", { textContent: `${KINDS[panel.kind] ?? "words"}, ${size}` })),
      make("div", { className: "heads" }, ...heads));
  }

  #thumbnail(panel, head, title) {
    const canvas = make("canvas", { width: SIDE, height: SIDE, "aria-hidden": "true" });
    const isOnly = panel.heads === 1;
    const label = isOnly ? title : `${title}, head ${head}`;
    const button = make("button", { type: "button", "aria-label": label, "aria-pressed": false, data: { layer: panel.name, head } },
      canvas, isOnly ? "open" : `head ${head}`);
    button.addEventListener("click", () => this.onChoose(panel, head));
    return button;
  }

  #draw(button, map) {
    const context = button.querySelector("canvas").getContext("2d");
    const peak = map.peak();
    context.imageSmoothingEnabled = Math.max(map.rows, map.columns) > SIDE;
    context.drawImage(picture(map, () => peak), 0, 0, SIDE, SIDE);
    button.dataset.drawn = "yes";
  }
}

/** A dotted name that may be broken after its dots. */
const breakable = (name) => name.split(/(?<=\.)/).flatMap((part, index) => (index ? [make("wbr"), part] : [part]));
