// The Picture tab: drop an image, see the model's answer, and what it looked at. The view is that of the report
// (look/axes/VIEW.js), and the answer is shown by what the model can do (answers.js).

import { get, post, upload, wordsOf } from "./api.js";
import { byId, fillSelect, make, onDrop, say } from "./dom.js";
import { showAnswer } from "./answers.js";
import { modelLabel } from "./format.js";
import { viewOf } from "./look/offline.js";
import { bytesOf } from "./look/weights.js";
import { modelList, watchModels } from "./model_list.js";

let file = null, asked = 0;

export function startInspect() {
  const input = byId("picture-file");
  onDrop(byId("picture-drop"), ([first]) => take(first));
  input.addEventListener("change", () => take(input.files[0]));
  byId("picture-model").addEventListener("change", () => { showText(); take(file); });
  byId("picture-text").addEventListener("change", () => take(file));
  watchModels(showModels);
}

/** Built-in images to try a model with. */
async function showExamples() {
  const examples = await get("/api/inspect/examples");
  byId("picture-examples").replaceChildren(...examples.map(({ caption, data }, number) => {
    const image = new File([bytesOf(data)], `example ${number + 1}.png`, { type: "image/png" });
    const button = make("button", { type: "button", title: caption, "aria-pressed": "false" },
      make("img", { src: `data:image/png;base64,${data}`, alt: caption }));
    button.addEventListener("click", () => take(image, button));
    return button;
  }));
}

function showModels() {
  const seeing = modelList.models.filter((model) => model.input === "image");
  fillSelect(byId("picture-model"), seeing.map((model) => [model.id, modelLabel(model)]), byId("picture-model").value);
  byId("picture-none").hidden = seeing.length > 0;
  byId("picture-desk").hidden = !seeing.length;
  showText();
  if (seeing.length && !byId("picture-examples").childElementCount) showExamples();
}

const chosenModel = () => modelList.models.find((model) => model.id === byId("picture-model").value);

/** Models that read a text beside the image have a field for it. */
function showText() {
  const label = chosenModel()?.text_label ?? "";
  byId("picture-text-field").hidden = !label;
  byId("picture-text-label").textContent = label;
}

async function take(chosen, example = null) {
  if (!chosen) return;
  if (chosen !== file) for (const each of byId("picture-examples").children) each.setAttribute("aria-pressed", each === example);
  file = chosen;
  const view = byId("picture-view"), number = ++asked, form = new FormData();
  form.append("file", file);
  form.append("model", byId("picture-model").value);
  if (chosenModel()?.text_label) form.append("text", byId("picture-text").value);
  view.dataset.state = "busy";
  say(byId("picture-error"), "");
  try {
    const seen = await upload("/api/inspect", form);
    if (number === asked) await show(seen, view);
  } catch (error) {
    if (number !== asked) return;
    view.hidden = true;
    view.dataset.state = "error";
    showAnswer(byId("picture-answer"), chosenModel().ability, null);
    say(byId("picture-error"), wordsOf(error));
  }
}

async function show(seen, view) {
  showAnswer(byId("picture-answer"), chosenModel().ability, seen.answer);
  await showReport(seen, view);
}

/** Show the report of an answer in the view that it names; weights are fetched layer by layer. */
export async function showReport(seen, view) {
  const { report } = seen;
  view.hidden = !report.panels.length && !report.shown_as;
  if (!view.hidden) {
    await import(`./look/axes/${report.view}.js`); // registers the view
    const { markup, layout, open } = viewOf(report.view), pieces = new Map();
    const fetched = async (layer) => bytesOf((await post("/api/inspect/layer", { id: seen.id, layer })).data);
    const weightsOf = (layer) => {
      if (!pieces.has(layer)) pieces.set(layer, fetched(layer));
      return pieces.get(layer);
    };
    view.className = `inspected ${layout}`;
    view.innerHTML = markup; // constant markup of the view
    open(view, report, weightsOf);
  }
  view.dataset.state = "done";
}
