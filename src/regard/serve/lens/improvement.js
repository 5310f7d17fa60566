// A model that was improved beside the one it began with: scores of both, the sentences that differ, and which one to use.

import { get, post, wordsOf } from "./api.js";
import { make, say } from "./dom.js";
import { count } from "./format.js";
import { modelCalled } from "./model_list.js";

const TITLES = { held_out: "Held-out pairs of your file", corrections: "Corrections kept here" };

export class Improvement {
  /** `use(id)` is called with the model that the reader chose. */
  constructor(use) {
    this.use = use;
    this.name = ""; // of the run that is shown
    this.status = make("p", { className: "facts", role: "status" });
    this.sets = make("div", { className: "compared" });
    this.fresh = this.button("improvement-use", "Use the new model", true);
    this.fresh.className = "main";
    this.old = this.button("improvement-keep", "Keep the old one", false);
    this.error = make("p", { className: "notice bad", role: "alert", hidden: true });
    this.element = make("section", { id: "improvement", hidden: true, "aria-label": "Old and new model" },
      make("h3", { textContent: "Old and new model" }), this.status,
      make("div", { className: "row" }, this.fresh, this.old), this.error, this.sets);
  }

  button(id, words, replaces) {
    const made = make("button", { type: "button", id, textContent: words });
    made.addEventListener("click", () => this.choose(replaces));
    return made;
  }

  /** Show the comparison of a finished improvement, once for each; hide it for every other job. */
  async show(job) {
    const isDone = job.state === "finished" && Boolean(job.base);
    this.element.hidden = !isDone;
    if (!isDone) { this.name = ""; return; }
    this.job = job;
    this.fresh.hidden = !modelCalled(job.model);
    this.old.hidden = !modelCalled(job.base);
    if (this.name === job.name) return;
    this.name = job.name;
    this.sets.replaceChildren();
    this.status.textContent = `Comparing ${job.base} and ${job.name}…`;
    try {
      const { sets } = await get(`/api/train/runs/${encodeURIComponent(job.name)}/comparison`);
      if (this.name !== job.name) return;
      this.sets.replaceChildren(...sets.map((each) => comparedSet(each, job)));
      this.status.textContent = sets.length ? "" : "There are no pairs to compare the two on.";
      say(this.error, "");
    } catch (error) {
      this.name = ""; // asked again when the job is told again
      this.status.textContent = "";
      say(this.error, wordsOf(error));
    }
  }

  /** Let clients that name no model have the new one, or the old one; then translate with it. */
  async choose(replaces) {
    try {
      await post(`/api/train/runs/${encodeURIComponent(this.job.name)}/replace`, { replaces });
      say(this.error, "");
      this.use(replaces ? this.job.model : this.job.base);
    } catch (error) {
      say(this.error, wordsOf(error));
    }
  }
}

function comparedSet(each, job) {
  const line = (tag, cells, more = {}) => make("tr", {}, ...cells.map((text) => make(tag, { textContent: text, dir: "auto", ...more })));
  const scores = (name, of) => line("td", [name, of.bleu.toFixed(1), of.chrf.toFixed(1), `${(100 * of.exact).toFixed(0)} %`]);
  const sure = each.significant ? "The difference in chrF is significant" : "The difference in chrF may be chance";
  const found = `${sure} (p = ${each.p_value.toFixed(3)}). The new model is better in ${count(each.better)} and worse in ${count(each.worse)} of them.`;
  const table = make("table", {}, make("caption", { textContent: `${TITLES[each.kind]}: ${count(each.sentences)}` }),
    make("thead", {}, line("th", ["Model", "BLEU", "chrF", "Exactly right"], { scope: "col" })),
    make("tbody", {}, scores(`${job.base} (old)`, each.old), scores(`${job.name} (new)`, each.new)));
  const rows = each.differences.map((one) => {
    const row = line("td", [one.source, one.reference, one.old, one.new]);
    row.dataset.better = one.new_chrf > one.old_chrf ? "new" : one.new_chrf < one.old_chrf ? "old" : "none";
    return row;
  });
  const differences = make("table", { className: "differences" }, make("caption", { textContent: "Where they differ most" }),
    make("thead", {}, line("th", ["Source", "Reference", "Old", "New"], { scope: "col" })), make("tbody", {}, ...rows));
  return make("div", { data: { set: each.kind } }, table, make("p", { className: "hint", textContent: found }), ...(rows.length ? [differences] : []));
}
