// The Image tab, and others on which a file is dropped: see the model's answer, and what it looked at. The view is that of
// the report, and the answer is shown by what the model can do (answers.js).

import { get, post, upload, wordsOf } from "./api.js";
import { byId, fillSelect, make, onDrop, say } from "./dom.js";
import { showAnswer } from "./answers.js";
import { modelLabel } from "./format.js";
import { switchOf } from "./head_switch.js";
import { LensCard } from "./look/logit_lens.js";
import { NeuronCard } from "./look/neuron_view.js";
import { viewOf } from "./look/offline.js";
import { bytesOf } from "./look/weights.js";
import { modelList, watchModels } from "./model_list.js";

/** Built-in inputs to try a model with. */
export const examplesFor = (model) => get(`/api/inspect/examples?model=${encodeURIComponent(model)}`);

/**
 * A tab for the models of one kind of input; the ids of its elements begin with its name. `example(given, number)` makes
 * of a built-in input its file and the content of its button.
 */
export class FileTab {
  constructor(name, input, example) {
    Object.assign(this, { name, input, example, file: null, asked: 0 });
    onDrop(this.#part("drop"), ([first]) => this.take(first));
    this.#part("file").addEventListener("change", () => this.take(this.#part("file").files[0]));
    this.#part("model").addEventListener("change", () => { this.#showText(); this.take(this.file); });
    this.#part("text")?.addEventListener("change", () => this.take(this.file));
    watchModels(() => this.#showModels());
  }

  #part(name) { return byId(`${this.name}-${name}`); }

  #model() { return modelList.models.find((model) => model.id === this.#part("model").value); }

  #showModels() {
    const fitting = modelList.models.filter((model) => model.input === this.input);
    fillSelect(this.#part("model"), fitting.map((model) => [model.id, modelLabel(model)]), this.#part("model").value);
    this.#part("none").hidden = fitting.length > 0;
    this.#part("content").hidden = !fitting.length;
    this.#showText();
    if (fitting.length && !this.#part("examples").childElementCount) this.#showExamples();
  }

  /** Built-in files to try a model with. */
  async #showExamples() {
    const examples = await examplesFor(this.#part("model").value);
    this.#part("examples").replaceChildren(...examples.map((each, number) => {
      const { file, content } = this.example(each, number);
      const button = make("button", { type: "button", title: each.caption, "aria-pressed": "false" }, content);
      button.addEventListener("click", () => this.take(file, button));
      return button;
    }));
  }

  /** Models that read a text beside the file have a field for it. */
  #showText() {
    const label = this.#model()?.text_label ?? "", field = this.#part("text-field");
    if (!field) return;
    field.hidden = !label;
    this.#part("text-label").textContent = label;
  }

  async take(chosen, example = null, without = []) {
    if (!chosen) return;
    if (chosen !== this.file) for (const each of this.#part("examples").children) each.setAttribute("aria-pressed", each === example);
    this.file = chosen;
    const view = this.#part("view"), number = ++this.asked, form = new FormData();
    form.append("file", chosen);
    form.append("model", this.#part("model").value);
    if (this.#model()?.text_label) form.append("text", this.#part("text").value);
    for (const head of without) form.append("without", head);
    view.dataset.state = "busy";
    say(this.#part("error"), "");
    try {
      const seen = await upload("/api/inspect", form);
      if (number !== this.asked) return;
      if (!without.length) this.whole = seen.answer;
      showAnswer(this.#part("answer"), this.#model().ability, seen.answer, without.length ? this.whole : null);
      await showReport(seen, view, (heads) => this.take(chosen, example, heads));
    } catch (error) {
      if (number !== this.asked) return;
      view.hidden = true;
      view.dataset.state = "error";
      showAnswer(this.#part("answer"), this.#model().ability, null);
      say(this.#part("error"), wordsOf(error));
    }
  }
}

export function startInspect() {
  new FileTab("picture", "image", ({ caption, data }, number) => ({
    file: new File([bytesOf(data)], `example ${number + 1}.png`, { type: "image/png" }),
    content: make("img", { src: `data:image/png;base64,${data}`, alt: caption }),
  }));
}

const cards = new WeakMap(); // of the elements that show views

function cardsOf(view) {
  const className = "card stage";
  if (!cards.has(view)) cards.set(view, { lens: new LensCard(view, { className }), neurons: new NeuronCard(view, { className }) });
  return cards.get(view);
}

/**
 * Show the report of an answer in the view that it names; weights are fetched layer by layer. `again(heads)` asks the
 * model again without some heads.
 */
export async function showReport(seen, view, again) {
  const { report } = seen;
  view.hidden = !report.panels.length && !report.shown_as;
  if (!view.hidden) {
    const { markup, layout, open } = viewOf(report.view), pieces = new Map();
    const fetched = async (layer) => bytesOf((await post("/api/inspect/layer", { id: seen.id, layer })).data);
    const weightsOf = (layer) => {
      if (!pieces.has(layer)) pieces.set(layer, fetched(layer));
      return pieces.get(layer);
    };
    switchOf(view).show(seen, again);
    const { lens, neurons } = cardsOf(view);
    lens.show(report);
    neurons.show(report, (place) => post("/api/inspect/neurons", { id: seen.id, ...place }).catch(() => null));
    view.className = `inspected ${layout}`;
    view.innerHTML = markup; // constant markup of the view
    open(view, report, weightsOf);
  }
  view.dataset.state = "done";
}
