// The list of trainings under the Train tab: each can be used, go on, be downloaded, renamed or deleted.

import { download, get, post, remove, wordsOf } from "./api.js";
import { byId, make, say } from "./dom.js";
import { count } from "./format.js";
import { resumeRun } from "./jobs.js";
import { modelList } from "./model_list.js";

const STATES = { preparing: "preparing", running: "training", stopped: "stopped", failed: "failed", finished: "finished" };
let useModel, changed;
let asked = 0; // an older list of the runs must not take the place of a newer one

/** `use(id)` translates with a model; `onChange()` is called when runs were deleted or have other names. */
export function startRuns(use, onChange) {
  [useModel, changed] = [use, onChange];
}

export async function listRuns() {
  const number = ++asked;
  try {
    const { runs } = await get("/api/train/runs");
    if (number !== asked) return;
    show(runs);
    say(byId("runs-error"), "");
  } catch (error) {
    if (number === asked) say(byId("runs-error"), wordsOf(error));
  }
}

function show(runs) {
  byId("runs").hidden = !runs.length;
  byId("run-list").replaceChildren(...runs.map(entry));
}

function entry(run) {
  const place = `/api/train/runs/${encodeURIComponent(run.name)}`;
  const isRunning = ["preparing", "running"].includes(run.state), isOwn = run.name !== "demo";
  const orders = isRunning ? [] : [
    run.usable && order("use", run.state === "finished" ? "Use" : "Use what is there", async () => useModel((await post(`${place}/use`)).model)),
    ["stopped", "failed"].includes(run.state) && order("resume", "Go on training", () => resumeRun(run.name)),
    run.usable && order("download", "Download", () => download(`${place}/download`)),
    isOwn && order("rename", "Rename", () => rename(run, place)),
    isOwn && order("delete", "Delete", () => forget(run, place)),
  ];
  const facts = [run.message.replace(/\.$/, ""), run.bleu === null ? "" : `best BLEU ${run.bleu.toFixed(1)}`, run.model ? "in use" : ""];
  return make("li", { className: "run", data: { run: run.name, state: run.state } },
    make("div", { className: "bar" }, make("h3", { textContent: run.name }), make("span", { className: "badge", textContent: STATES[run.state] })),
    make("p", { className: "facts", textContent: facts.filter(Boolean).join(" · ") || `step ${count(run.step)}` }),
    make("div", { className: "row" }, ...orders.filter((each) => each && (modelList.training || each.dataset.order === "download"))));
}

function order(name, words, action) {
  const button = make("button", { type: "button", textContent: words, data: { order: name } });
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      say(byId("runs-error"), "");
      await action();
    } catch (error) {
      say(byId("runs-error"), wordsOf(error));
    }
    button.disabled = false;
  });
  return button;
}

async function rename(run, place) {
  const name = await ask({ title: `Rename ${run.name}`, words: "a to z, digits and -", yes: "Rename", value: run.name });
  if (!name || name === run.name) return;
  await post(`${place}/rename`, { name });
  await Promise.all([listRuns(), changed()]);
}

async function forget(run, place) {
  const words = "Its data, checkpoints and model are removed from this machine. This cannot be undone.";
  if (!await ask({ title: `Delete ${run.name}?`, words, yes: "Delete it" })) return;
  const { runs } = await remove(place);
  asked++;
  show(runs);
  await changed();
}

/** Ask for a name, or for nothing but a yes; null when the reader thinks better of it. */
function ask({ title, words, yes, value }) {
  const dialog = byId("ask-dialog"), input = byId("ask-input");
  byId("ask-title").textContent = title;
  byId("ask-words").textContent = words;
  byId("ask-yes").textContent = yes;
  byId("ask-field").hidden = value === undefined;
  input.value = value ?? "";
  dialog.returnValue = "";
  dialog.showModal();
  const answer = () => (dialog.returnValue === "ok" ? input.value.trim() || "yes" : null);
  return new Promise((done) => dialog.addEventListener("close", () => done(answer()), { once: true }));
}
