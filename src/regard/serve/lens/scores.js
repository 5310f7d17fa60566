// The scores of one query before the softmax, fetched when it is pointed at.

import { isAbort, post, wordsOf } from "./api.js";
import { debounce, make } from "./dom.js";
import { percent, signed } from "./format.js";

const MOST = 40; // keys listed; of a longer text those with the highest scores

export class Scores {
  #seen = new Map(); // row -> its scores
  #point = debounce(160, (row) => this.#fetch(row));

  constructor(place) {
    this.place = place;
  }

  /** Another head is shown; `asked` is the input it looks at. */
  choose(panel, head, map, asked) {
    Object.assign(this, { panel, head, map, asked });
    this.#seen.clear();
    this.row = null;
    this.#point.cancel();
    this.#hint(panel.kind === "alignment"
      ? "The alignment is made of words, put together from the pieces a layer looked at. Choose a head to see its scores."
      : "Point at a row, or hold one with a click: the score of every key appears here, before the softmax makes weights of them.");
  }

  point(row) {
    if (row === null || this.panel.kind === "alignment" || row === this.row) return;
    if (this.#seen.has(row)) { this.#point.cancel(); this.#show(row); } else this.#point(row);
  }

  async #fetch(row) {
    const { panel, head, asked, map } = this;
    this.running?.abort();
    const { signal } = (this.running = new AbortController());
    try {
      const answer = await post("/api/look", { ...asked, layers: [panel.name], heads: [head], rows: [row, row + 1], scores: true }, signal);
      if (map !== this.map) return; // another head was chosen meanwhile
      this.#seen.set(row, answer.pieces[0].values[0]);
      this.#show(row);
    } catch (error) {
      if (!isAbort(error)) this.#hint(wordsOf(error));
    }
  }

  #hint(words) {
    this.place.replaceChildren(make("p", { className: "hint", textContent: words }));
  }

  #show(row) {
    this.row = row;
    const { map } = this;
    const scores = this.#seen.get(row);
    const open = scores.map((score, column) => ({ score, column })).filter(({ score }) => score !== null);
    const masked = scores.length - open.length;
    const listed = open.length > MOST ? [...open].sort((a, b) => b.score - a.score).slice(0, MOST) : open;
    const reach = Math.max(1e-6, ...open.map(({ score }) => Math.abs(score)));
    const notes = [
      ...(open.length > MOST ? [`the ${MOST} highest of ${open.length}`] : []),
      ...(masked ? [`${masked} masked: this query may not look there`] : []),
    ].join("; ");
    this.place.replaceChildren(
      make("p", { className: "hint" }, "Query ", make("b", { textContent: map.queries[row], dir: "auto" }), notes ? `, ${notes}` : ""),
      make("ul", { className: "bars", data: { row } }, ...listed.map(({ score, column }) => this.#bar(row, column, score, reach))));
  }

  #bar(row, column, score, reach) {
    const bar = make("span", { className: score < 0 ? "bar-line below" : "bar-line" });
    bar.style.setProperty("--share", (Math.abs(score) / reach).toFixed(3));
    return make("li", {},
      make("span", { className: "key", textContent: this.map.keys[column], dir: "auto" }),
      make("span", { className: "bar-track", "aria-hidden": "true" }, bar),
      make("span", { className: "score", textContent: signed(score) }),
      make("span", { className: "share", textContent: `→ ${percent(this.map.at(row, column))}` }));
  }
}
