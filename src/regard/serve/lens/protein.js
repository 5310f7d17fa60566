// The Protein tab: a sequence, an alignment or a structure in; the model's answer, and what its residues look at. The view
// is that of the report (look/axes/VIEW.js).

import { get, upload, wordsOf } from "./api.js";
import { showAnswer } from "./answers.js";
import { byId, fillSelect, make, onDrop, say } from "./dom.js";
import { modelLabel } from "./format.js";
import { showReport } from "./inspect.js";
import { modelList, watchModels } from "./model_list.js";

let file = null, asked = 0, whole = null; // what the model answered with all heads

export function startProtein() {
  const input = byId("protein-file");
  onDrop(byId("protein-drop"), ([first]) => take(first));
  input.addEventListener("change", () => take(input.files[0]));
  byId("protein-form").addEventListener("submit", (event) => { event.preventDefault(); read(); });
  byId("protein-model").addEventListener("change", () => { if (file) inspect(); });
  byId("protein-text").addEventListener("input", () => { file = null; });
  watchModels(showModels);
}

function showModels() {
  const reading = modelList.models.filter((model) => model.input === "protein");
  fillSelect(byId("protein-model"), reading.map((model) => [model.id, modelLabel(model)]), byId("protein-model").value);
  byId("protein-none").hidden = reading.length > 0;
  byId("protein-content").hidden = !reading.length;
  if (reading.length && !byId("protein-examples").childElementCount) showExamples();
}

const chosenModel = () => modelList.models.find((model) => model.id === byId("protein-model").value);

/** Generated chains, whose structure is known; a model of pairs reads one with the next. */
async function showExamples() {
  const examples = await get("/api/inspect/chains");
  byId("protein-examples").replaceChildren(...examples.map(({ name, sequence, structure }, number) => {
    const button = make("button", { type: "button", className: "pill", textContent: `${name}, ${sequence.length} residues`, title: sequence });
    button.addEventListener("click", () => {
      if (chosenModel().ability === "interact") {
        const next = examples[(number + 1) % examples.length];
        byId("protein-text").value = `>${name}\n${sequence}\n>${next.name}\n${next.sequence}`;
        read();
        return;
      }
      byId("protein-text").value = sequence;
      file = new File([structure], `${name}.pdb`, { type: "chemical/x-pdb" });
      inspect();
    });
    return button;
  }));
}

function take(chosen) {
  if (!chosen) return;
  byId("protein-text").value = "";
  file = chosen;
  inspect();
}

/** The typed sequences as a FASTA file. */
function read() {
  const text = byId("protein-text").value.trim();
  if (text) file = new File([text.startsWith(">") ? text : `>sequence\n${text}`], "sequence.fasta");
  if (file) inspect();
}

async function inspect(without = []) {
  const view = byId("protein-view"), number = ++asked, form = new FormData(), answer = byId("protein-answer");
  const chosen = chosenModel();
  form.append("file", file);
  form.append("model", chosen.id);
  for (const head of without) form.append("without", head);
  view.dataset.state = "busy";
  say(byId("protein-error"), "");
  try {
    const seen = await upload("/api/inspect", form);
    if (number !== asked) return;
    if (!without.length) whole = seen.answer;
    showAnswer(answer, chosen.ability, seen.answer, without.length ? whole : null);
    await showReport(seen, view, inspect);
  } catch (error) {
    if (number !== asked) return;
    Object.assign(view, { hidden: true }).dataset.state = "error";
    showAnswer(answer, chosen.ability, null);
    say(byId("protein-error"), wordsOf(error));
  }
}
