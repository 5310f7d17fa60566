// From which language into which: the server picks the model for them, unless the reader names one.

import { fillSelect } from "./dom.js";
import { languageName, modelLabel } from "./format.js";
import { modelCalled, modelList, watchModels } from "./model_list.js";

export const AUTO = "auto";
const unique = (codes) => [...new Set(codes)];

/** Three selects that belong together; what was chosen is remembered for this tab under `name`. */
export class Languages {
  constructor(name, { source, target, model }, onChange) {
    Object.assign(this, { name, source, target, model, onChange });
    for (const select of [source, target, model]) select.addEventListener("change", () => { this.fill(); this.#remember(); onChange(); });
    watchModels(() => this.fill());
  }

  get from() { return this.source.value; }
  get to() { return this.target.value; }

  /** The model that was named, or else the one that the server will pick: the first for the two languages. */
  get chosen() { return modelCalled(this.model.value) ?? modelFor(this.from, this.to); }

  /** What to ask the server. */
  get wish() {
    const readsOne = modelCalled(this.model.value)?.sources.length === 1;
    return { model: this.model.value, source: readsOne ? "" : this.from, to: this.to };
  }

  /** What a link to this choice holds. */
  get values() { return { from: this.from, to: this.to, model: this.model.value }; }

  /** Take what a link or a button says; what is not offered is left as it is. */
  choose({ from, to, model }) {
    if (model !== undefined && (!model || modelCalled(model))) this.model.value = model;
    this.fill({ from, to });
    this.#remember();
  }

  fill({ from = "", to = "" } = {}) {
    const kept = (field, select) => select.value || sessionStorage.getItem(`${this.name}-${field}`);
    fillSelect(this.model, [["", "chosen by language"], ...modelList.translators.map((each) => [each.id, modelLabel(each)])], kept("model", this.model));
    const named = modelCalled(this.model.value);
    const sources = named ? named.sources : unique(modelList.translators.flatMap((each) => each.sources));
    const codes = named || sources.length < 2 ? sources : [AUTO, ...sources]; // one language need not be told from others
    const offered = codes.includes(AUTO) || named ? codes : [...codes, AUTO];
    fillSelect(this.source, offered.map((code) => [code, code === AUTO ? "Detect language" : languageName(code)]), from || kept("from", this.source));
    const targets = named ? named.targets : reachable(this.from);
    fillSelect(this.target, targets.map((code) => [code, languageName(code)]), to || kept("to", this.target));
  }

  /** Why the languages cannot be swapped, in words; `detected` is what a text was found to be in. */
  whyNoSwap(detected) {
    const from = this.from === AUTO ? detected : this.from;
    if (!from) return "The languages can be swapped once the language of the text is known.";
    return reachable(this.to).includes(from) ? "" : `No model here translates ${languageName(this.to)} into ${languageName(from)}.`;
  }

  swap(detected) {
    const from = this.from === AUTO ? detected : this.from;
    this.choose({ model: "", from: this.to, to: from });
  }

  #remember() {
    for (const [field, value] of Object.entries(this.values)) sessionStorage.setItem(`${this.name}-${field}`, value);
  }
}

/** The languages that a language is translated into, by one model or through a third language. */
function reachable(from) {
  const direct = modelList.translators.filter((each) => reads(each, from)).flatMap((each) => each.targets);
  const through = modelList.translators.filter((each) => each.sources.some((code) => direct.includes(code))).flatMap((each) => each.targets);
  return unique([...direct, ...through]).filter((code) => code !== from);
}

const reads = (model, from) => from === AUTO || model.sources.includes(from);

function modelFor(from, to) {
  return modelList.translators.find((each) => reads(each, from) && each.targets.includes(to));
}
