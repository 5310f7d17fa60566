// What every layer would have said: a table of layers and places, the last layer on top, darker where a layer is surer.

import { make } from "./dom.js";
import { layerTitle, percent } from "./format.js";

const SAID = 5; // candidates in the words of a cell

/** Fill an element with the table of a logit lens: { places, layers: [{ name, top: [[[token, probability]]] }] }. */
export function showLogitLens(place, { places, layers }) {
  const readout = make("p", { className: "readout", role: "status" });
  const cell = (layer, top, at) => {
    const [[token, probability]] = top, told = top.slice(0, SAID).map(([each, share]) => `${each} ${percent(share)}`).join(", ");
    const shown = make("td", { tabIndex: 0, title: told, dir: "auto", data: { layer, place: at } }, make("span", { textContent: token }), make("small", { textContent: percent(probability) }));
    shown.style.setProperty("--share", probability.toFixed(3));
    const tell = () => { readout.textContent = `${layerTitle(layer)} at “${places[at]}”: ${told}`; };
    shown.addEventListener("pointerenter", tell);
    shown.addEventListener("focus", tell);
    return shown;
  };
  const head = make("tr", {}, make("th", { textContent: "layer" }), ...places.map((each) => make("th", { textContent: each, dir: "auto" })));
  const rows = layers.map(({ name, top }) => make("tr", {}, make("th", { textContent: layerTitle(name), title: name }), ...top.map((each, at) => cell(name, each, at)))).reverse();
  place.replaceChildren(make("div", { className: "lens-table" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows))), readout);
}

/** A card below a view with the logit lens of a report; hidden if the report has none. */
export class LensCard {
  constructor(view, { className = "stage" } = {}) {
    this.place = make("div");
    this.card = make("section", { className: `${className} lens-card`, hidden: true }, make("h2", { textContent: "What every layer would have said" }), this.place);
    view.after(this.card);
  }

  show({ logit_lens: lens }) {
    this.card.hidden = !lens;
    if (lens) showLogitLens(this.place, lens);
  }
}
