// The Look tab: every layer and head of a model on one input. The server is asked for what is shown, in pieces.

import { writeAddress } from "./address.js";
import { download, isAbort, post, stream, wordsOf } from "./api.js";
import { byId, say } from "./dom.js";
import { KINDS, layerTitle, plural, spokenHead } from "./format.js";
import { TokensView } from "./look/axes/tokens.js";
import { showLogitLens } from "./look/logit_lens.js";
import { bytesOf } from "./look/weights.js";
import { Chooser, modelList } from "./model_list.js";
import { Predictions } from "./look_predictions.js";
import { Neurons } from "./neurons.js";
import { Scores } from "./scores.js";

const PIECE = 400_000; // cells asked for at once
const ALIGNMENT = "alignment";
const MASK = "[MASK]";
const WORDING = { // by what the model does: names of the fields, and of the button
  translate: { text: "Text", target: "Translation, if you want to give one", placeholder: "Type a sentence to look into…", go: "Look" },
  embed: { text: "Text", target: "", placeholder: "Type a text to look into…", go: "Look" },
  write: { text: "Prompt", target: "Answer, if you want to give one", placeholder: "Type the beginning of a text…", go: "Write and look" },
};

const EXAMPLES = { translate: "we are eating bread", embed: "We are eating [MASK] because we are hungry.", write: "Once upon a time" }; // for models that bring none
let chooser, heads, scores, predictions, neurons;
let off = new Set(), whole = ""; // heads that are switched off, and what the whole model said
let asked = null; // the input that is shown
let report = null; // the server's answer: texts and panels
let looking;

export function startLook() {
  chooser = new Chooser("look", byId("look-model"), byId("look-to"), changeModel, () => modelList.models);
  scores = new Scores(byId("scores"));
  neurons = new Neurons(byId("neurons"));
  predictions = new Predictions(sampling, pointAtPlace);
  heads = new TokensView(byId("look-views"), {
    zoom: "always",
    fill: fillMap,
    onView: ({ panel, head, map }) => { scores.choose(panel, head, map, asked); neurons.choose(panel, head, map, asked); markSwitch(); },
    onError: (error) => { if (!isAbort(error)) say(byId("look-error"), wordsOf(error)); },
  });
  byId("look-form").addEventListener("submit", (event) => { event.preventDefault(); look(); });
  for (const id of ["look-text", "look-target", "look-pair"]) byId(id).addEventListener("keydown", submitOnEnter);
  for (const id of ["look-temperature", "look-top-p"]) byId(id).addEventListener("input", () => { nameSettings(); predictions.reshape(); });
  byId("look-hide").addEventListener("click", hideWord);
  document.querySelectorAll("[data-export]").forEach((button) => button.addEventListener("click", () => save(button)));
  heads.pointing.watch(({ row, column }) => { if (heads.view?.map) { scores.point(row); neurons.point(row, column); } });
  byId("look-switch").addEventListener("click", switchHead);
  byId("logit-lens").addEventListener("toggle", showLens);
  return heads.pointing;
}

/** The tab is opened: look at what a link says or what was translated, unless something is shown already. */
export function refreshLook(text, { text: linked, model, to, target } = {}) {
  if (linked !== undefined) {
    if (model) chooser.choose(model, to);
    [byId("look-text").value, byId("look-target").value] = [linked, target ?? ""];
    clear();
  }
  fitForm();
  if (!byId("look-text").value) byId("look-text").value = text || (chooser.model?.examples?.[0] ?? EXAMPLES[ability()]);
  if (!report && byId("look-text").value.trim() && chooser.model?.attention) look();
}

/** Look into a model: at once, where there is a text to look at. */
export function lookWith(id) {
  chooser.choose(id);
  clear();
  refreshLook("");
}

const ability = () => chooser.model?.ability ?? "translate";
const sampling = () => ({ temperature: Number(byId("look-temperature").value), top_p: Number(byId("look-top-p").value) });

function changeModel() {
  fitForm();
  if (report && ability() === "write") clear(); // it writes when it is told to
  else if (report && byId("look-text").value.trim()) look();
}

function clear() {
  report = heads.view = null;
  byId("look-views").hidden = true;
  byId("look-empty").hidden = false;
  predictions.hide();
}

/** The fields that the chosen model has use for. */
function fitForm() {
  const does = ability(), answers = chooser.model?.answers, { text, target, placeholder, go } = WORDING[does];
  byId("look-text-name").textContent = text;
  byId("look-target-name").textContent = target;
  byId("look-text").placeholder = placeholder;
  byId("look-target-field").hidden = !(does === "translate" || answers);
  byId("look-pair-field").hidden = does !== "embed";
  byId("look-writing").hidden = does !== "write";
  byId("look-hide").hidden = !(does === "embed" && chooser.model.predicts_tokens);
  byId("look-go").textContent = go;
  nameSettings();
}

function nameSettings() {
  const { temperature, top_p: mass } = sampling();
  document.querySelector("output[for=look-temperature]").value = temperature.toFixed(2);
  document.querySelector("output[for=look-top-p]").value = mass.toFixed(2);
}

/** Put [MASK] in place of what is marked in the text, or of the word at the cursor. */
function hideWord() {
  const box = byId("look-text"), text = box.value;
  let [start, end] = [box.selectionStart, box.selectionEnd];
  if (start === end) {
    while (start > 0 && /[\p{L}\p{N}]/u.test(text[start - 1])) start--;
    while (end < text.length && /[\p{L}\p{N}]/u.test(text[end])) end++;
  }
  box.setRangeText(MASK, start, end, "end");
  box.focus();
  look();
}

/** The shown head as the server names it; the word alignment is no head. */
const shownHead = () => (!heads.view || heads.view.panel.kind === ALIGNMENT ? "" : `${heads.view.panel.name}:${heads.view.head}`);

function markSwitch() {
  const button = byId("look-switch"), name = shownHead();
  button.hidden = !name;
  button.setAttribute("aria-pressed", off.has(name));
  button.textContent = off.has(name) ? "This head is off: switch it on" : "Switch this head off";
}

/** Switch the shown head off or on, and ask again: what the model says without it stands beside what it said. */
function switchHead() {
  const name = shownHead();
  if (!off.delete(name)) off.add(name);
  look({ again: true });
}

/** What the whole model said, while heads are switched off. */
function showOriginal(said) {
  const line = byId("look-original");
  if (!off.size) whole = said;
  line.hidden = !off.size;
  line.textContent = off.size ? `Without ${[...off].map(spokenHead).join("; ")}: ${said === whole ? "the same answer" : `“${said}”, with all heads “${whole}”`}` : "";
}

/** What every layer would have said, fetched when it is opened. */
async function showLens() {
  const place = byId("logit-lens-table"), of = asked;
  if (!byId("logit-lens").open || !of || place.shows === of) return;
  place.textContent = "Looking…";
  try {
    const found = await post("/api/look/logit-lens", of);
    if (of !== asked) return;
    showLogitLens(place, found);
    place.shows = of;
  } catch (error) {
    if (of === asked) place.textContent = wordsOf(error);
  }
}

/** What is asked of the model, by what it does. */
function question(text) {
  const target = byId("look-target-field").hidden ? "" : byId("look-target").value.trim();
  const base = { model: chooser.model.id, text, to: chooser.to, without: [...off] };
  if (ability() === "translate") return { ...base, target };
  if (ability() === "embed") return { ...base, pair: byId("look-pair").value.trim() };
  const whole = (id) => Math.trunc(Number(byId(id).value)) || 0;
  return { ...base, target, writing: { max_tokens: whole("look-tokens"), seed: whole("look-seed"), ...sampling() } };
}

/** Show in the maps what a place looked at, if it is a query of the shown layer. */
function pointAtPlace(place) {
  const side = ability() === "write" ? "target" : "source";
  if (heads.view?.panel.queries === side) heads.reveal(place);
}

function submitOnEnter(event) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  look();
}

async function look({ again = false } = {}) {
  if (!again) off.clear(); // another input is looked at with all heads
  looking?.abort();
  heads.loading?.abort();
  const { signal } = (looking = new AbortController());
  const does = ability(); // of this model; another may be chosen before the answer is here
  const text = does === "write" ? byId("look-text").value : byId("look-text").value.trim(); // a prompt may end in a space
  say(byId("look-error"), !chooser.model ? "There is no model to look into yet." : !text ? "Type a sentence to look at first." : "");
  if (!text || !chooser.model) return;
  const wish = question(text);
  byId("look-go").disabled = true;
  byId("look-empty").textContent = "Looking…";
  byId("look-views").dataset.state = "busy";
  try {
    if (wish.writing?.max_tokens && !wish.target && !off.size) await showWriting(wish, signal);
    show(await post("/api/look", { ...wish, layers: null }, signal), wish, does);
    byId("look-views").dataset.state = "done";
    byId("look-go").disabled = false;
    await Promise.all([
      predictions.show(report, wish, does),
      heads.atlas.load((panel) => post("/api/look", { ...wish, layers: [panel.name], side: 64 }, signal)),
    ]);
  } catch (error) {
    if (isAbort(error) || signal.aborted) return;
    byId("look-views").dataset.state = "error";
    if (!report) byId("look-views").hidden = true;
    if (byId("predictions").dataset.state === "busy") predictions.hide();
    say(byId("look-error"), wordsOf(error));
    byId("look-empty").textContent = "";
  }
  byId("look-go").disabled = false;
}

/** The text as it is written; the server keeps it, so that looking at it afterwards costs nothing more. */
async function showWriting(wish, signal) {
  byId("look-views").hidden = byId("look-empty").hidden = true;
  predictions.showStream(wish.text, "");
  for await (const event of stream("/api/look/stream", wish, signal)) {
    if (event.error || event.done) return; // what is wrong is said by the answer that follows
    if (!signal.aborted) predictions.showStream(wish.text, event.text);
  }
}

function show(answer, wish, does) {
  [report, asked] = [answer, wish];
  writeAddress("look", { model: wish.model, to: wish.to, text: wish.text, target: wish.target });
  byId("look-said").lang = wish.to;
  const panels = panelsOf(answer);
  byId("look-empty").hidden = panels.length > 0;
  byId("look-views").hidden = !panels.length;
  byId("look-said").textContent = does === "translate" ? answer.said : ""; // else it is part of the predictions
  showOriginal(answer.says);
  byId("logit-lens").hidden = !answer.has_lens;
  showLens();
  heads.show(panels);
}

/** The panels of an answer as views know them. */
function panelsOf({ texts, panels, alignment }) {
  const shown = (panel, title, about, badge) => ({ ...panel, title, about, badge, queryTexts: texts[panel.queries], keyTexts: texts[panel.keys] });
  const words = alignment ? [shown({ ...alignment, name: ALIGNMENT }, "Word alignment", "words", "between words")] : [];
  return [...words, ...panels.map((panel) => shown(panel, layerTitle(panel.name), KINDS[panel.kind], KINDS[panel.kind]))];
}

/** Fetch a map in pieces of rows, and show each as it comes. */
async function fillMap({ map, panel, head }, paint, signal) {
  const height = Math.max(1, Math.floor(PIECE / Math.max(map.columns, 1)));
  for (let row = 0; row < map.rows; row += height) {
    if (map.rows > height) byId("look-readout").textContent = `${plural(row, "row")} of ${map.rows} are here…`;
    const answer = await post("/api/look", { ...asked, layers: [panel.name], heads: [head], rows: [row, Math.min(map.rows, row + height)] }, signal);
    for (const piece of answer.pieces) map.put(piece.rows[0], bytesOf(piece.data));
    paint();
  }
}

async function save(button) {
  const status = byId("export-status");
  const isWhole = byId("export-scope").value === "all";
  const head = isWhole || heads.view.panel.kind === ALIGNMENT ? null : heads.view.head;
  status.textContent = "Drawing…";
  button.disabled = true;
  try {
    const name = await download("/api/look/export", { ...asked, format: button.dataset.export, layer: isWhole ? "*" : heads.view.panel.name, head });
    status.textContent = `Saved as ${name}`;
  } catch (error) {
    status.textContent = wordsOf(error);
  }
  button.disabled = false;
}
