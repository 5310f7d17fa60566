// The Picture tab: drop a picture, see what a model takes it for, and where each of its places looks.

import { post, upload, wordsOf } from "./api.js";
import { prepare } from "./colours.js";
import { byId, fillSelect, make, onDrop, say } from "./dom.js";
import { modelLabel, percent } from "./format.js";
import { PictureView } from "./look/picture_view.js";
import { shelf, watchShelf } from "./shelf.js";
import { bytesOf } from "./weights.js";

const SHOWN = 5; // classes
let file = null, asked = 0;

export function startPicture() {
  const input = byId("picture-file");
  onDrop(byId("picture-drop"), ([first]) => take(first));
  input.addEventListener("change", () => take(input.files[0]));
  byId("picture-model").addEventListener("change", () => take(file));
  watchShelf(showModels);
}

function showModels() {
  const seeing = shelf.models.filter((model) => model.ability === "see");
  fillSelect(byId("picture-model"), seeing.map((model) => [model.id, modelLabel(model)]), byId("picture-model").value);
  byId("picture-none").hidden = seeing.length > 0;
  byId("picture-desk").hidden = !seeing.length;
}

async function take(chosen) {
  if (!chosen) return;
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
    byId("picture-labels").replaceChildren();
    say(byId("picture-error"), wordsOf(error));
  }
}

function show(seen, view) {
  const best = Object.entries(seen.labels).slice(0, SHOWN);
  byId("picture-labels").replaceChildren(...best.map(([label, share]) => make("li", { textContent: `${label} ${percent(share)}` })));
  view.hidden = !seen.sight.layers.length;
  view.dataset.state = "done";
  if (view.hidden) return;
  const pieces = new Map();
  const fetched = async (layer) => bytesOf((await post("/api/picture/layer", { id: seen.id, layer })).data);
  const weightsOf = (layer) => {
    if (!pieces.has(layer)) pieces.set(layer, fetched(layer));
    return pieces.get(layer);
  };
  new PictureView(view, seen.sight, { weightsOf, prepare, percent });
}
