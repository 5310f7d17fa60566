// The Workbench tab: an attention layer in numbers that can be changed. The server computes every matrix shown.

import { get, isAbort, post, wordsOf } from "./api.js";
import { byId, debounce, make, say } from "./dom.js";
import { colour, inkOn } from "./look/colours.js";

const ABOUT = [
  "One query, some measure of similarity", "Dot product", "Scaled dot product", "Many queries", "Keys and values",
  "Self-attention", "Causal mask", "Several heads",
];
const GIVEN = { inputs: "X", queries: "q", query_weights: "W_Q", key_weights: "W_K", value_weights: "W_V", output_weights: "W_O" };
const WEIGHTS = "Attention weights"; // the only matrices between 0 and 1, which have a colour
let layer = null, asking = null; // asking: the one request whose answer is still wanted

export function startWorkbench() {
  byId("workbench-steps").append(...ABOUT.map((title, index) => {
    const button = make("button", { type: "button", className: "pill", textContent: index + 1, title, data: { step: index + 1 } });
    button.addEventListener("click", () => useStep(index + 1));
    return button;
  }));
  for (const box of document.querySelectorAll("#panel-workbench [data-switch]")) box.addEventListener("change", () => turn(box.dataset.switch, box.checked));
  byId("workbench-size").addEventListener("change", ({ target }) => resize(Number(target.value), width()));
  byId("workbench-width").addEventListener("change", ({ target }) => resize(layer.inputs.length, Number(target.value)));
  byId("workbench-heads").addEventListener("change", ({ target }) => { layer.heads = Math.max(1, Math.round(Number(target.value)) || 1); show(); });
}

/** The tab is opened: show a step, unless one is shown or was chosen already. */
export function refreshWorkbench() {
  if (!layer && !asking) useStep(7);
}

const width = () => layer.inputs[0].length;

/** The signal of a request that takes the place of the one before, whose answer must not be shown after its own. */
function askAnew() {
  asking?.abort();
  return (asking = new AbortController()).signal;
}

async function useStep(step) {
  const settings = byId("workbench-settings");
  settings.disabled = true; // a step is on its way, with its own
  recompute.cancel();
  try {
    layer = await get(`/api/workbench/examples/${step}`, askAnew());
  } catch (error) {
    if (isAbort(error)) return;
    asking = null;
    settings.disabled = !layer;
    say(byId("workbench-error"), wordsOf(error));
    return;
  }
  settings.disabled = false;
  for (const button of byId("workbench-steps").children) button.setAttribute("aria-pressed", Number(button.dataset.step) === step);
  byId("workbench-about").textContent = `Step ${step}: ${ABOUT[step - 1]}`;
  show();
}

/** A switch changes one thing of the layer and leaves its numbers alone. */
function turn(name, isOn) {
  if (name === "self") {
    // The queries that are taken away become the projection of the inputs, so that the scores stay what they were.
    if (isOn) [layer.query_weights, layer.queries] = [layer.query_weights ?? fit(layer.queries ?? [], width(), width()), null];
    else layer.queries = layer.inputs.map((row) => [...row]);
  } else if (name === "additive") layer.similarity = isOn ? "additive" : "dot";
  else if (name === "reversed") layer.order = isOn ? layer.inputs.map((_, index) => index).reverse() : [];
  else layer[name] = isOn;
  show();
}

/** Another number of inputs or another width: numbers that were there stay, and new ones continue the identity. */
function resize(count, wide) {
  count = Math.min(8, Math.max(1, Math.round(count) || 1));
  wide = Math.min(8, Math.max(1, Math.round(wide) || 1));
  layer.inputs = fit(layer.inputs, count, wide);
  if (layer.queries) layer.queries = fit(layer.queries, Math.min(layer.queries.length, count), wide);
  for (const name of ["query_weights", "key_weights", "value_weights", "output_weights"]) if (layer[name]) layer[name] = fit(layer[name], wide, wide);
  if (layer.order.length) layer.order = layer.inputs.map((_, index) => index).reverse();
  show();
}

const fit = (rows, count, wide) => Array.from({ length: count }, (_, row) => Array.from({ length: wide }, (_, column) => rows[row]?.[column] ?? Number(row === column)));

function show() {
  for (const box of document.querySelectorAll("#panel-workbench [data-switch]")) {
    box.checked = { self: !layer.queries, additive: layer.similarity === "additive", reversed: layer.order.length > 0 }[box.dataset.switch] ?? layer[box.dataset.switch];
  }
  Object.assign(byId("workbench-size"), { value: layer.inputs.length });
  Object.assign(byId("workbench-width"), { value: width() });
  Object.assign(byId("workbench-heads"), { value: layer.heads });
  byId("workbench-given").replaceChildren(...Object.entries(GIVEN).filter(([name]) => layer[name]).map(([name, title]) => figure(title, "", given(name, title))));
  return compute();
}

function given(name, title) {
  return make("table", { data: { matrix: name } }, ...layer[name].map((row, at) => make("tr", {}, ...row.map((value, column) => {
    const input = make("input", { type: "number", step: "any", value, "aria-label": `${title}, row ${at + 1}, column ${column + 1}` });
    input.addEventListener("input", () => { row[column] = input.valueAsNumber; recompute(); });
    return make("td", {}, input);
  }))));
}

const recompute = debounce(150, compute);

async function compute() {
  const view = byId("workbench-view"), signal = askAnew();
  view.dataset.state = "busy";
  try {
    const { steps, fused_difference: fused, order_difference: order } = await post("/api/workbench", layer, signal);
    view.replaceChildren(...steps.map(({ name, formula, matrices }) => figure(name, formula, ...matrices.map((matrix, head) => computed(matrix, head, name === WEIGHTS)))));
    view.dataset.state = "done";
    byId("workbench-notes").textContent = notes(fused, order);
    say(byId("workbench-error"), "");
  } catch (error) {
    if (isAbort(error)) return;
    view.dataset.state = "error";
    say(byId("workbench-error"), wordsOf(error));
  }
}

function notes(fused, order) {
  const found = [];
  if (fused !== null) found.push(fused ? `The fused kernel gives the same outputs within ${fused.toExponential(0)}.` : "The fused kernel gives the same outputs.");
  if (order !== null) found.push(order < 1e-9 ? "The outputs follow the order of the inputs: attention does not know positions." : "The outputs do not follow the order of the inputs: the mask knows positions.");
  return found.join(" ");
}

function figure(title, formula, ...tables) {
  return make("figure", { className: "workbench-figure", data: { name: title } }, make("figcaption", {}, make("b", { textContent: title }), ` ${formula}`), make("div", { className: "row" }, ...tables));
}

function computed(matrix, head, isWeight) {
  return make("table", { className: isWeight ? "weights" : "", data: { head } }, ...matrix.map((row) => make("tr", {}, ...row.map((value) => {
    const cell = make("td", { textContent: value === null ? "−∞" : written(value), title: value === null ? "masked" : String(value) });
    if (isWeight) Object.assign(cell.style, { background: colour(value), color: inkOn(value) });
    return cell;
  }))));
}

const written = (value) => (Number.isInteger(value) ? String(value) : value.toFixed(3)).replace("-", "−");
