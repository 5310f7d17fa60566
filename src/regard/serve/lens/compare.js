// The Compare tab: one sentence, two models, side by side; pointing at a source word in one points at it in both.

import { isAbort, post, wordsOf } from "./api.js";
import { byId, debounce, fillSelect, make, say } from "./dom.js";
import { FAMILIES, languageName, milliseconds, modelLabel, signed } from "./format.js";
import { Matrix } from "./matrix.js";
import { NOTHING, Pointing, shareOfKey, shareOfQuery } from "./pointing.js";
import { modelCalled, shelf, watchShelf } from "./shelf.js";
import { WeightMap } from "./weights.js";
import { asColumn, asRow, fillWords, listenToWords, shadeWords, tell } from "./words.js";

let contenders, running;

export function startCompare() {
  contenders = [new Contender(0), new Contender(1)];
  byId("contenders").replaceChildren(...contenders.map((each) => each.element));
  contenders.forEach((each, side) => each.pointing.watch((place) => link(contenders[1 - side], each, place)));
  byId("compare-text").addEventListener("input", debounce(400, compare));
  byId("compare-to").addEventListener("change", compare);
  watchShelf(fill);
  return contenders.map((each) => each.pointing);
}

export function refreshCompare(text) {
  if (!byId("compare-text").value) byId("compare-text").value = text;
  if (byId("compare-text").value.trim() && !contenders[0].answer) compare();
}

function fill() {
  const options = shelf.translators.map((model) => [model.id, modelLabel(model)]);
  const firstTwo = [shelf.translators[0]?.id, (shelf.translators[1] ?? shelf.translators[0])?.id];
  contenders.forEach((each, side) => fillSelect(each.select, options, each.select.value || firstTwo[side]));
  fillTargets();
}

function fillTargets() {
  const models = contenders.map((each) => modelCalled(each.select.value));
  contenders.forEach((each, side) => { each.family.textContent = FAMILIES[models[side]?.family] ?? ""; });
  const shared = (models[0]?.targets ?? []).filter((code) => models[1].targets.includes(code));
  fillSelect(byId("compare-to"), shared.map((code) => [code, languageName(code)]), byId("compare-to").value);
  if (!models[0]) return "";
  if (models[0].source !== models[1].source) {
    const [one, other] = models.map((model) => `${model.id} reads ${languageName(model.source)}`);
    return `${one}, ${other}. Choose two that read the same language.`;
  }
  return shared.length ? "" : "These two models have no target language in common. Choose another pair.";
}

async function compare() {
  running?.abort();
  const { signal } = (running = new AbortController());
  const text = byId("compare-text").value.trim();
  const mismatch = fillTargets();
  say(byId("compare-error"), mismatch);
  byId("compare-verdict").textContent = "";
  if (!text || mismatch || !shelf.translators.length) { contenders.forEach((each) => each.clear()); return; }
  // One after another, so that neither slows the other down.
  for (const each of contenders) await each.translate(text, byId("compare-to").value, signal);
  if (!signal.aborted) byId("compare-verdict").textContent = verdict(...contenders);
}

function verdict(a, b) {
  if (!a.answer || !b.answer || a.select.value === b.select.value) return "";
  const says = a.best.text === b.best.text ? "Both say the same." : "They say different things.";
  const [fast, slow] = a.answer.milliseconds <= b.answer.milliseconds ? [a, b] : [b, a];
  const times = slow.answer.milliseconds / Math.max(fast.answer.milliseconds, 0.01);
  return times < 1.15 ? `${says} They took about as long.` : `${says} ${fast.select.value} was ${times.toFixed(1)} times as fast.`;
}

let linking = false;
/** Point at the same source word on the other side: the one pointed at, or the one a target word looks at most. */
function link(other, own, { row, column }) {
  if (linking || !own.map || !other.map) return;
  const source = column ?? (row === null ? null : own.map.heaviestKey(row));
  linking = true;
  other.pointing.move(source === null || source >= other.map.columns ? NOTHING : { row: null, column: source });
  linking = false;
}

class Contender {
  answer = null;
  map = null;
  pointing = new Pointing();

  constructor(side) {
    const part = (tag, className, more = {}) => make(tag, { className, ...more });
    this.select = make("select", { "aria-label": side ? "Second model" : "First model" });
    this.select.addEventListener("change", compare);
    this.family = part("span", "badge");
    this.clock = part("span", "clock facts");
    this.sources = part("div", "words sentence small", { role: "group", "aria-label": "Source words", dir: "auto" });
    this.said = part("div", "words sentence said", { "aria-live": "polite", dir: "auto" });
    this.readout = part("p", "readout", { role: "status" });
    this.warning = part("p", "notice warn", { role: "status", hidden: true });
    this.problem = part("p", "notice bad", { role: "alert", hidden: true });
    this.note = part("p", "hint");
    this.frame = part("div", "matrix");
    this.element = make("section", { className: "card contender", data: { side }, "aria-label": side ? "Second model" : "First model" },
      make("div", { className: "bar" }, this.select, this.family, this.clock),
      this.sources, this.said, this.warning, this.problem, this.readout, this.note, this.frame);
    this.matrix = new Matrix(this.frame, this.pointing, { label: "Word alignment" });
    listenToWords(this.sources, this.pointing, asColumn);
    listenToWords(this.said, this.pointing, asRow);
    this.pointing.watch((place) => this.light(place));
    this.element.addEventListener("pointerleave", () => { if (!this.pointing.held) this.pointing.release(); });
    this.clear();
  }

  get best() { return this.answer.translations[0]; }

  clear(words = "The translation of this model appears here.") {
    this.answer = this.map = this.matrix.map = null;
    [this.frame.hidden, this.clock.textContent] = [true, ""];
    this.sources.replaceChildren();
    this.said.replaceChildren(make("em", { className: "hint", textContent: words }));
    for (const place of [this.problem, this.warning]) say(place, "");
    for (const place of [this.readout, this.note]) place.replaceChildren();
  }

  async translate(text, to, signal) {
    if (signal.aborted) return;
    this.element.setAttribute("aria-busy", "true");
    this.clock.textContent = "translating…";
    try {
      this.show(await post("/api/translate", { model: this.select.value, text, to, beam: 4, n_best: 1, search: false, attention: true }, signal));
    } catch (error) {
      if (isAbort(error) || signal.aborted) return;
      this.clear("");
      say(this.problem, wordsOf(error));
    }
    this.element.removeAttribute("aria-busy");
  }

  show(answer) {
    this.clear("");
    this.answer = answer;
    const { words, attention, truncated, score } = this.best;
    this.clock.textContent = `${milliseconds(answer.milliseconds)} · score ${signed(score, 3)}`;
    this.map = attention ? WeightMap.of(words, answer.source_words, attention) : null;
    fillWords(this.sources, answer.source_words);
    fillWords(this.said, words.length ? words : ["(nothing)"]);
    say(this.warning, truncated ? "This translation reached its length limit; its end may be missing." : "");
    this.frame.hidden = !this.map;
    if (this.map) this.matrix.show(this.map);
    else this.note.textContent = "This model keeps the whole sentence in one vector, so there is no attention to show.";
  }

  light(place) {
    if (!this.map) return;
    const one = () => 1;
    shadeWords(this.sources, (column) => shareOfKey(this.map, place, column), one, place.column);
    shadeWords(this.said, (row) => shareOfQuery(this.map, place, row), one, place.row);
    tell(this.readout, this.map, place);
  }
}
