// The Train tab: files, languages, a recipe; then the job as it goes, until its model can be used.

import { get, wordsOf } from "./api.js";
import { byId, fillSelect, make, onDrop, say } from "./dom.js";
import { bytes, languageName, millions, modelLabel } from "./format.js";
import { checkFiles, guessLanguages, guessName } from "./files.js";
import { currentJob, forgetJob, isRunning, isTold, loadJob, resumeJob, startJob, stopJob, useJob, watchJob } from "./jobs.js";
import { Progress } from "./progress.js";
import { Improvement } from "./improvement.js";
import { listRuns, startRuns } from "./runs.js";
import { modelCalled, modelList, watchModels } from "./model_list.js";

const CODES = "ar cs da de el en es fi fr he hi hu id it ja ko nl no pl pt ro ru sv tr uk vi zh".split(" "); // suggestions
let files = [], progress, improvement, buttons, useModel;
let listed = Promise.resolve(); // the list of recipes; a form that is sent earlier waits for it

/** `use(id)` is called when the reader wants to translate with a model, `changed()` when models came or went. */
export function startTrain(use, changed) {
  useModel = use;
  startRuns(use, async () => { await Promise.all([changed(), loadJob()]); });
  buttons = {
    stop: button("job-stop", "Stop and save", stopJob),
    resume: button("job-resume", "Go on training", resumeJob),
    use: button("job-use", "Use this model", async () => useModel(currentJob().state === "finished" ? currentJob().model : await useJob())),
    forget: button("job-forget", "Train another", forgetJob),
  };
  buttons.use.className = "main";
  progress = new Progress(byId("job"), Object.values(buttons));
  improvement = new Improvement(useModel);
  byId("job").append(make("p", { className: "notice bad", id: "job-error", role: "alert", hidden: true }), improvement.element);
  byId("language-codes").replaceChildren(...CODES.map((code) => make("option", { value: code, label: languageName(code) })));
  for (const id of ["train-source", "train-target"]) byId(id).addEventListener("input", nameLanguages);
  listenForFiles();
  byId("train-form").addEventListener("submit", start);
  byId("train-base").addEventListener("change", showBase);
  nameLanguages();
  watchJob(showJob);
  watchModels(() => { if (isTold()) showJob(currentJob()); listBases(); });
}

/** The translators that can be improved, after the choice of a new model. */
function listBases() {
  const chosen = byId("train-base").value;
  const models = modelList.translators.map((model) => [model.id, `Improve ${modelLabel(model)}`]);
  fillSelect(byId("train-base"), [["", "A new model"], ...models], modelCalled(chosen) ? chosen : "");
  showBase();
}

/** A model that is improved has its own size and languages; a new one needs a recipe. */
function showBase() {
  const base = modelCalled(byId("train-base").value);
  byId("train-recipe").hidden = Boolean(base);
  byId("base-help").hidden = !base;
  if (!base) return;
  if (!base.sources.includes(byId("train-source").value)) byId("train-source").value = base.source;
  if (!base.targets.includes(byId("train-target").value)) byId("train-target").value = base.targets[0];
  nameLanguages();
}

export function refreshTrain() {
  if (!isTold()) loadJob().catch(() => {}); // what failed is said with the recipes
  listed = listRecipes();
  return Promise.all([listed, listRuns()]);
}

async function listRecipes() {
  try {
    const { recipes } = await get("/api/recipes");
    showRecipes(recipes.filter((recipe) => recipe.own_data));
    say(byId("train-error"), "");
  } catch (error) {
    say(byId("train-error"), wordsOf(error));
  }
}

function button(id, words, action) {
  const made = make("button", { type: "button", id, textContent: words });
  made.addEventListener("click", async () => {
    made.disabled = true;
    try {
      say(byId("job-error"), "");
      await action();
    } catch (error) {
      say(byId("job-error"), wordsOf(error));
    }
    made.disabled = false;
  });
  return made;
}

function showJob(current, before = current) {
  byId("job").hidden = !current;
  byId("train-form").hidden = Boolean(current) || !modelList.training;
  byId("train-off").hidden = modelList.training;
  if (current?.state !== before?.state || current?.name !== before?.name) listRuns();
  if (!current) return;
  progress.show(current);
  const isCut = ["stopped", "failed"].includes(current.state);
  buttons.stop.hidden = !isRunning(current);
  buttons.resume.hidden = !isCut;
  buttons.use.hidden = isCut ? !current.step : !current.model || !modelList.models.some((model) => model.id === current.model);
  buttons.use.textContent = isCut ? "Use what is there" : "Use this model";
  buttons.forget.hidden = isRunning(current);
  improvement.show(current);
  if (current.state === "finished" && current.base) buttons.use.hidden = true; // the comparison offers both models
  if (!modelList.training) for (const each of Object.values(buttons)) each.hidden = each !== buttons.use || isCut;
}

function chosenRecipe() {
  return document.querySelector('[name="recipe"]:checked')?.value;
}

function showRecipes(recipes) {
  const chosen = chosenRecipe();
  byId("train-recipe").replaceChildren(...recipes.map((recipe, index) => {
    const size = recipe.parameters ? ` · ${millions(recipe.parameters)} parameters` : "";
    const input = make("input", { type: "radio", name: "recipe", value: recipe.name, checked: chosen ? chosen === recipe.name : index === 0 });
    return make("label", { className: "recipe" }, input, make("span", {},
      make("b", { textContent: recipe.name }),
      make("span", { className: "badge", textContent: `${recipe.title}${size}` }),
      make("span", { className: "hint", textContent: recipe.description })));
  }));
}

function nameLanguages() {
  for (const hint of document.querySelectorAll("[data-language]")) {
    const code = byId(hint.dataset.language).value.trim();
    const name = languageName(code);
    hint.textContent = !code ? "a code such as en" : name === code ? "a code of its own" : name;
  }
}

function listenForFiles() {
  const drop = byId("train-drop"), input = byId("train-files");
  input.addEventListener("change", () => takeFiles([...input.files]));
  onDrop(drop, takeFiles);
}

function takeFiles(chosen) {
  // The second half of a pair may come after the first.
  files = chosen.length === 1 && files.length === 1 && checkFiles([...files, ...chosen]) === "" ? [...files, ...chosen] : chosen;
  say(byId("files-error"), checkFiles(files));
  byId("file-list").replaceChildren(...files.map((file) => make("li", {}, make("b", { textContent: file.name }), ` ${bytes(file.size)}`)));
  const languages = guessLanguages(files);
  if (languages) [byId("train-source").value, byId("train-target").value] = languages;
  if (!byId("train-name").value) byId("train-name").value = guessName(files);
  nameLanguages();
}

/** What is wrong with the form, said beside what is wrong; true when nothing is. */
function isReady() {
  const value = (id) => byId(id).value.trim();
  const wrong = {
    "files-error": checkFiles(files) || (files.length ? "" : "Choose a file with sentence pairs first."),
    "names-error": !value("train-source") || !value("train-target") ? "Say from which language into which."
      : value("train-source") === value("train-target") ? "The two languages are the same; choose two different ones."
      : !value("train-name") ? "Give the model a name, to find it again."
      : !/^[a-z0-9][a-z0-9-]*$/.test(value("train-name")) ? "The name may have small letters a to z, digits and -, and begins with a letter or digit." : "",
    "limits-error": value("train-steps") && !/^[1-9]\d*$/.test(value("train-steps")) ? "Steps are a whole number above 0, such as 2000."
      : value("train-minutes") && !(Number(value("train-minutes")) > 0) ? "Minutes are a number above 0, such as 15." : "",
  };
  for (const [id, words] of Object.entries(wrong)) say(byId(id), words);
  return Object.values(wrong).every((words) => !words);
}

/** The server's refusal, beside the part of the form it speaks of. */
function refuse(words, status) {
  const id = /\bname\b|called|language/i.test(words) ? "names-error"
    : /\b(steps|minutes|recipe)\b/i.test(words) ? "limits-error"
    : status === 400 || status === 413 ? "files-error" : "train-error";
  say(byId(id), words);
  byId(id).scrollIntoView({ block: "center" });
}

async function start(event) {
  event.preventDefault();
  say(byId("train-error"), "");
  if (!isReady()) { document.querySelector("#train-form .notice:not([hidden])")?.scrollIntoView({ block: "center" }); return; }
  byId("train-start").disabled = true;
  await listed;
  if (!chosenRecipe()) await refreshTrain(); // it did not come the first time; a second failure is said there
  if (chosenRecipe()) await send();
  byId("train-start").disabled = false;
}

async function send() {
  const form = new FormData();
  for (const file of files) form.append("files", file, file.name);
  form.append("recipe", byId("train-base").value ? "adapt" : chosenRecipe());
  for (const field of ["name", "source", "target", "base", "steps", "minutes"]) {
    const value = byId(`train-${field}`).value.trim();
    if (value) form.append(field, value);
  }
  byId("train-status").textContent = `Sending ${bytes(files.reduce((sum, file) => sum + file.size, 0))}…`;
  try {
    await startJob(form);
    takeFiles([]);
    byId("train-files").value = "";
    scrollTo({ top: 0 });
  } catch (error) {
    refuse(wordsOf(error), error.status);
  }
  byId("train-status").textContent = "";
}
