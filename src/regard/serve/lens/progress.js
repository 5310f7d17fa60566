// A training job as people see it: how far it is, what it has learnt, what it says by now.

import { drawChart } from "./chart.js";
import { make } from "./dom.js";
import { count, duration } from "./format.js";

const STATES = { preparing: "preparing", running: "training", stopped: "stopped", failed: "failed", finished: "finished" };

export class Progress {
  /** Fill an element; `actions` are buttons to stand under the bar. */
  constructor(place, actions = []) {
    const part = (tag, className, properties = {}) => make(tag, { className, ...properties });
    this.place = place;
    this.name = part("h2", "job-name");
    this.badge = part("span", "badge");
    this.bar = part("progress", "job-progress", { max: 1, "aria-label": "Progress of the training" });
    this.message = part("p", "job-message", { role: "status" });
    this.left = part("p", "job-left facts");
    this.summary = part("p", "job-summary hint");
    this.loss = part("div", "chart-place", { data: { chart: "loss" } });
    this.bleu = part("div", "chart-place", { data: { chart: "bleu" } });
    this.samples = part("div", "samples");
    this.charts = part("div", "charts");
    this.charts.append(
      make("figure", {}, make("figcaption", { textContent: "Loss of training: lower is better" }), this.loss),
      make("figure", {}, make("figcaption", { textContent: "BLEU on sentences it never saw: higher is better" }), this.bleu));
    place.replaceChildren(make("div", { className: "bar" }, this.name, this.badge), this.summary, this.bar, this.message, this.left,
      make("div", { className: "row" }, ...actions), this.charts, this.samples);
  }

  show(job) {
    this.place.dataset.state = job.state;
    this.name.textContent = job.name;
    this.badge.textContent = `${STATES[job.state] ?? job.state} · ${job.recipe}`;
    const isKnown = job.steps > 0 && job.state !== "preparing";
    if (isKnown) this.bar.value = Math.min(1, job.step / job.steps);
    else this.bar.removeAttribute("value"); // a bar that only shows that something is going on
    this.bar.hidden = job.state === "failed";
    this.message.textContent = job.message;
    this.message.classList.toggle("bad", job.state === "failed");
    this.left.textContent = timeOf(job);
    this.summary.textContent = job.summary;
    this.charts.hidden = job.state === "preparing" && !job.loss.length;
    drawChart(this.loss, { points: job.loss, title: "Loss", unit: "loss", lastStep: job.steps });
    const bleu = job.valid.filter((each) => each.bleu != null).map((each) => [each.step, each.bleu]);
    drawChart(this.bleu, { points: bleu, title: "BLEU", unit: "BLEU", lastStep: job.steps, most: 100, digits: 1 });
    this.samples.replaceChildren(...(job.samples.length ? [sampleTable(job.samples)] : []));
  }
}

function timeOf(job) {
  const step = job.steps ? `step ${count(job.step)} of ${count(job.steps)}` : "";
  const parts = [step, !job.seconds ? "" : job.state === "finished" ? `in ${duration(job.seconds)}` : `${duration(job.seconds)} so far`];
  const left = job.seconds_left == null ? "working out how long it will take" : `about ${duration(job.seconds_left)} left`;
  if (job.state === "running") parts.push(left);
  return parts.filter(Boolean).join(" · ");
}

function sampleTable(samples) {
  const row = (tag, cells, more = {}) => make("tr", {}, ...cells.map((text) => make(tag, { textContent: text, dir: "auto", ...more })));
  const table = make("table", {}, make("caption", { textContent: `What it says at step ${count(samples[0].step)}` }),
    make("thead", {}, row("th", ["Source", "Reference", "The model says"], { scope: "col" })),
    make("tbody", {}, ...samples.map((sample) => row("td", [sample.source, sample.target, sample.output || "(nothing yet)"]))));
  table.querySelectorAll("tbody tr").forEach((line, index) => { line.dataset.same = samples[index].output.trim() === samples[index].target.trim(); });
  return make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Sample translations" }, table);
}
