// The Translate tab: the translation as it is produced, then what the model looked at, what else it could have said,
// and how it searched.

import { isAbort, post, stream, wordsOf } from "./api.js";
import { byId, debounce, make, say } from "./dom.js";
import { languageName, milliseconds, signed } from "./format.js";
import { Matrix } from "./matrix.js";
import { Pointing, shareOfKey, shareOfQuery } from "./pointing.js";
import { Chooser } from "./shelf.js";
import { Ribbons } from "./threads.js";
import { BeamTree } from "./tree.js";
import { WeightMap } from "./weights.js";
import { asColumn, asRow, fillWords, listenToWords, shadeWords, tell } from "./words.js";

export const EXAMPLES = ["we are eating bread", "Lucas is visiting Rio in December"]; // the demo's phrasebook knows these
const KEPT = "translate-text"; // where this tab remembers the text
const LONG = 40; // words from which the alignment is shown as a matrix alone

const TRUNCATED = "The translation stops here because it reached its length limit, so its end may be missing. Shorter sentences avoid this.";

const pointing = new Pointing();
let box, output, chooser, matrix, ribbons, tree, running, answer, map;

export function startTranslate() {
  [box, output] = [byId("translate-text"), byId("translation")];
  chooser = new Chooser("translate", byId("translate-model"), byId("translate-to"), () => { nameSource(); translate(); });
  matrix = new Matrix(byId("translate-matrix"), pointing, { label: "Word alignment" });
  ribbons = new Ribbons(byId("ribbons"), pointing);
  tree = new BeamTree();
  box.value = sessionStorage.getItem(KEPT) ?? "";
  const soon = debounce(400, translate);
  box.addEventListener("input", () => { running?.abort(); sessionStorage.setItem(KEPT, box.value); soon(); });
  byId("translate-copy").addEventListener("click", copy);
  byId("alignment-card").addEventListener("pointerleave", () => { if (!pointing.held) pointing.release(); });
  output.addEventListener("pointerleave", () => { if (!pointing.held) pointing.release(); });
  listenToWords(byId("source-words"), pointing, asColumn);
  for (const list of [byId("target-words"), output]) listenToWords(list, pointing, asRow);
  pointing.watch(light);
  byId("examples").append("Try ", ...EXAMPLES.map(exampleButton));
  return pointing;
}

/** Models are there: show their languages, and translate what is in the box. */
export function refreshTranslate() {
  nameSource();
  const isDemo = chooser.model?.id === "demo";
  if (!box.value && isDemo && sessionStorage.getItem(KEPT) === null) box.value = EXAMPLES[0];
  if (box.value.trim() && !answer) translate();
}

export function translateWith(id, text = "") {
  chooser.choose(id);
  if (text) box.value = text;
  sessionStorage.setItem(KEPT, box.value);
  nameSource();
  translate();
}

export const currentText = () => box.value.trim();

function nameSource() {
  const source = chooser.model?.source;
  byId("translate-source").textContent = source ? languageName(source) : "Text";
  byId("examples").hidden = source !== "en" || Boolean(box.value.trim());
}

async function translate() {
  running?.abort();
  const text = box.value.trim();
  byId("examples").hidden = Boolean(text) || chooser.model?.source !== "en";
  if (!text || !chooser.model) { clear(); return; }
  const { signal } = (running = new AbortController());
  const request = { model: chooser.model.id, text, to: chooser.to, beam: 4, n_best: 4, search: true, attention: true };
  setState("busy");
  try {
    await showStream(request, signal);
    showAnswer(await post("/api/translate", request, signal));
  } catch (error) {
    if (isAbort(error) || signal.aborted) return;
    clear("error");
    say(byId("translate-error"), wordsOf(error));
  }
}

function setState(state) {
  output.dataset.state = state;
  output.setAttribute("aria-busy", state === "busy");
  if (state !== "error") say(byId("translate-error"), "");
}

async function showStream(request, signal) {
  for await (const event of stream("/api/translate/stream", request, signal)) {
    if (event.error || event.done) return; // the whole answer follows, or says in words what is wrong
    if (!signal.aborted) output.replaceChildren(event.text);
  }
}

function clear(state = "empty") {
  answer = map = null;
  output.replaceChildren();
  setState(state);
  byId("findings").hidden = true;
  byId("translate-empty").hidden = false;
  byId("translate-copy").hidden = true;
  byId("translate-time").textContent = "";
  say(byId("translate-warning"), "");
}

function showAnswer(full) {
  answer = full;
  setState("done");
  byId("findings").hidden = false;
  byId("translate-empty").hidden = true;
  byId("translate-copy").hidden = false;
  byId("n-best").replaceChildren(...full.translations.map(nBestEntry));
  byId("n-best-card").hidden = full.translations.length < 2;
  byId("tree-card").hidden = !full.search?.nodes.length;
  choose(0);
  const sentences = full.source_tokens.filter((token) => token === "</s>").length;
  byId("tree-title").textContent = sentences > 1 ? "How it searched, in the first sentence" : "How it searched";
  if (full.search?.nodes.length) tree.show(full.search);
}

/** Show one of the translations and its alignment. */
function choose(rank) {
  const chosen = answer.translations[rank];
  const words = chosen.words.length ? chosen.words : ["(nothing)"];
  map = chosen.attention ? WeightMap.of(chosen.words, answer.source_words, chosen.attention) : null;
  byId("alignment-card").hidden = !map;
  byId("findings").classList.toggle("no-alignment", !map);
  [...byId("n-best").querySelectorAll("button")].forEach((button, index) => button.setAttribute("aria-pressed", index === rank));
  fillWords(output, words);
  keepSpaces(output, chosen.text);
  const facts = [milliseconds(answer.milliseconds), `score ${signed(chosen.score, 3)}`, ...(map ? [] : ["this model has no attention to show"])];
  byId("translate-time").textContent = facts.join(" · ");
  say(byId("translate-warning"), chosen.truncated ? TRUNCATED : "");
  if (map) showAlignment();
}

/** Between the words, what the text has between them: spaces and line breaks. */
function keepSpaces(list, text) {
  const gaps = text.trim().match(/\s+/g) ?? [];
  [...list.children].forEach((word, index) => word.after(gaps[index] ?? ""));
}

function showAlignment() {
  const isLong = Math.max(map.rows, map.columns) > LONG;
  byId("ribbons").classList.toggle("long", isLong);
  fillWords(byId("source-words"), map.keys);
  fillWords(byId("target-words"), map.queries);
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
  bar.style.setProperty("--share", Math.exp(Math.min(0, translation.score - best)).toFixed(3));
  const button = make("button", { type: "button", "aria-pressed": rank === 0 },
    make("span", { className: "said", textContent: translation.text || "(nothing)", dir: "auto" }),
    make("span", { className: "score", textContent: signed(translation.score, 3), title: "mean log-probability of a token" }), bar);
  button.addEventListener("click", () => choose(rank));
  return make("li", { data: { rank } }, button);
}

function exampleButton(sentence) {
  const button = make("button", { type: "button", className: "example", textContent: sentence });
  button.addEventListener("click", () => { box.value = sentence; sessionStorage.setItem(KEPT, sentence); translate(); box.focus(); });
  return button;
}

async function copy() {
  const button = byId("translate-copy");
  const done = await navigator.clipboard.writeText(output.textContent).then(() => "Copied", () => "Could not copy");
  button.textContent = done;
  setTimeout(() => { button.textContent = "Copy"; }, 1600);
}
