// The Compare tab: one sentence, two models, side by side, with the words that differ marked; pointing at a source word in one points at it in both.

import { writeAddress } from "./address.js";
import { isAbort, post, wordsOf } from "./api.js";
import { byId, debounce, fillSelect, make, say } from "./dom.js";
import { languageName, milliseconds, modelLabel, signed } from "./format.js";
import { Matrix } from "./look/matrix.js";
import { NOTHING, Pointing, shareOfKey, shareOfQuery } from "./look/pointing.js";
import { modelCalled, modelList, watchModels } from "./model_list.js";
import { examplesOf } from "./translate.js";
import { WeightMap } from "./look/weights.js";
import { asColumn, asRow, fillWords, listenToWords, shadeWords, tell } from "./look/words.js";

let contenders, running;

export function startCompare() {
  contenders = [new Contender(0), new Contender(1)];
  byId("contenders").replaceChildren(...contenders.map((each) => each.element));
  contenders.forEach((each, side) => each.pointing.watch((place) => link(contenders[1 - side], each, place)));
  byId("compare-text").addEventListener("input", debounce(400, compare));
  byId("compare-to").addEventListener("change", compare);
  watchModels(fill);
  return contenders.map((each) => each.pointing);
}

/** The tab is opened: compare what a link says, or what was translated. */
export function refreshCompare(text, { text: linked, first, second, to } = {}) {
  if (linked !== undefined) {
    byId("compare-text").value = linked;
    [first, second].forEach((id, side) => { if (modelCalled(id)) contenders[side].select.value = id; });
    fillTargets(to);
  }
  if (!byId("compare-text").value) byId("compare-text").value = text || (examplesOf(modelCalled(contenders[0].select.value))[0] ?? "");
  if (linked !== undefined || (byId("compare-text").value.trim() && !contenders[0].answer)) compare();
}

function fill() {
  const options = modelList.translators.map((model) => [model.id, modelLabel(model)]);
  const pair = twoThatFit(contenders.map((each) => each.select.value));
  contenders.forEach((each, side) => fillSelect(each.select, options, pair[side]));
  fillTargets();
}

const shareTargets = (a, b) => a.source === b.source && a.targets.some((code) => b.targets.includes(code));

/** Two different models that translate the same languages: those chosen, or the first that do; else what there is. */
function twoThatFit(chosen) {
  const models = modelList.translators, known = chosen.map(modelCalled);
  if (known[0] && known[1] && known[0] !== known[1]) return chosen;
  for (const one of models) {
    const other = models.find((each) => each !== one && shareTargets(one, each));
    if (other) return [one.id, other.id];
  }
  return [models[0]?.id, (models[1] ?? models[0])?.id];
}

/** A model was chosen on a side: the other side takes another one if it had the same. */
function chooseSide(side) {
  const own = contenders[side], other = contenders[1 - side];
  if (own.select.value === other.select.value) {
    const model = modelCalled(own.select.value), rest = modelList.translators.filter((each) => each !== model);
    other.select.value = (rest.find((each) => each.id === own.before) ?? rest.find((each) => shareTargets(model, each)) ?? rest[0] ?? model).id;
  }
  for (const each of contenders) each.before = each.select.value;
  compare();
}

/** Offer the languages that both models write; what keeps them from being compared is answered in words. */
function fillTargets(to = byId("compare-to").value) {
  const models = contenders.map((each) => modelCalled(each.select.value));
  contenders.forEach((each, side) => { each.family.textContent = models[side]?.title ?? ""; });
  const shared = (models[0]?.targets ?? []).filter((code) => models[1].targets.includes(code));
  fillSelect(byId("compare-to"), shared.map((code) => [code, languageName(code)]), to);
  if (!models[0]) return "";
  if (models[0] === models[1]) return `${models[0].id} is the only translator here. Train another one, or start the server with a second -m FOLDER.`;
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
  const [first, second] = contenders.map((each) => each.select.value);
  writeAddress("compare", text ? { first, second, to: byId("compare-to").value, text } : {});
  say(byId("compare-error"), mismatch);
  byId("compare-verdict").textContent = "";
  if (!text || mismatch || !modelList.translators.length) { contenders.forEach((each) => each.clear()); return; }
  // One after another, so that neither slows the other down.
  for (const each of contenders) await each.translate(text, byId("compare-to").value, signal);
  if (signal.aborted) return;
  byId("compare-verdict").textContent = verdict(...contenders);
  markDifferences(...contenders);
}

function verdict(a, b) {
  if (!a.answer || !b.answer || a.select.value === b.select.value) return "";
  const says = a.best.text === b.best.text ? "Both say the same." : "They say different things.";
  const [fast, slow] = a.answer.milliseconds <= b.answer.milliseconds ? [a, b] : [b, a];
  const times = slow.answer.milliseconds / Math.max(fast.answer.milliseconds, 0.01);
  return times < 1.15 ? `${says} They took about as long.` : `${says} ${fast.select.value} was ${times.toFixed(1)} times as fast.`;
}

/** Mark the words that only one of them says: those outside the longest common subsequence. */
function markDifferences(a, b) {
  if (!a.answer || !b.answer) return;
  const [one, other] = [a.best.words, b.best.words];
  const lengths = Array.from({ length: one.length + 1 }, () => new Uint16Array(other.length + 1));
  for (let i = one.length - 1; i >= 0; i--)
    for (let j = other.length - 1; j >= 0; j--)
      lengths[i][j] = one[i] === other[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
  const differs = (contender, index) => contender.said.querySelector(`[data-index="${index}"]`)?.classList.add("differs");
  let [i, j] = [0, 0];
  while (i < one.length || j < other.length) {
    if (i < one.length && j < other.length && one[i] === other[j]) { i++; j++; }
    else if (j === other.length || (i < one.length && lengths[i + 1][j] >= lengths[i][j + 1])) differs(a, i++);
    else differs(b, j++);
  }
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
    this.select.addEventListener("change", () => chooseSide(side));
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
    this.clock.textContent = modelCalled(this.select.value)?.loaded ? "translating…" : "loading the model…";
    try {
      this.show(await post("/api/translate", { model: this.select.value, text, to, attention: true }, signal));
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
    fillWords(this.sources, answer.source_words, answer.unknown_at);
    fillWords(this.said, words.length ? words : ["(nothing)"]);
    [this.sources.lang, this.said.lang] = [answer.from, answer.to];
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
