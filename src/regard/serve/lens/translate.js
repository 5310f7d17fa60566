// The Translate tab: the translation as it is produced, then what the model looked at, what else it could have said,
// and how it searched. One request brings all of it.

import { writeAddress } from "./address.js";
import { isAbort, post, Problem, stream, wordsOf } from "./api.js";
import { byId, copyButton, debounce, make, say } from "./dom.js";
import { count, languageName, milliseconds, percent, plural, signed } from "./format.js";
import { note, startHistory } from "./history.js";
import { AUTO, Languages } from "./languages.js";
import { Matrix } from "./look/matrix.js";
import { Pointing, shareOfKey, shareOfQuery } from "./look/pointing.js";
import { modelList } from "./model_list.js";
import { speakingButton } from "./speaking.js";
import { Ribbons } from "./look/threads.js";
import { BeamTree } from "./tree.js";
import { WeightMap } from "./look/weights.js";
import { asColumn, asRow, fillText, fillWords, listenToWords, shadeWords, tell } from "./look/words.js";

const EXAMPLES = ["we are eating bread", "Lucas is visiting Rio in December"]; // for models that bring none of their own
const KEPT = "translate-text"; // where this tab remembers the text
const KEPT_NUMBERS = "translate-numbers"; // and whether numbers are shown
const KEPT_TERMS = "translate-glossary"; // and the terms
const MOST_NAMED = 8; // unknown words
const LONG = 40; // words from which the alignment is shown as a matrix alone

const TRUNCATED = "The translation stops here because it reached its length limit, so its end may be missing. Shorter sentences avoid this.";

const SURE = [[0.9, "very sure"], [0.75, "fairly sure"], [0.5, "not quite sure"], [0, "unsure"]]; // from a quality on
const LIKELY = [[0.9, "nearly as likely"], [0.6, "less likely"], [0, "much less likely"]]; // from a share of the best on
const DOUBTFUL = 0.3; // the doubt from which a word is shaded
const WRONG = {
  cut: "Much of the text was not looked at, and the translation is short: a part of it may be missing.",
  hallucinated: "The translation looks at little of the text: it may say something else.",
  repeated: "The translation repeats itself.",
};

const pointing = new Pointing();
let box, output, languages, matrix, ribbons, tree, running, answer, shown, map;

export function startTranslate() {
  [box, output] = [byId("translate-text"), byId("translation")];
  const selects = { source: byId("translate-from"), target: byId("translate-to"), model: byId("translate-model") };
  languages = new Languages("translate", selects, () => { answer = null; translate(); });
  matrix = new Matrix(byId("translate-matrix"), pointing, { label: "Word alignment" });
  ribbons = new Ribbons(byId("ribbons"), pointing);
  tree = new BeamTree();
  box.value = sessionStorage.getItem(KEPT) ?? "";
  const soon = debounce(400, translate);
  box.addEventListener("input", () => { running?.abort(); keepText(); if (box.value.trim()) setState("busy"); soon(); });
  byId("translate-html").addEventListener("change", translate);
  byId("translate-glossary").value = sessionStorage.getItem(KEPT_TERMS) ?? "";
  byId("translate-terms").open = Boolean(byId("translate-glossary").value);
  byId("translate-glossary").addEventListener("input", () => { running?.abort(); sessionStorage.setItem(KEPT_TERMS, byId("translate-glossary").value); soon(); });
  byId("translate-swap").addEventListener("click", swap);
  speakingButton(byId("translate-speak"), (text) => { setText([box.value.trim(), text].filter(Boolean).join(" ")); translate(); }, (words) => say(byId("translate-error"), words));
  startHistory(({ text, from, to }) => { setText(text); languages.choose({ from, to, model: "" }); translate(); scrollTo({ top: 0 }); });
  byId("translate-clear").addEventListener("click", () => { setText(""); translate(); box.focus(); });
  byId("translate-numbers").addEventListener("click", () => showNumbers(sessionStorage.getItem(KEPT_NUMBERS) === null));
  showNumbers(sessionStorage.getItem(KEPT_NUMBERS) !== null);
  copyButton(byId("translate-copy"), () => shown.text);
  copyButton(byId("translate-link"), () => location.href);
  byId("correction").addEventListener("submit", (event) => { event.preventDefault(); sendCorrection(); });
  byId("alignment-card").addEventListener("pointerleave", () => { if (!pointing.held) pointing.release(); });
  output.addEventListener("pointerleave", () => { if (!pointing.held) pointing.release(); });
  listenToWords(byId("source-words"), pointing, asColumn);
  for (const list of [byId("target-words"), output]) listenToWords(list, pointing, asRow);
  pointing.watch(light);
  return pointing;
}

/** Models are there: show their languages, and translate what is in the box, or in a link that was opened. */
export function refreshTranslate({ text, from, to, model, format } = {}) {
  if (text !== undefined) {
    setText(text);
    languages.choose({ from, to, model: model ?? "" });
    byId("translate-html").checked = format === "html";
    answer = null;
  }
  if (!box.value && sessionStorage.getItem(KEPT) === null) setText(examples()[0] ?? "");
  if (box.value.trim() && !answer) translate();
  else { fitDesk(); keepAddress(); }
}

/** Translate with a model: what is in the box or, for a model that was just trained, a sentence it has never seen. */
export function translateWith(id, isNew = false) {
  languages.choose({ model: id });
  if (isNew || !box.value.trim()) setText(examples()[0] ?? box.value);
  translate();
}

/** Show the numbers behind the words, or hide them. */
function showNumbers(isOn) {
  if (isOn) sessionStorage.setItem(KEPT_NUMBERS, "yes");
  else sessionStorage.removeItem(KEPT_NUMBERS);
  byId("panel-translate").classList.toggle("with-numbers", isOn);
  byId("translate-numbers").setAttribute("aria-pressed", isOn);
}

export const currentText = () => box.value.trim();

/** Sentences to try a translator with. */
export function examplesOf(model) {
  const own = model?.id === "demo" ? [] : model?.examples ?? [];
  return own.length ? own : model?.source === "en" ? EXAMPLES : [];
}

const examples = () => examplesOf(languages.chosen);

function setText(text) {
  box.value = text;
  keepText();
}

function keepText() {
  sessionStorage.setItem(KEPT, box.value);
  fitDesk();
}

function keepAddress() {
  const text = box.value.trim();
  writeAddress("translate", text ? { ...languages.values, format: byId("translate-html").checked ? "html" : "", text } : {});
}

/** All that depends on the text and the languages, whether translated or not. */
function fitDesk() {
  const most = modelList.limits.characters, length = [...box.value].length;
  byId("translate-count").textContent = `${count(length)} / ${count(most)}`;
  byId("translate-count").classList.toggle("bad", length > most);
  byId("translate-clear").hidden = !box.value;
  byId("translate-link").hidden = !box.value.trim();
  const offered = box.value.trim() ? [] : examples();
  byId("examples").hidden = !offered.length;
  byId("examples").replaceChildren("Try ", ...offered.map(exampleButton));
  const reason = languages.whyNoSwap(answer?.from);
  byId("translate-swap").setAttribute("aria-disabled", Boolean(reason));
  byId("translate-swap").title = reason || "Swap the languages";
  box.lang = languages.from === AUTO ? answer?.from ?? "" : languages.from;
  output.lang = languages.to;
}

function swap() {
  const reason = languages.whyNoSwap(answer?.from);
  say(byId("translate-error"), reason);
  if (reason) return;
  languages.swap(answer?.from);
  if (shown) setText(shown.text);
  answer = null;
  translate();
}

async function translate() {
  running?.abort();
  const { signal } = (running = new AbortController());
  const text = box.value.trim() ? box.value : "";
  note.cancel();
  fitDesk();
  keepAddress();
  if (!text || !modelList.translators.length) { clear(); return; }
  const format = byId("translate-html").checked ? "html" : "text";
  setState("busy");
  try {
    await follow({ ...languages.wish, text, format, glossary: glossary(), n_best: 4, search: true, attention: true, quality: true }, signal);
  } catch (error) {
    if (isAbort(error) || signal.aborted) return;
    clear("error");
    say(byId("translate-error"), wordsOf(error));
  }
}

/** The terms as lines of source TAB target; a keyboard has no TAB in a page, so " = " stands for it. */
const glossary = () => byId("translate-glossary").value.replace(/ *= */g, "\t");

/** Show the translation as it grows, then all that led to it. */
async function follow(request, signal) {
  for await (const event of stream("/api/translate/stream", request, signal)) {
    if (signal.aborted) return;
    if (event.error) throw new Problem(event.error);
    if (event.loading) setState("loading", `Loading the model ${event.loading}…`);
    else if (event.done) showAnswer(event.answer);
    else setState("busy", event.text);
  }
}

function setState(state, text) {
  output.dataset.state = state;
  output.setAttribute("aria-busy", ["busy", "loading"].includes(state));
  if (text !== undefined) output.replaceChildren(text);
  if (state !== "error") say(byId("translate-error"), "");
}

function clear(state = "empty") {
  answer = map = shown = null;
  output.replaceChildren();
  setState(state);
  byId("findings").hidden = true;
  byId("translate-empty").hidden = false;
  byId("translate-copy").hidden = byId("translate-numbers").hidden = true;
  byId("translate-time").textContent = "";
  for (const place of ["translate-warning", "translate-unknown"]) say(byId(place), "");
  byId("translate-memory").hidden = byId("translate-correct").hidden = true;
  fitDesk();
}

function showAnswer(full) {
  if (!full.translations.length) { clear(); return; }
  answer = full;
  setState("done");
  byId("translate-copy").hidden = byId("translate-numbers").hidden = false;
  const hasOthers = full.translations.length > 1;
  byId("n-best").replaceChildren(...(hasOthers ? full.translations.map(nBestEntry) : []));
  byId("n-best-card").hidden = !hasOthers;
  byId("tree-card").hidden = !full.search?.nodes.length;
  choose(0);
  const sights = ["alignment-card", "n-best-card", "tree-card"];
  byId("findings").hidden = sights.every((id) => byId(id).hidden);
  byId("translate-empty").hidden = true;
  sayUnknown([...new Set(full.unknown.map(({ word }) => word).filter((word) => /[\p{L}\p{N}]/u.test(word)))]); // not of signs
  byId("translate-memory").hidden = !full.memory.length;
  byId("translate-memory").replaceChildren(...full.memory.map(memoryEntry));
  if (!examples().includes(full.source.trim())) note({ text: full.source, said: full.translations[0].text, from: full.from, to: full.to });
  const sentences = full.source_tokens.filter((token) => token === "</s>").length;
  byId("tree-title").textContent = sentences > 1 ? "How it searched, in the first sentence" : "How it searched";
  if (full.search?.nodes.length) tree.show(full.search);
  fitDesk();
}

function sayUnknown(unknown) {
  const place = byId("translate-unknown");
  const words = unknown.slice(0, MOST_NAMED).flatMap((word, index) => [index ? ", " : "", make("b", { textContent: word, lang: answer.from })]);
  const small = answer.model === "demo" ? " It is the small built-in one, which knows the sentences of a phrasebook and little else." : "";
  const more = unknown.length > MOST_NAMED ? ` and ${plural(unknown.length - MOST_NAMED, "other word")}` : "";
  place.hidden = !unknown.length;
  if (unknown.length) place.replaceChildren("This model does not know ", ...words, `${more}.${small}`);
}

/** Show one of the translations and its alignment. */
function choose(rank) {
  shown = answer.translations[rank];
  map = shown.attention ? WeightMap.of(shown.words, answer.source_words, shown.attention) : null;
  byId("alignment-card").hidden = !map;
  byId("findings").classList.toggle("no-alignment", !map);
  [...byId("n-best").querySelectorAll("button")].forEach((button, index) => button.setAttribute("aria-pressed", index === rank));
  fillText(output, shown.words, shown.text || "(nothing)");
  for (const index of shown.terms) output.querySelector(`[data-index="${index}"]`)?.classList.add("term");
  shadeDoubts(shown.doubts ?? []);
  byId("translate-time").replaceChildren(...facts().map((fact) => (fact instanceof Node ? fact : make("span", { textContent: fact }))));
  const wrong = (shown.flags ?? []).filter((flag) => !(shown.truncated && flag === "cut")).map((flag) => WRONG[flag]);
  say(byId("translate-warning"), [...(shown.truncated ? [TRUNCATED] : []), ...wrong].join(" "));
  offerCorrection();
  if (map) showAlignment();
}

/** Shade the words that the model was not sure of. */
function shadeDoubts(doubts) {
  doubts.forEach((doubt, index) => {
    const word = output.querySelector(`[data-index="${index}"]`);
    if (!word || doubt < DOUBTFUL) return;
    word.classList.add("doubtful");
    word.style.setProperty("--doubt", doubt.toFixed(2));
    word.title = `${word.textContent}: the model doubts this word, ${percent(doubt)}`;
  });
}

function offerCorrection() {
  byId("translate-correct").hidden = !answer.model || byId("translate-html").checked;
  byId("translate-correct").open = false;
  byId("correction-text").value = shown.text;
  byId("correction-text").lang = answer.to;
  say(byId("correction-status"), "");
}

/** Send the corrected translation to the server, which keeps it as data for training. */
async function sendCorrection() {
  const better = byId("correction-text").value.trim();
  if (!better || better === shown.text.trim()) { say(byId("correction-status"), "Change the translation first."); return; }
  try {
    await post("/suggest", { q: answer.source, s: better, source: answer.from, target: answer.to });
    say(byId("correction-status"), "Kept for training.");
  } catch (error) {
    say(byId("correction-status"), wordsOf(error));
  }
}

function facts() {
  const { model, detected, from, to, pivot } = answer;
  const language = detected ? [`${languageName(from)} (detected)`] : [];
  const quality = shown.quality === undefined ? [] : [sureness(shown.quality), number(`quality ${percent(shown.quality)}`)];
  if (pivot) return [...language, `through ${languageName(pivot.language)}${pivot.text ? `: “${pivot.text}”` : ""}`, milliseconds(answer.milliseconds), ...quality];
  if (!model) return [...language, `this is in ${languageName(to)} already`];
  const score = shown.score === null ? [] : [number(`score ${signed(shown.score, 3)}`), ...(map ? [] : ["this model has no attention to show"])];
  return [...language, `by ${model}`, milliseconds(answer.milliseconds), ...quality, ...score];
}

/** How sure the model is, in words. */
const sureness = (quality) => SURE.find(([least]) => quality >= least)[1];

/** A number that is shown to those who ask for numbers. */
const number = (words) => make("span", { className: "numeric", textContent: words });

function showAlignment() {
  const isLong = Math.max(map.rows, map.columns) > LONG;
  byId("ribbons").classList.toggle("long", isLong);
  fillWords(byId("source-words"), map.keys, answer.unknown_at);
  fillWords(byId("target-words"), map.queries);
  [byId("source-words").lang, byId("target-words").lang] = [answer.from, answer.to];
  pointing.release();
  matrix.show(map);
  ribbons.show(isLong ? null : map);
}

function light(place) {
  if (!map) return;
  const one = () => 1;
  shadeWords(byId("source-words"), (column) => shareOfKey(map, place, column), one, place.column);
  for (const list of [byId("target-words"), output]) shadeWords(list, (row) => shareOfQuery(map, place, row), one, place.row);
  tell(byId("translate-readout"), map, place);
}

function nBestEntry(translation, rank) {
  const best = answer.translations[0].score;
  const bar = make("span", { className: "likelihood", "aria-hidden": "true" });
  const share = Math.exp(Math.min(0, translation.score - best));
  bar.style.setProperty("--share", share.toFixed(3));
  const button = make("button", { type: "button", "aria-pressed": rank === 0 },
    make("span", { className: "said", textContent: translation.text || "(nothing)", dir: "auto", lang: answer.to }),
    make("span", { className: "score" }, rank ? LIKELY.find(([least]) => share >= least)[1] : "its choice", make("span", { className: "numeric", textContent: signed(translation.score, 3) })), bar);
  button.addEventListener("click", () => choose(rank));
  return make("li", { data: { rank } }, button);
}

/** A remembered translation: how similar its source is, what differs, and what it was translated as. */
function memoryEntry({ similarity, changes, target }) {
  const tags = { same: "span", gone: "del", new: "ins" };
  const parts = changes.flatMap(({ kind, text }) => [make(tags[kind], { textContent: text }), " "]);
  return make("li", {},
    make("span", { className: "score", textContent: `${Math.floor(100 * similarity)} %`, title: "similarity of the source" }), " ",
    make("span", { className: "remembered", lang: answer.from }, ...parts), "→ ",
    make("span", { className: "said", textContent: target, lang: answer.to, dir: "auto" }));
}

function exampleButton(sentence) {
  const button = make("button", { type: "button", className: "example", textContent: sentence, lang: languages.chosen?.source ?? "" });
  button.addEventListener("click", () => { setText(sentence); translate(); box.focus(); });
  return button;
}
