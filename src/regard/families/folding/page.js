// The Protein tab: a sequence, an alignment or a structure in; the model's answer, and what its residues look at. The view
// is that of the report.
//
// Its parts, for tests and scripts: #protein-file -drop -model -text -go -error -answer, #protein-examples button,
// #protein-view (data-state: empty | busy | done | error); of a structure: [data-part="map" | "chain" | "readout" |
// "layer" | "head" | "colour" | "overlay" | "truth"]

import { upload, wordsOf } from "../../api.js";
import { registerAnswer, showAnswer } from "../../answers.js";
import { byId, fillSelect, make, onDrop, say } from "../../dom.js";
import { modelLabel } from "../../format.js";
import { Examples, showReport } from "../../inspect.js";
import { modelList, watchModels } from "../../model_list.js";
import { registerTab } from "../../tabs.js";

const markup = `
  <p class="empty" id="protein-none" hidden>No model here reads proteins. Start the server with <code>-m FOLDER</code> of one, such as an Evoformer.</p>
  <div id="protein-content">
    <form class="card file-form" id="protein-form">
      <div>
        <label class="drop" id="protein-drop">
          <input type="file" id="protein-file" accept=".fasta,.fa,.a3m,.afa,.pdb,.ent,.cif" aria-describedby="protein-error">
          <span class="drop-title">Drop a FASTA, A3M, PDB or mmCIF file here, or <u>choose one</u></span>
          <span class="hint">A structure is predicted from its sequence, and compared with it; a model of pairs reads two sequences</span>
        </label>
        <p class="hint samples-name" id="protein-examples-name">Or try one of these, generated</p>
        <div class="row" id="protein-examples" role="group" aria-labelledby="protein-examples-name"></div>
      </div>
      <div>
        <label class="field">Model<select id="protein-model"></select></label>
        <label class="field">Sequence<textarea id="protein-text" rows="3" spellcheck="false" autocomplete="off"></textarea></label>
        <button type="submit" class="main" id="protein-go">Read it</button>
        <p class="notice bad" id="protein-error" role="alert" hidden></p>
        <div id="protein-answer"></div>
      </div>
    </form>
    <div id="protein-view" data-state="empty" hidden></div>
  </div>`;

let file = null, asked = 0, whole = null; // what the model answered with all heads

function start() {
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
}

const chosenModel = () => modelList.models.find((model) => model.id === byId("protein-model").value);

/** Generated chains, whose structure is known; a model of pairs reads one with the next. */
const examples = new Examples("protein", ({ name, sequence, structure }, number, all) => {
  const button = make("button", { type: "button", className: "pill", textContent: `a chain of ${sequence.length} residues`, title: sequence, data: { protein: name } });
  button.addEventListener("click", () => {
    if (chosenModel().ability === "interact") {
      const next = all[(number + 1) % all.length];
      byId("protein-text").value = `>${name}\n${sequence}\n>${next.name}\n${next.sequence}`;
      read();
      return;
    }
    byId("protein-text").value = sequence;
    file = new File([structure], `${name}.pdb`, { type: "chemical/x-pdb" });
    inspect();
  });
  return button;
});

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

/** How sure a model is of a structure, and what was changed in the sequence. */
function folded({ name, confidence, told }) {
  const mean = confidence.reduce((sum, each) => sum + each, 0) / confidence.length;
  return [
    make("h2", { className: "answer-name", textContent: `${name}: ${confidence.length} residues` }),
    make("p", { className: "caption", textContent: `confidence ${mean.toFixed(0)} of 100, its own estimate; no claim of folding` }),
    ...told.map((each) => make("p", { className: "hint", textContent: each })),
  ];
}

registerAnswer("fold", folded);
registerTab("protein", { title: "Protein", reads: "protein", markup, refresh: () => examples.open(() => !file && !byId("protein-text").value) });
start();
