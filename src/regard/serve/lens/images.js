// The Picture tab: drop an image, see its classes, and what each of its cells looks at.

import { get, post, upload, wordsOf } from "./api.js";
import { byId, fillSelect, make, onDrop, say } from "./dom.js";
import { modelLabel, percent } from "./format.js";
import { GridView } from "./look/axes/grid.js";
import { bytesOf } from "./look/weights.js";
import { modelList, watchModels } from "./model_list.js";

const SHOWN = 5; // classes
let file = null, asked = 0;

export function startImages() {
  const input = byId("picture-file");
  onDrop(byId("picture-drop"), ([first]) => take(first));
  input.addEventListener("change", () => take(input.files[0]));
  byId("picture-model").addEventListener("change", () => take(file));
  watchModels(showModels);
}

/** Built-in images to try a model with. */
async function showExamples() {
  const examples = await get("/api/picture/examples");
  byId("picture-examples").replaceChildren(...examples.map(({ caption, data }, number) => {
    const image = new File([bytesOf(data)], `example ${number + 1}.png`, { type: "image/png" });
    const button = make("button", { type: "button", title: caption, "aria-pressed": "false" },
      make("img", { src: `data:image/png;base64,${data}`, alt: caption }));
    button.addEventListener("click", () => take(image, button));
    return button;
  }));
}

function showModels() {
  const seeing = modelList.models.filter((model) => model.ability === "see");
  fillSelect(byId("picture-model"), seeing.map((model) => [model.id, modelLabel(model)]), byId("picture-model").value);
  byId("picture-none").hidden = seeing.length > 0;
  byId("picture-desk").hidden = !seeing.length;
  if (seeing.length && !byId("picture-examples").childElementCount) showExamples();
}

async function take(chosen, example = null) {
  if (!chosen) return;
  if (chosen !== file) for (const each of byId("picture-examples").children) each.setAttribute("aria-pressed", each === example);
  file = chosen;
  const view = byId("picture-view"), number = ++asked, form = new FormData();
  form.append("file", file);
  form.append("model", byId("picture-model").value);
  view.dataset.state = "busy";
  say(byId("picture-error"), "");
  try {
    const seen = await upload("/api/picture", form);
    if (number === asked) show(seen, view);
  } catch (error) {
    if (number !== asked) return;
    view.hidden = true;
    view.dataset.state = "error";
    showLabels({});
    say(byId("picture-error"), wordsOf(error));
  }
}

function showLabels(labels) {
  const best = Object.entries(labels).slice(0, SHOWN);
  byId("picture-answer").hidden = !best.length;
  byId("picture-labels").replaceChildren(...best.map(([label, share]) => {
    const filled = make("span", { className: "filled" });
    filled.style.setProperty("--share", share);
    return make("li", {}, make("span", { className: "key", title: label, textContent: label }),
      make("span", { className: "track" }, filled), make("span", { className: "part", textContent: percent(share) }));
  }));
}

function show(seen, view) {
  showLabels(seen.labels);
  view.hidden = !seen.sight.panels.length;
  view.dataset.state = "done";
  if (view.hidden) return;
  const pieces = new Map();
  const fetched = async (layer) => bytesOf((await post("/api/picture/layer", { id: seen.id, layer })).data);
  const weightsOf = (layer) => {
    if (!pieces.has(layer)) pieces.set(layer, fetched(layer));
    return pieces.get(layer);
  };
  new GridView(view, seen.sight, weightsOf);
}
