// The page: its tabs, and what happens when it is opened.

import { wordsOf } from "./api.js";
import { drawLegends, onTheme } from "./colours.js";
import { refreshCompare, startCompare } from "./compare.js";
import { byId, say } from "./dom.js";
import { percent } from "./format.js";
import { greet } from "./greeting.js";
import { isRunning, loadJob, watchJob } from "./jobs.js";
import { lookWith, refreshLook, startLook } from "./look.js";
import { startModels } from "./models.js";
import { startPicture } from "./picture.js";
import { loadShelf, shelf } from "./shelf.js";
import { refreshTrain, startTrain } from "./train.js";
import { currentText, EXAMPLES, refreshTranslate, startTranslate, translateWith } from "./translate.js";

const tabs = [...document.querySelectorAll("[role=tab]")];
const REFRESH = {
  translate: refreshTranslate,
  look: () => refreshLook(currentText()),
  compare: () => refreshCompare(currentText()),
  picture: () => {},
  train: refreshTrain,
  models: () => attempt(loadShelf),
};

/** Show the tab the address names; without any model the first is a greeting. */
function open() {
  const name = tabs.some((tab) => `#${tab.dataset.tab}` === location.hash) ? location.hash.slice(1) : "translate";
  const needsOne = ["translate", "look", "compare"].includes(name);
  const hasModels = name === "look" ? shelf.models.length > 0 : shelf.first !== null;
  for (const tab of tabs) {
    const isChosen = tab.dataset.tab === name;
    tab.setAttribute("aria-selected", isChosen);
    tab.tabIndex = isChosen ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !isChosen || (!hasModels && needsOne);
  }
  byId("greeting").hidden = shelf.models.length > 0 || !needsOne;
  say(byId("page-error"), "");
  if (hasModels || !needsOne) REFRESH[name]();
  else if (shelf.models.length) say(byId("page-error"), "No model here translates. Train one on the Train tab, or start the server with -m FOLDER.");
}

function listenToTabs() {
  for (const tab of tabs) tab.addEventListener("click", () => { location.hash = tab.dataset.tab; });
  document.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
    const at = tabs.indexOf(document.activeElement);
    const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    const tab = tabs[(next + tabs.length) % tabs.length];
    location.hash = tab.dataset.tab;
    tab.focus();
  });
  addEventListener("hashchange", open);
}

async function use(id, text = "") {
  await attempt(loadShelf);
  location.hash = "translate";
  open();
  translateWith(id, text);
}

function lookInto(id) {
  location.hash = "look";
  lookWith(id);
}

async function attempt(action) {
  try {
    await action();
    say(byId("page-error"), "");
    return true;
  } catch (error) {
    say(byId("page-error"), wordsOf(error));
    return false;
  }
}

/** The chip in the head of the page, and the new model when a job has ended. */
async function followJob(job, before) {
  const chip = byId("training-chip");
  chip.hidden = !isRunning(job);
  if (isRunning(job)) chip.textContent = `Training ${job.name}${job.steps ? ` ${percent(job.step / job.steps)}` : ""}`;
  if (job?.state !== "finished" || !before || before.state === "finished") return;
  const wasEmpty = shelf.first === null;
  if (wasEmpty && job.model) await use(job.model, EXAMPLES[0]);
  else await attempt(loadShelf);
}

async function start() {
  drawLegends();
  onTheme(drawLegends);
  const pointings = [startTranslate(), startLook(), ...startCompare()];
  startPicture();
  startTrain(use);
  startModels(use, lookInto);
  listenToTabs();
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") pointings.forEach((pointing) => pointing.release()); });
  watchJob(followJob);
  const answered = await attempt(loadShelf);
  if (!answered) shelf.first = null;
  open();
  if (!answered) byId("greeting").hidden = true;
  else if (!shelf.models.length) await greet();
  else await attempt(loadJob);
}

start();
