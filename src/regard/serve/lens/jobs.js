// The one training job of the server. Its state lives there: this page asks each second while it runs, so that reloading
// loses nothing.

import { get, post, remove, upload } from "./api.js";

const watchers = [];
let timer = 0;
let known = 0; // how often the job was told: what was asked before the last time is old news
let job = null;
export const currentJob = () => job;

export const isTold = () => known > 0; // whether there is a job: until then neither it nor the form for a new one is shown
export const watchJob = (action) => watchers.push(action);
export const isRunning = (each = job) => each !== null && ["preparing", "running"].includes(each.state);

/** Ask for the job, tell everyone, and go on asking while it runs. */
export async function loadJob() {
  clearTimeout(timer);
  const asked = known;
  try {
    const answer = await get("/api/train");
    if (asked === known) take(answer.job);
  } catch (error) {
    if (isRunning()) timer = setTimeout(() => loadJob().catch(() => {}), 3000); // the server may be busy; the job goes on
    if (!isTold()) take(null); // the form is there then: the server refuses a second job in words
    throw error;
  }
}

function take(fresh) {
  const before = job;
  known += 1;
  job = fresh;
  clearTimeout(timer);
  if (isRunning()) timer = setTimeout(() => loadJob().catch(() => {}), 1000);
  watchers.forEach((action) => action(job, before));
  return job;
}

export const startJob = async (form) => take(await upload("/api/train", form));
export const startDemo = async () => take(await post("/api/train/demo"));
export const stopJob = async () => take(await post("/api/train/stop"));
export const resumeJob = async () => take(await post("/api/train/resume"));
export const resumeRun = async (name) => take(await post(`/api/train/runs/${encodeURIComponent(name)}/resume`));
export const useJob = async () => (await post(`/api/train/runs/${encodeURIComponent(job.name)}/use`)).model;
export const forgetJob = async () => take((await remove("/api/train")).job);
