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

/** The built-in inputs of a tab, as buttons; `buttonOf(example, number, all)` makes one of them. */
export class Examples {
  constructor(name, buttonOf) {
    Object.assign(this, { name, buttonOf, fetched: null });
  }

  /** The tab is opened: the buttons are made the first time, and the first is pressed while there is nothing to see. */
  async open(isEmpty) {
    const model = byId(`${this.name}-model`).value, place = byId(`${this.name}-examples`);
    if (!model) return;
    try {
      this.fetched ??= get(`/api/inspect/examples?model=${encodeURIComponent(model)}`);
      const all = await this.fetched;
      if (!place.childElementCount) place.replaceChildren(...all.map(this.buttonOf));
      if (isEmpty() && byId(`${this.name}-error`).hidden) place.firstElementChild?.click();
    } catch (error) {
      this.fetched = null;
      say(byId(`${this.name}-error`), wordsOf(error));
    }
  }
}

/**
 * A tab for the models of one kind of input; the ids of its elements begin with its name. `example(given, number)` makes
 * of a built-in input its file and the content of its button.
 */
export class FileTab {
  constructor(name, input, example) {
    Object.assign(this, { name, input, file: null, asked: 0 });
    this.examples = new Examples(name, (given, number) => {
      const { file, content } = example(given, number);
      const button = make("button", { type: "button", title: given.caption, "aria-pressed": "false" }, content);
      button.addEventListener("click", () => {
        if (this.#model().text_label && !this.#part("text").value) this.#part("text").value = given.caption;
        this.take(file, button);
      });
      return button;
    });
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
  }

  /** The tab is opened; a file that came before the models were known is looked at now. */
  open() {
    if (this.file && !this.asked) this.take(this.file);
    return this.examples.open(() => !this.file);
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
    if (!this.#model()) return;
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
  return new FileTab("picture", "image", ({ caption, data }, number) => ({
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
