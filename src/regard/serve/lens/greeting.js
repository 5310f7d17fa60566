// The first visit, when there is no model at all: the page begins to train the demo and shows how it goes.

import { wordsOf } from "./api.js";
import { byId, make, say } from "./dom.js";
import { isRunning, job, loadJob, resumeJob, startDemo, watchJob } from "./jobs.js";
import { Progress } from "./progress.js";

let progress, again;

/** Begin the demo, unless a job is there already, and show how it goes. */
export async function greet() {
  if (!progress) {
    again = make("button", { type: "button", className: "main", hidden: true });
    again.addEventListener("click", () => attempt(job?.state === "stopped" || job?.state === "failed" ? resumeJob : startDemo));
    progress = new Progress(byId("greeting-job"), [again]);
    watchJob(show);
  }
  await attempt(async () => {
    await loadJob();
    if (job === null) await startDemo();
  });
}

async function attempt(action) {
  try {
    say(byId("greeting-error"), "");
    await action();
  } catch (error) {
    if (error.status === 409) await loadJob(); // another tab may have been faster
    if (job) return;
    say(byId("greeting-error"), wordsOf(error));
    [again.hidden, again.textContent] = [false, "Train the demo now"];
  }
}

function show(current) {
  if (!current) return;
  progress.show(current);
  again.hidden = isRunning() || current.state === "finished";
  again.textContent = "Go on training";
}
