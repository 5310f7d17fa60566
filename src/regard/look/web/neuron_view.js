// The score of one query and one key, dimension by dimension: query, key, and the part of each dimension in the score.

import { make } from "./dom.js";

const NAMED = 3; // dimensions named in words

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
