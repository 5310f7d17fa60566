// Pressing a head on a tab whose models read files: the head that is shown is switched off, the model answers again, and
// what it said with all heads stands beside. The views tell which head they show (look/dom.js, announce).

import { make } from "./dom.js";
import { spokenHead } from "./format.js";

const MEAN = -1; // in place of a head
const switches = new WeakMap(); // of the elements that show views

/** The switch of a view; it is made above the view when it is first needed. */
export function switchOf(view) {
  if (!switches.has(view)) switches.set(view, new HeadSwitch(view));
  return switches.get(view);
}

class HeadSwitch {
  constructor(view) {
    this.button = make("button", { type: "button", className: "pill", data: { part: "switch" } });
    this.told = make("p", { className: "original", role: "status", dir: "auto", data: { part: "original" } });
    this.chips = make("div", { className: "filters", role: "group", "aria-label": "Heads that are off" });
    this.bar = make("div", { className: "card bar head-switch" }, this.button, this.chips, this.told);
    view.before(this.bar);
    view.addEventListener("look", ({ detail }) => this.#mark(detail));
    this.button.addEventListener("click", () => this.#press(this.shown));
  }

  /** An answer is shown; `again(heads)` asks for it without some heads. */
  show({ report, without }, again) {
    if (!without.length) this.whole = report.meta;
    Object.assign(this, { panels: report.panels, off: new Set(without), again, shown: "" });
    this.told.textContent = without.length ? `Without ${without.map(spokenHead).join("; ")}: ${beside(factsOf(report.meta), factsOf(this.whole))}` : "";
    this.chips.replaceChildren(...without.map((head) => make("button", { type: "button", className: "pill", textContent: `${spokenHead(head)} ×`,
      title: "Switch it on", data: { off: head }, onclick: () => this.#press(head) })));
    this.#mark({ panel: null });
  }

  #mark({ panel: number, head }) {
    const panel = this.panels?.[number], chosen = panel?.heads === 1 ? 0 : head;
    this.shown = panel?.layer && chosen !== MEAN ? `${panel.layer}:${chosen}` : "";
    const isOff = this.off?.has(this.shown) ?? false;
    this.bar.hidden = !this.again || (!this.shown && !this.off?.size);
    this.button.hidden = !this.shown;
    this.button.setAttribute("aria-pressed", isOff);
    this.button.textContent = isOff ? `${spokenHead(this.shown)} is off: switch it on` : `Switch off ${spokenHead(this.shown)}`;
  }

  #press(head) {
    if (!this.off.delete(head)) this.off.add(head);
    this.again([...this.off]);
  }
}

const factsOf = (meta) => Object.entries(meta ?? {}).map(([name, value]) => `${name} ${value}`).join(", ");
const beside = (now, before) => (now === before ? `the same answer (${now})` : `${now}; with all heads ${before}`);
