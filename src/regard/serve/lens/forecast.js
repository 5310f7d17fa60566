// The Scene tab: tracks of agents in, samples of their future out. The view is that of the offline page
// (look/axes/agents.js).

import { get, upload, wordsOf } from "./api.js";
import { byId, fillSelect, make, onDrop, say } from "./dom.js";
import { modelLabel } from "./format.js";
import { showReport } from "./inspect.js";
import { modelList, watchModels } from "./model_list.js";

let file = null, asked = 0;

export function startScene() {
  const input = byId("scene-file");
  onDrop(byId("scene-drop"), ([first]) => take(first));
  input.addEventListener("change", () => take(input.files[0]));
  byId("scene-form").addEventListener("submit", (event) => { event.preventDefault(); forecast(); });
  for (const name of ["model", "at", "sample"]) byId(`scene-${name}`).addEventListener("change", () => forecast());
  watchModels(showModels);
}

function showModels() {
  const walking = modelList.models.filter((model) => model.input === "scene");
  fillSelect(byId("scene-model"), walking.map((model) => [model.id, modelLabel(model)]), byId("scene-model").value);
  byId("scene-none").hidden = walking.length > 0;
  byId("scene-content").hidden = !walking.length;
  if (walking.length && !byId("scene-examples").childElementCount) showExamples();
}

/** Built-in scenes. */
async function showExamples() {
  const examples = await get("/api/inspect/scenes");
  byId("scene-examples").replaceChildren(...examples.map(({ name, tracks, frame }) => {
    const button = make("button", { type: "button", className: "pill", textContent: name });
    button.addEventListener("click", () => take(new File([tracks], `${name}.csv`, { type: "text/csv" }), frame));
    return button;
  }));
}

function take(chosen, frame = "") {
  if (!chosen) return;
  file = chosen;
  byId("scene-at").value = frame;
  forecast();
}

async function forecast(without = []) {
  if (!file) return;
  const view = byId("scene-view"), number = ++asked, form = new FormData();
  form.append("file", file);
  form.append("model", byId("scene-model").value);
  form.append("options", JSON.stringify({ at: byId("scene-at").value, sample: byId("scene-sample").value || "-1", samples: byId("scene-samples").value || "20" }));
  for (const head of without) form.append("without", head);
  view.dataset.state = "busy";
  say(byId("scene-error"), "");
  try {
    const seen = await upload("/api/inspect", form);
    if (number !== asked) return;
    const { first, last, step, frame } = seen.answer;
    Object.assign(byId("scene-at"), { min: first, max: last, step, value: frame });
    await showReport(seen, view, forecast);
  } catch (error) {
    if (number !== asked) return;
    Object.assign(view, { hidden: true }).dataset.state = "error";
    say(byId("scene-error"), wordsOf(error));
  }
}
