// The first visit, when there is no model at all: the page begins to train the demo and shows how it goes.

import { wordsOf } from "./api.js";
import { byId, make, say } from "./dom.js";
import { currentJob, isRunning, loadJob, resumeJob, startDemo, useJob, watchJob } from "./jobs.js";
import { Progress } from "./progress.js";

let progress, again, useIt;

/** Begin the demo, unless a job is there already, and show how it goes; `use(id)` translates with a model. */
export async function greet(use) {
  if (!progress) {
    again = make("button", { type: "button", className: "main", hidden: true });
    again.addEventListener("click", () => attempt(["stopped", "failed"].includes(currentJob()?.state) ? resumeJob : startDemo));
    useIt = make("button", { type: "button", textContent: "Use what is there", hidden: true });
    useIt.addEventListener("click", () => attempt(async () => use(await useJob())));
    progress = new Progress(byId("greeting-job"), [again, useIt]);
    watchJob(show);
  }
  await attempt(async () => {
    await loadJob();
    if (currentJob() === null) await startDemo();
  });
}

async function attempt(action) {
  try {
    say(byId("greeting-error"), "");
    await action();
  } catch (error) {
    if (error.status === 409) await loadJob(); // another tab may have been faster
    if (error.status === 409 && isRunning()) return;
    say(byId("greeting-error"), wordsOf(error));
    if (!currentJob()) [again.hidden, again.textContent] = [false, "Train the demo now"];
  }
}

function show(current) {
  if (!current) return;
  progress.show(current);
  again.hidden = isRunning() || current.state === "finished";
  again.textContent = "Go on training";
  useIt.hidden = again.hidden || !current.step;
}
