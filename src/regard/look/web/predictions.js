// What a model predicts at the places of a text: its tokens, shaded by the probability the model gave them, and for the
// place that is pointed at the most probable candidates, beside how likely each of them is drawn.
//
// A language model predicts the token after a place (`generates`), an encoder the hidden word at a place.

import { onTheme } from "./colours.js";
import { make, within } from "./dom.js";
import { percent, spokenToken } from "./format.js";
import { Pointing } from "./pointing.js";
import { asRow, fillWords, listenToWords, shadeWords } from "./words.js";

const NEXT = "…"; // stands for the token after the last one

export class PredictionView {
  #predictions = new Map(); // by place
  pointing = new Pointing();
  place = null; // the one whose candidates are shown

  /**
   * `parts` are elements: title, hint, tokens, readout and candidates. `describe(prediction, view)` gives the readout,
   * `how` says in the hint how to move, and `onPlace(place)` is told which place is shown.
   */
  constructor(parts, { describe, how, onPlace = () => {} }) {
    Object.assign(this, { parts, describe, how, onPlace });
    listenToWords(parts.tokens, this.pointing, asRow);
    this.pointing.watch(({ row }) => { if (row !== null) this.#choose(row); });
    onTheme(() => this.#shade());
  }

  /** Show the tokens of a text, of which nothing is predicted yet. */
  show(tokens, generates) {
    this.#predictions.clear();
    Object.assign(this, { tokens, generates, place: null });
    this.explain(generates);
    fillWords(this.parts.tokens, generates ? [...tokens.map(spokenToken), NEXT] : tokens);
    this.parts.tokens.classList.toggle("running", generates);
  }

  explain(generates) {
    this.parts.title.textContent = generates ? "What it expected next" : "What it guesses for hidden words";
    this.parts.hint.textContent = generates
      ? `Each token is shaded by the probability the model gave it; what the model wrote itself is underlined. ${this.how}`
      : "Choose a hidden word to see what could stand there.";
  }

  /** Take in predictions that have arrived; at first those of the first token that the model wrote are shown. */
  add(predictions) {
    for (const each of predictions) this.#predictions.set(each.place, each);
    this.#shade();
    if (this.place === null) this.step((at, last, written) => written);
  }

  /** Take in predictions that replace others, and show the place again. */
  replace(predictions) {
    for (const each of predictions) this.#predictions.set(each.place, each);
    this.#show();
  }

  /** Go to another place: `to(at, last, written)` gets the numbers of this one, the last, and the first that was written. */
  step(to) {
    const places = [...this.#predictions.keys()].sort((a, b) => a - b);
    if (!places.length) return;
    const written = Math.max(0, places.findIndex((place) => this.#predictions.get(place).written));
    const next = within(to(places.indexOf(this.place), places.length - 1, written), 0, places.length - 1);
    this.pointing.move(asRow(places[next] + this.#shift));
  }

  /** By how much the number of a predicted token exceeds the place it is predicted at. */
  get #shift() { return this.generates ? 1 : 0; }

  #shade() {
    const at = (index) => this.#predictions.get(index - this.#shift), { tokens } = this.parts;
    shadeWords(tokens, (index) => at(index)?.came?.probability ?? null, () => 1, this.place === null ? null : this.place + this.#shift);
    [...tokens.children].forEach((word, index) => {
      word.classList.toggle("written", Boolean(at(index)?.written));
      word.classList.toggle("hidden-word", !this.generates && Boolean(at(index)));
      delete word.dataset.percent;
    });
  }

  #choose(index) {
    const place = index - this.#shift;
    if (!this.#predictions.has(place)) return;
    this.place = place;
    this.#show();
    this.onPlace(place);
  }

  #show() {
    this.#shade();
    const prediction = this.#predictions.get(this.place), { choices, came, rank } = prediction;
    this.parts.readout.replaceChildren(...this.describe(prediction, this));
    const most = Math.max(...choices.flatMap((choice) => [choice.probability, choice.drawn ?? 0]), 1e-9);
    const rows = rank > choices.length ? [...choices, came] : choices;
    const rankOf = (index) => (index < choices.length ? index + 1 : rank); // tokens may look alike, ranks do not
    this.parts.candidates.replaceChildren(...rows.map((choice, index) => candidate(choice, rankOf(index), rankOf(index) === rank, most)));
  }
}

function candidate({ token, probability, drawn }, rank, isCame, most) {
  const bar = (name, share) => {
    const made = make("span", { className: name });
    made.style.setProperty("--share", (share / most).toFixed(4));
    return made;
  };
  const how = drawn === null ? "" : drawn === 0 ? "never drawn" : `drawn ${percent(drawn)}`;
  return make("li", { data: isCame ? { came: "yes" } : {} },
    make("span", { className: "rank", textContent: rank }),
    make("span", { className: "token", textContent: token, title: token, dir: "auto" }),
    make("span", { className: "odds-track", "aria-hidden": "true" }, bar("own", probability), ...(drawn === null ? [] : [bar("drawn", drawn)])),
    make("span", { className: "share", textContent: percent(probability) }),
    make("span", { className: "drawn-share", textContent: how }),
    make("span", { className: "came", textContent: isCame ? "★ came" : "" }));
}
