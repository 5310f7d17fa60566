// The score of one query and one key, dimension by dimension: query, key, and the part of each dimension in the score.

import { make } from "./dom.js";
import { labelOf } from "./axis_labels.js";

const NAMED = 3; // dimensions named in words
const MEAN = -1; // in place of a head

/** An element below a view that shows the neurons of what the view points at; `fetch(detail)` gives them, or null. */
export class NeuronCard {
  #asked = 0;

  constructor(view, { className = "stage" } = {}) {
    this.place = make("div", { className: "neurons", role: "group", "aria-label": "Score by dimension" });
    this.card = make("section", { className: `${className} neuron-card`, hidden: true }, make("h2", { textContent: "The score, dimension by dimension" }), this.place);
    view.after(this.card);
    view.addEventListener("look", ({ detail }) => this.#point(detail));
  }

  /** Another report is shown. */
  show(report, fetch) {
    Object.assign(this, { report, fetch });
    this.#asked++;
    this.card.hidden = true;
  }

  async #point({ panel: number, head, query, key }) {
    const panel = this.report?.panels[number], chosen = panel?.heads === 1 ? 0 : head, asked = ++this.#asked;
    if (!panel || chosen === MEAN || query === null || key === null) { this.card.hidden = true; return; }
    const found = await this.fetch({ panel: number, head: chosen, query, key });
    if (asked !== this.#asked) return; // something else was pointed at in the meantime
    this.card.hidden = !found;
    if (!found) return;
    const [queries, keys] = panel.axes.map((axis) => this.report.axes[axis]);
    showNeurons(this.place, found, [labelOf(queries, query), labelOf(keys, key)]);
  }
}

/** A row of cells, orange for positive and blue for negative numbers, as dark as they are large. */
function row(name, values) {
  const reach = Math.max(1e-9, ...values.map(Math.abs));
  const cells = values.map((value, dimension) => {
    const cell = make("span", { className: value < 0 ? "below" : "above", title: `dimension ${dimension}: ${value.toFixed(3)}` });
    cell.style.setProperty("--share", (Math.abs(value) / reach).toFixed(3));
    return cell;
  });
  return make("div", { className: "neuron-row", data: { row: name } }, make("b", { textContent: name }), make("div", { className: "neuron-cells" }, ...cells));
}

/** Show the neurons of a query and a key, named by their tokens. */
export function showNeurons(place, { query, key, parts, scale, bias, score }, [asking, asked]) {
  const order = parts.map((_, dimension) => dimension).sort((a, b) => Math.abs(parts[b]) - Math.abs(parts[a])).slice(0, NAMED);
  const sum = parts.reduce((total, part) => total + part, 0), added = bias ? ` + ${bias.toFixed(3)}` : "";
  place.hidden = false;
  place.replaceChildren(
    make("p", { className: "hint" }, make("b", { textContent: asking, dir: "auto" }), " asks ", make("b", { textContent: asked, dir: "auto" }),
      `: the ${parts.length} dimensions add up to ${sum.toFixed(3)}; × ${scale.toFixed(3)}${added} is the score ${score.toFixed(3)}`),
    row("q", query), row("k", key), row("q × k", parts),
    make("p", { className: "hint", textContent: `Most comes from ${order.map((dimension) => `dimension ${dimension} (${parts[dimension].toFixed(2)})`).join(", ")}` }));
}
