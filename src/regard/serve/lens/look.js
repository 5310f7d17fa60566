// The Look tab: every layer and head of a model on one input. The server is asked for what is shown, in pieces.

import { download, isAbort, post, wordsOf } from "./api.js";
import { Atlas } from "./atlas.js";
import { byId, calm, say } from "./dom.js";
import { KINDS, plural } from "./format.js";
import { Matrix } from "./matrix.js";
import { Pointing } from "./pointing.js";
import { Scores } from "./scores.js";
import { Chooser } from "./shelf.js";
import { Threads } from "./threads.js";
import { bytesOf, WeightMap } from "./weights.js";
import { tell } from "./words.js";

const PIECE = 400_000; // cells asked for at once
const LONG = 32; // tokens from which the matrix takes the whole width
const VERY_LONG = 160; // tokens from which rows are scaled to their peaks at first
const ALIGNMENT = "alignment";

const pointing = new Pointing();
let chooser, atlas, matrix, threads, scores;
let asked = null; // what the sight is of
let sight = null; // the server's answer: texts and panels
let views = []; // every { panel, head } that can be chosen
let view = null; // the one that is shown, with its `map`
let looking, loading;

export function startLook() {
  chooser = new Chooser("look", byId("look-model"), byId("look-to"), () => { if (sight) look(); });
  matrix = new Matrix(byId("look-matrix"), pointing, { zoom: "always" });
  threads = new Threads(byId("look-threads"), pointing);
  scores = new Scores(byId("scores"));
  atlas = new Atlas((panel, head) => {
    choose(views.find((each) => each.panel === panel && each.head === head));
    byId("stage").scrollIntoView({ block: "start", behavior: calm.matches ? "auto" : "smooth" });
  });
  byId("look-form").addEventListener("submit", (event) => { event.preventDefault(); look(); });
  for (const id of ["look-text", "look-target"]) byId(id).addEventListener("keydown", submitOnEnter);
  byId("relative").addEventListener("change", paint);
  byId("view-previous").addEventListener("click", () => step(-1));
  byId("view-next").addEventListener("click", () => step(1));
  byId("stage").addEventListener("pointerleave", () => { if (!pointing.held) pointing.release(); });
  document.querySelectorAll("[data-export]").forEach((button) => button.addEventListener("click", () => save(button)));
  pointing.watch((place) => { if (view?.map) { tell(byId("look-readout"), view.map, place); scores.point(place.row); } });
  return pointing;
}

/** The tab is opened: look at what was translated, unless something is shown already. */
export function refreshLook(text) {
  if (!byId("look-text").value) byId("look-text").value = text;
  if (!sight && byId("look-text").value.trim() && chooser.model?.attention) look();
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
  const text = byId("look-text").value.trim();
  say(byId("look-error"), !chooser.model ? "There is no model to look into yet." : !text ? "Type a sentence to look at first." : "");
  if (!text || !chooser.model) return;
  const question = { model: chooser.model.id, text, to: chooser.to, target: byId("look-target").value.trim() };
  byId("look-go").disabled = true;
  byId("look-empty").textContent = "Looking…";
  try {
    show(await post("/api/look", { ...question, layers: null }, signal), question);
    byId("look-go").disabled = false;
    await atlas.load((panel) => post("/api/look", { ...question, layers: [panel.name], side: 64 }, signal));
  } catch (error) {
    if (isAbort(error) || signal.aborted) return;
    if (!sight) byId("look-views").hidden = true;
    say(byId("look-error"), wordsOf(error));
    byId("look-empty").textContent = "";
  }
  byId("look-go").disabled = false;
}

function show(answer, question) {
  [sight, asked] = [answer, question];
  const panels = [...(answer.alignment ? [{ ...answer.alignment, name: ALIGNMENT }] : []), ...answer.panels];
  const before = view;
  views = panels.flatMap((panel) => Array.from({ length: panel.heads }, (_, head) => ({ panel, head })));
  byId("look-empty").hidden = views.length > 0;
  byId("look-views").hidden = !views.length;
  byId("look-said").textContent = answer.translation;
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
