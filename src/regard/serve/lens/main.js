// The page: its tabs, and what happens when it is opened.

import { readAddress } from "./address.js";
import { wordsOf } from "./api.js";
import { drawLegends } from "./legend.js";
import { onTheme } from "./look/colours.js";
import { refreshCompare, startCompare } from "./compare.js";
import { refreshDocuments, startDocuments } from "./documents.js";
import { byId, say } from "./dom.js";
import { percent } from "./format.js";
import { greet } from "./greeting.js";
import { isRunning, loadJob, watchJob } from "./jobs.js";
import { lookWith, refreshLook, startLook } from "./look.js";
import { startModels } from "./models.js";
import { startInspect } from "./inspect.js";
import { loadModels, modelList, watchModels } from "./model_list.js";
import { nameOf, openTab, refreshOf, startMenu, tabs } from "./tabs.js";
import { refreshTrain, startTrain } from "./train.js";
import { currentText, refreshTranslate, startTranslate, translateWith } from "./translate.js";
import { refreshWorkbench, startWorkbench } from "./workbench.js";

let pictures;
const REFRESH = {
  translate: refreshTranslate,
  documents: refreshDocuments,
  look: (values) => refreshLook(currentText(), values),
  compare: (values) => refreshCompare(currentText(), values),
  picture: () => pictures.open(),
  workbench: refreshWorkbench,
  train: refreshTrain,
  models: () => attempt(loadModels),
};

/** Show the tabs of what this server does: some do not train, and a tab for files is there if a model reads them or the address names it. */
function showTabs() {
  const { tab: wanted } = readAddress();
  const isRead = (name, reads) => !reads || name === wanted || modelList.models.some((model) => model.input === reads);
  for (const tab of tabs()) tab.hidden = !isRead(nameOf(tab), tab.dataset.reads) || (nameOf(tab) === "train" && !modelList.training);
}

/** Show the tab the address names, and what it says of it; without any model the first is a greeting. */
function open() {
  showTabs();
  const { tab: wanted, values } = readAddress();
  const name = tabs().some((tab) => !tab.hidden && nameOf(tab) === wanted) ? wanted : "translate";
  const needsOne = ["translate", "documents", "look", "compare"].includes(name);
  const hasModels = name === "look" ? modelList.models.length > 0 : modelList.first !== null;
  openTab(name, hasModels || !needsOne);
  byId("greeting").hidden = modelList.models.length > 0 || !needsOne || !modelList.training;
  say(byId("page-error"), "");
  if (hasModels || !needsOne) (REFRESH[name] ?? refreshOf(name))(values);
  else if (modelList.models.length || !modelList.training) say(byId("page-error"), `No model here translates. ${modelList.training ? "Train one on the Train tab, or start" : "Start"} the server with -m FOLDER.`);
}

/** Translate with a model; with one that was just trained, a sentence that it has never seen. */
async function use(id, isNew = false) {
  await attempt(loadModels);
  history.pushState(null, "", "#translate");
  open();
  translateWith(id, isNew);
}

function lookInto(id) {
  history.pushState(null, "", "#look");
  open();
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
  const wasEmpty = modelList.first === null;
  if (wasEmpty && job.model) await use(job.model, true);
  else await attempt(loadModels);
}

async function start() {
  drawLegends();
  onTheme(drawLegends);
  const pointings = [startTranslate(), startLook(), ...startCompare()];
  startDocuments();
  pictures = startInspect();
  startWorkbench();
  startTrain((id) => use(id, true), () => attempt(loadModels));
  startModels(use, lookInto);
  startMenu();
  watchModels(showTabs);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") pointings.forEach((pointing) => pointing.release()); });
  watchJob(followJob);
  const answered = await attempt(loadModels);
  if (!answered) modelList.first = null;
  open();
  addEventListener("hashchange", open); // a tab that was chosen before is the one that has just been opened
  if (!answered) byId("greeting").hidden = true;
  else if (!modelList.models.length && modelList.training) await greet((id) => use(id, true));
  else await attempt(loadJob);
}

start();
