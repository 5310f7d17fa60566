// The House tab: a house and an instruction in, ranked paths out. A click on the plan starts from another viewpoint, and
// one on a path of the list shows the attention to it. The view is that of the offline page (look/axes/house.js).

import { get, upload, wordsOf } from "./api.js";
import { byId, fillSelect, make, onDrop, say } from "./dom.js";
import { modelLabel } from "./format.js";
import { showReport } from "./inspect.js";
import { modelList, watchModels } from "./model_list.js";

let file = null, asked = 0;

export function startHouse() {
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
  if (walking.length && !byId("house-examples").childElementCount) showExamples();
}

/** Built-in houses, each with a route in words. */
async function showExamples() {
  const examples = await get("/api/inspect/houses");
  byId("house-examples").replaceChildren(...examples.map(({ name, graph, start, heading, instruction }) => {
    const button = make("button", { type: "button", className: "pill", textContent: name, title: instruction });
    button.addEventListener("click", async () => {
      byId("house-text").value = instruction;
      byId("house-heading").value = heading;
      await take(new File([JSON.stringify(graph)], `${name}_connectivity.json`, { type: "application/json" }), start);
      find();
    });
    return button;
  }));
}

/** Read the viewpoints of a graph, one of which is the start. */
async function take(chosen, start = "") {
  if (!chosen) return;
  say(byId("house-error"), "");
  try {
    const viewpoints = JSON.parse(await chosen.text()).filter((each) => each.included).map((each) => each.image_id);
    fillSelect(byId("house-start"), viewpoints.map((each) => [each, each]), start || viewpoints[0]);
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
