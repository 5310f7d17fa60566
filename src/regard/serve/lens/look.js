// The Look tab: every layer and head of a model on one input. The server is asked for what is shown, in pieces.

import { writeAddress } from "./address.js";
import { download, isAbort, post, stream, wordsOf } from "./api.js";
import { Atlas } from "./atlas.js";
import { byId, calm, say } from "./dom.js";
import { Foretold } from "./foretold.js";
import { KINDS, plural } from "./format.js";
import { Matrix } from "./matrix.js";
import { Pointing } from "./pointing.js";
import { Scores } from "./scores.js";
import { Chooser, shelf } from "./shelf.js";
import { Threads } from "./threads.js";
import { bytesOf, WeightMap } from "./weights.js";
import { tell } from "./words.js";

const PIECE = 400_000; // cells asked for at once
const LONG = 32; // tokens from which the matrix takes the whole width
const VERY_LONG = 160; // tokens from which rows are scaled to their peaks at first
const ALIGNMENT = "alignment";
const MASK = "[MASK]";
const WORDING = { // by what the model does: names of the fields, and of the button
  translate: { text: "Text", target: "Translation, if you want to give one", placeholder: "Type a sentence to look into…", go: "Look" },
  embed: { text: "Text", target: "", placeholder: "Type a text to look into…", go: "Look" },
  write: { text: "Prompt", target: "Answer, if you want to give one", placeholder: "Type the beginning of a text…", go: "Write and look" },
};

const pointing = new Pointing();
let chooser, atlas, matrix, threads, scores, foretold;
let asked = null; // what the sight is of
let sight = null; // the server's answer: texts and panels
let views = []; // every { panel, head } that can be chosen
let view = null; // the one that is shown, with its `map`
let looking, loading;

export function startLook() {
  chooser = new Chooser("look", byId("look-model"), byId("look-to"), changeModel, () => shelf.models);
  matrix = new Matrix(byId("look-matrix"), pointing, { zoom: "always" });
  threads = new Threads(byId("look-threads"), pointing);
  scores = new Scores(byId("scores"));
  foretold = new Foretold(drawing, pointAtPlace);
  atlas = new Atlas((panel, head) => {
    choose(views.find((each) => each.panel === panel && each.head === head));
    byId("stage").scrollIntoView({ block: "start", behavior: calm.matches ? "auto" : "smooth" });
  });
  byId("look-form").addEventListener("submit", (event) => { event.preventDefault(); look(); });
  for (const id of ["look-text", "look-target", "look-pair"]) byId(id).addEventListener("keydown", submitOnEnter);
  for (const id of ["look-temperature", "look-top-p"]) byId(id).addEventListener("input", () => { nameSettings(); foretold.reshape(); });
  byId("look-hide").addEventListener("click", hideWord);
  byId("relative").addEventListener("change", paint);
  byId("view-previous").addEventListener("click", () => step(-1));
  byId("view-next").addEventListener("click", () => step(1));
  byId("stage").addEventListener("pointerleave", () => { if (!pointing.held) pointing.release(); });
  document.querySelectorAll("[data-export]").forEach((button) => button.addEventListener("click", () => save(button)));
  pointing.watch((place) => { if (view?.map) { tell(byId("look-readout"), view.map, place); scores.point(place.row); } });
  return pointing;
}

/** The tab is opened: look at what a link says or what was translated, unless something is shown already. */
export function refreshLook(text, { text: linked, model, to, target } = {}) {
  if (linked !== undefined) {
    if (model) chooser.choose(model, to);
    [byId("look-text").value, byId("look-target").value] = [linked, target ?? ""];
    clear();
  }
  fitForm();
  if (!byId("look-text").value) byId("look-text").value = text;
  if (!sight && byId("look-text").value.trim() && chooser.model?.attention && ability() !== "write") look();
}

/** Look into a model: at once, where there is a text to look at. */
export function lookWith(id) {
  chooser.choose(id);
  clear();
  refreshLook(chooser.model?.examples?.[0] ?? "");
}

const ability = () => chooser.model?.ability ?? "translate";
const drawing = () => ({ temperature: Number(byId("look-temperature").value), top_p: Number(byId("look-top-p").value) });

function changeModel() {
  fitForm();
  if (sight && ability() === "write") clear(); // it writes when it is told to
  else if (sight && byId("look-text").value.trim()) look();
}

function clear() {
  sight = view = null;
  byId("look-views").hidden = true;
  byId("look-empty").hidden = false;
  foretold.hide();
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
  byId("look-hide").hidden = !(does === "embed" && chooser.model.foretells);
  byId("look-go").textContent = go;
  nameSettings();
}

function nameSettings() {
  const { temperature, top_p: mass } = drawing();
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

/** What is asked of the model, by what it does. */
function question(text) {
  const target = byId("look-target-field").hidden ? "" : byId("look-target").value.trim();
  const base = { model: chooser.model.id, text, to: chooser.to };
  if (ability() === "translate") return { ...base, target };
  if (ability() === "embed") return { ...base, pair: byId("look-pair").value.trim() };
  const whole = (id) => Math.trunc(Number(byId(id).value)) || 0;
  return { ...base, target, writing: { max_tokens: whole("look-tokens"), seed: whole("look-seed"), ...drawing() } };
}

/** Show in the maps where the model looked from a place, if the shown layer has it. */
function pointAtPlace(place) {
  const side = ability() === "write" ? "target" : "source";
  if (view?.panel.queries !== side) return;
  pointing.move({ row: place, column: null });
  threads.reveal(place);
  matrix.reveal(pointing.place);
}

function submitOnEnter(event) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  look();
}

async function look() {
  looking?.abort();
  loading?.abort();
  const { signal } = (looking = new AbortController());
  const text = ability() === "write" ? byId("look-text").value : byId("look-text").value.trim(); // a prompt may end in a space
  say(byId("look-error"), !chooser.model ? "There is no model to look into yet." : !text ? "Type a sentence to look at first." : "");
  if (!text || !chooser.model) return;
  const wish = question(text);
  byId("look-go").disabled = true;
  byId("look-empty").textContent = "Looking…";
  try {
    if (wish.writing?.max_tokens && !wish.target) await showWriting(wish, signal);
    show(await post("/api/look", { ...wish, layers: null }, signal), wish);
    byId("look-go").disabled = false;
    await Promise.all([
      foretold.show(sight, wish, ability()),
      atlas.load((panel) => post("/api/look", { ...wish, layers: [panel.name], side: 64 }, signal)),
    ]);
  } catch (error) {
    if (isAbort(error) || signal.aborted) return;
    if (!sight) byId("look-views").hidden = true;
    if (byId("foretold").dataset.state === "busy") foretold.hide();
    say(byId("look-error"), wordsOf(error));
    byId("look-empty").textContent = "";
  }
  byId("look-go").disabled = false;
}

/** The text as it is written; the server keeps it, so that looking at it afterwards costs nothing more. */
async function showWriting(wish, signal) {
  byId("look-views").hidden = byId("look-empty").hidden = true;
  foretold.showStream(wish.text, "");
  for await (const event of stream("/api/look/stream", wish, signal)) {
    if (event.error || event.done) return; // what is wrong is said by the answer that follows
    if (!signal.aborted) foretold.showStream(wish.text, event.text);
  }
}

function show(answer, wish) {
  [sight, asked] = [answer, wish];
  writeAddress("look", { model: wish.model, to: wish.to, text: wish.text, target: wish.target });
  byId("look-said").lang = wish.to;
  const panels = [...(answer.alignment ? [{ ...answer.alignment, name: ALIGNMENT }] : []), ...answer.panels];
  const before = view;
  views = panels.flatMap((panel) => Array.from({ length: panel.heads }, (_, head) => ({ panel, head })));
  byId("look-empty").hidden = views.length > 0;
  byId("look-views").hidden = !views.length;
  byId("look-said").textContent = ability() === "translate" ? answer.said : ""; // else it stands in what was foretold
  atlas.build(panels, answer.texts);
  const longest = Math.max(...Object.values(answer.texts).map((words) => words.length));
  byId("relative").checked = longest > VERY_LONG;
  byId("stage").classList.toggle("long", longest > LONG);
  const again = before && views.find((each) => each.panel.name === before.panel.name && each.head === before.head);
  choose(again || views[0]);
}

function titleOf({ panel, head }) {
  if (panel.kind === "alignment") return "Word alignment";
  return panel.heads === 1 ? panel.name : `${panel.name} · head ${head}`;
}

async function choose(chosen) {
  if (!chosen) return;
  loading?.abort();
  const { signal } = (loading = new AbortController());
  const { panel, head } = chosen;
  const map = new WeightMap(sight.texts[panel.queries], sight.texts[panel.keys]);
  view = { ...chosen, map };
  byId("view-name").textContent = titleOf(chosen);
  byId("view-kind").textContent = KINDS[panel.kind] ?? "between words";
  matrix.label = titleOf(chosen);
  atlas.mark(panel, head);
  pointing.release();
  scores.choose(panel, head, map, asked);
  paint();
  try {
    await fillMap(map, panel, head, signal);
    byId("look-readout").replaceChildren();
    pointing.move(pointing.place);
  } catch (error) {
    if (!isAbort(error) && !signal.aborted) say(byId("look-error"), wordsOf(error));
  }
}

/** Fetch a map in pieces of rows, and show each as it comes. */
async function fillMap(map, panel, head, signal) {
  const height = Math.max(1, Math.floor(PIECE / Math.max(map.columns, 1)));
  for (let row = 0; row < map.rows; row += height) {
    if (map.rows > height) byId("look-readout").textContent = `${plural(row, "row")} of ${map.rows} are here…`;
    const answer = await post("/api/look", { ...asked, layers: [panel.name], heads: [head], rows: [row, Math.min(map.rows, row + height)] }, signal);
    for (const piece of answer.pieces) map.put(piece.rows[0], bytesOf(piece.data));
    paint();
  }
}

function paint() {
  if (!view) return;
  const relative = byId("relative").checked;
  matrix.show(view.map, relative);
  threads.show(view.map, relative);
}

function step(by) {
  const at = views.findIndex((each) => each.panel === view.panel && each.head === view.head);
  choose(views[(at + by + views.length) % views.length]);
}

async function save(button) {
  const status = byId("export-status");
  const isWhole = byId("export-scope").value === "all";
  const head = isWhole || view.panel.kind === "alignment" ? null : view.head;
  status.textContent = "Drawing…";
  button.disabled = true;
  try {
    const name = await download("/api/look/export", { ...asked, format: button.dataset.export, layer: isWhole ? "*" : view.panel.name, head });
    status.textContent = `Saved as ${name}`;
  } catch (error) {
    status.textContent = wordsOf(error);
  }
  button.disabled = false;
}
