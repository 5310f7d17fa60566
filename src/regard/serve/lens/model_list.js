// The models the server offers, and the choosers of a model and a language into which it translates.

import { get } from "./api.js";
import { fillSelect } from "./dom.js";
import { languageName, modelLabel } from "./format.js";

const watchers = [];
let asked = 0; // an older list must not take the place of a newer one
export const modelList = { models: [], first: null, limits: { characters: Infinity, bytes: Infinity }, documents: [], training: true, get translators() { return this.models.filter((model) => model.ability === "translate"); } };

export const watchModels = (action) => watchers.push(action);
export const modelCalled = (id) => modelList.models.find((model) => model.id === id);

/** Ask the server again, and tell everyone who shows models. */
export async function loadModels() {
  const number = ++asked, answer = await get("/api/models");
  if (number !== asked) return;
  Object.assign(modelList, { models: answer.models, first: answer.default, limits: answer.limits, documents: answer.documents, training: answer.training });
  watchers.forEach((action) => action());
}

/** Two selects that belong together; what was chosen is remembered for this tab under `name`. */
export class Chooser {
  /** `offered()` are the models to choose from: without it, those that translate. */
  constructor(name, modelSelect, targetSelect, onChange, offered = () => modelList.translators) {
    [this.name, this.modelSelect, this.targetSelect, this.onChange, this.offered] = [name, modelSelect, targetSelect, onChange, offered];
    modelSelect.addEventListener("change", () => { this.#fillTargets(); this.#changed(); });
    targetSelect.addEventListener("change", () => this.#changed());
    watchModels(() => this.fill());
  }

  get model() { return modelCalled(this.modelSelect.value); }
  get to() { return this.targetSelect.value; }

  fill() {
    const chosen = this.modelSelect.value || sessionStorage.getItem(`${this.name}-model`);
    const models = this.offered();
    const isKnown = models.some((model) => model.id === chosen);
    fillSelect(this.modelSelect, models.map((model) => [model.id, modelLabel(model)]), isKnown ? chosen : modelList.first);
    this.#fillTargets();
  }

  choose(id, to = "") {
    this.modelSelect.value = id;
    this.#fillTargets(to);
    this.#remember();
  }

  #fillTargets(to = "") {
    const chosen = to || this.to || sessionStorage.getItem(`${this.name}-to`);
    fillSelect(this.targetSelect, (this.model?.targets ?? []).map((code) => [code, languageName(code)]), chosen);
    this.targetSelect.closest("label").hidden = !this.targetSelect.options.length;
  }

  #changed() {
    this.#remember();
    this.onChange();
  }

  #remember() {
    sessionStorage.setItem(`${this.name}-model`, this.modelSelect.value);
    sessionStorage.setItem(`${this.name}-to`, this.to);
  }
}
