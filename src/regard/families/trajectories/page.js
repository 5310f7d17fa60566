// The Scene tab: tracks of agents in, samples of their future out. The view is that of the offline page
// (agents.js).
//
// Its parts, for tests and scripts: #scene-file -drop -model -at -sample -samples -go -error, #scene-examples button,
// #scene-view (data-state: empty | busy | done | error) with [data-part="canvas" | "readout" | "whom" | "layer" |
// "head" | "play" | "time" | "clock"]

import { upload, wordsOf } from "../../api.js";
import { byId, fillSelect, make, onDrop, say } from "../../dom.js";
import { modelLabel } from "../../format.js";
import { Examples, showReport } from "../../inspect.js";
import { modelList, watchModels } from "../../model_list.js";
import { registerTab } from "../../tabs.js";

const markup = `
  <p class="empty" id="scene-none" hidden>No model here forecasts tracks. Start the server with <code>-m FOLDER</code> of one, such as an AgentFormer.</p>
  <div id="scene-content">
    <form class="card file-form" id="scene-form">
      <div>
        <label class="drop" id="scene-drop">
          <input type="file" id="scene-file" accept=".csv,.txt,.tsv" aria-describedby="scene-error">
          <span class="drop-title">Drop tracks here, or <u>choose a file</u></span>
          <span class="hint">Rows of frame, agent, x, y in metres: ETH/UCY's text files, or any CSV.</span>
        </label>
        <p class="hint samples-name" id="scene-examples-name">Or try one of these</p>
        <div class="row" id="scene-examples" role="group" aria-labelledby="scene-examples-name"></div>
      </div>
      <div>
        <label class="field">Model<select id="scene-model"></select></label>
        <div class="row">
          <label class="field">Frame<input type="number" id="scene-at" step="any" placeholder="the last"></label>
          <label class="field">Samples<input type="number" id="scene-samples" value="20" min="1" max="200" step="1"></label>
          <label class="field">Look at sample<input type="number" id="scene-sample" min="0" step="1" placeholder="likeliest"></label>
          <button type="submit" class="main" id="scene-go">Forecast</button>
        </div>
        <p class="notice bad" id="scene-error" role="alert" hidden></p>
      </div>
    </form>
    <div id="scene-view" data-state="empty" hidden></div>
  </div>`;

let file = null, asked = 0;

function start() {
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
}

/** Built-in scenes: rows of frame, agent, x and y. */
const examples = new Examples("scene", ({ name, tracks, frame }) => {
  const walkers = new Set(tracks.trim().split("\n").slice(1).map((row) => row.split(",")[1]));
  const button = make("button", { type: "button", className: "pill", textContent: `${walkers.size} people walking`, data: { scene: name } });
  button.addEventListener("click", () => take(new File([tracks], `${name}.csv`, { type: "text/csv" }), frame));
  return button;
});

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

registerTab("scene", { title: "Scene", reads: "scene", markup, refresh: () => examples.open(() => !file) });
start();
