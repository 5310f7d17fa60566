// The House tab: a house and an instruction in, ranked paths out. A click on the plan starts from another viewpoint, and
// one on a path of the list shows the attention to it. The view is that of the offline page (house.js).
//
// Its parts, for tests and scripts: #house-file -drop -model -text -start -heading -go -error, #house-examples
// button, #house-view (data-state: empty | busy | done | error) with [data-part="canvas" | "readout" | "words" |
// "paths" | "layer" | "head"]

import { upload, wordsOf } from "../../api.js";
import { byId, fillSelect, make, onDrop, say } from "../../dom.js";
import { modelLabel } from "../../format.js";
import { Examples, showReport } from "../../inspect.js";
import { modelList, watchModels } from "../../model_list.js";
import { registerTab } from "../../tabs.js";

const markup = `
  <p class="empty" id="house-none" hidden>No model here finds paths. Start the server with <code>-m FOLDER</code> of one, such as a VLN-BERT.</p>
  <div id="house-content">
    <form class="card file-form" id="house-form">
      <div>
        <label class="drop" id="house-drop">
          <input type="file" id="house-file" accept=".json" aria-describedby="house-error">
          <span class="drop-title">Drop the graph of a house here, or <u>choose one</u></span>
          <span class="hint">A connectivity file, NAME_connectivity.json. The model sees no images, only the geometry.</span>
        </label>
        <p class="hint samples-name" id="house-examples-name">Or try one of these</p>
        <div class="row" id="house-examples" role="group" aria-labelledby="house-examples-name"></div>
      </div>
      <div>
        <label class="field">Model<select id="house-model"></select></label>
        <label class="field">Instruction<input id="house-text" autocomplete="off"></label>
        <div class="row">
          <label class="field">Start<select id="house-start"></select></label>
          <label class="field">Heading in degrees<input type="number" id="house-heading" value="0" min="-360" max="360" step="any"></label>
          <button type="submit" class="main" id="house-go">Find the path</button>
        </div>
        <p class="notice bad" id="house-error" role="alert" hidden></p>
      </div>
    </form>
    <div id="house-view" data-state="empty" hidden></div>
  </div>`;

let file = null, asked = 0;

function start() {
  const input = byId("house-file");
  onDrop(byId("house-drop"), ([first]) => take(first));
  input.addEventListener("change", () => take(input.files[0]));
  byId("house-form").addEventListener("submit", (event) => { event.preventDefault(); find(); });
  byId("house-model").addEventListener("change", () => find());
  byId("house-view").addEventListener("viewpoint", ({ detail }) => { byId("house-start").value = detail; find(); });
  byId("house-view").addEventListener("rank", ({ detail }) => find(detail));
  watchModels(showModels);
}

function showModels() {
  const walking = modelList.models.filter((model) => model.input === "house");
  fillSelect(byId("house-model"), walking.map((model) => [model.id, modelLabel(model)]), byId("house-model").value);
  byId("house-none").hidden = walking.length > 0;
  byId("house-content").hidden = !walking.length;
}

/** Built-in houses, each with a route in words. */
const examples = new Examples("house", ({ name, graph, start, heading, instruction }) => {
  const places = graph.filter((each) => each.included);
  const button = make("button", { type: "button", className: "pill", textContent: `a house with ${places.length} places`, title: instruction, data: { house: name } });
  button.addEventListener("click", async () => {
    byId("house-text").value = instruction;
    byId("house-heading").value = heading;
    await take(new File([JSON.stringify(graph)], `${name}_connectivity.json`, { type: "application/json" }), start);
    find();
  });
  return button;
});

/** Read the viewpoints of a graph, one of which is the start. */
async function take(chosen, start = "") {
  if (!chosen) return;
  say(byId("house-error"), "");
  try {
    const viewpoints = JSON.parse(await chosen.text()).filter((each) => each.included).map((each) => each.image_id);
    fillSelect(byId("house-start"), viewpoints.map((each, number) => [each, `place ${number + 1}`]), start || viewpoints[0]);
    file = chosen;
  } catch {
    say(byId("house-error"), `${chosen.name} is no connectivity file.`);
  }
}

async function find(rank = 0, without = []) {
  if (!file || !byId("house-text").value.trim()) return;
  const view = byId("house-view"), number = ++asked, form = new FormData();
  form.append("file", file);
  form.append("model", byId("house-model").value);
  form.append("text", byId("house-text").value);
  form.append("options", JSON.stringify({ start: byId("house-start").value, heading: byId("house-heading").value || "0", rank: String(rank) }));
  for (const head of without) form.append("without", head);
  view.dataset.state = "busy";
  say(byId("house-error"), "");
  try {
    const seen = await upload("/api/inspect", form);
    if (number === asked) await showReport(seen, view, (heads) => find(rank, heads));
  } catch (error) {
    if (number !== asked) return;
    Object.assign(view, { hidden: true }).dataset.state = "error";
    say(byId("house-error"), wordsOf(error));
  }
}

registerTab("house", { title: "House", reads: "house", markup, refresh: () => examples.open(() => !file) });
start();
