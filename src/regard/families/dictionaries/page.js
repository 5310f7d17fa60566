// The Features tab: the features of a dictionary, which of them a text activates, and what its model says when one is
// switched off or turned up. Names that are written here are kept beside the weights.
//
// Its parts, for tests and scripts: #features-model -text -error -facts, #features-active button[data-feature],
// #features-view (data-state: empty | busy | done | error) with [data-part="search" | "list" | "feature"], .features
// button[data-feature]; of the feature shown: #feature-name, #feature-context, #feature-value, #feature-off -up -go,
// #feature-answers (data-state: empty | busy | done)

import { readAddress, writeAddress } from "../../address.js";
import { get, post, wordsOf } from "../../api.js";
import { byId, fillSelect, make, say } from "../../dom.js";
import { plural, spokenToken } from "../../format.js";
import { FeatureBrowser, answerTable, litText } from "./feature_view.js";
import { modelList, watchModels } from "../../model_list.js";
import { registerTab } from "../../tabs.js";

const markup = `
  <p class="empty" id="features-none" hidden>No dictionary of features here. Train one with task <code>dictionary</code>, and start the server with <code>-m FOLDER</code> of it.</p>
  <div id="features-content">
    <form class="card" id="features-form">
      <div class="row">
        <label class="field">Dictionary<select id="features-model"></select></label>
        <label class="field grow" id="features-text-field">Which features are active on a text<input id="features-text" type="text" autocomplete="off"></label>
        <button type="submit" class="main" id="features-go">Read it</button>
      </div>
      <p class="hint" id="features-facts"></p>
      <p class="notice bad" id="features-error" role="alert" hidden></p>
      <ul class="contexts" id="features-active" hidden></ul>
    </form>
    <div id="features-view" data-state="empty"></div>
  </div>`;

const TURNED_UP = 2; // times the largest value that was seen
let browser = null, known = null, asked = 0;

function start() {
  browser = new FeatureBrowser(byId("features-view"), { load, below, opened: remember, failed: tell });
  byId("features-model").addEventListener("change", list);
  byId("features-form").addEventListener("submit", (event) => { event.preventDefault(); read(); });
  watchModels(showModels);
}

function refreshFeatures({ model, feature }) {
  if (model) byId("features-model").value = model;
  if (!known || known.id !== chosen()) list();
  else if (feature) browser.open(Number(feature));
}

const chosen = () => byId("features-model").value;
const query = () => `model=${encodeURIComponent(chosen())}`;
const load = (number) => get(`/api/features/${number}?${query()}`);
const tell = (error) => say(byId("features-error"), wordsOf(error));

function showModels() {
  const offered = modelList.models.filter((model) => model.input === "features");
  fillSelect(byId("features-model"), offered.map(({ id }) => [id, id]), chosen());
  byId("features-none").hidden = offered.length > 0;
  byId("features-content").hidden = !offered.length;
}

function remember(number) {
  say(byId("features-error"), "");
  writeAddress("features", { model: chosen(), feature: String(number) });
}

async function list() {
  const id = chosen(), view = byId("features-view"), { values } = readAddress();
  if (!id) return;
  view.dataset.state = "busy";
  try {
    const found = await get(`/api/features?${query()}`);
    if (id !== chosen()) return; // another dictionary was chosen meanwhile
    known = { ...found, id };
    byId("features-facts").textContent = `${plural(found.features.length, "feature")} of ${found.place} of ${found.model}, found among ${plural(found.vectors, "position")}`;
    byId("features-text-field").hidden = byId("features-go").hidden = !found.reads_text;
    byId("features-active").hidden = true;
    await browser.show(found.features, values.model === id ? Number(values.feature) : undefined);
    view.dataset.state = "done";
  } catch (error) {
    if (id !== chosen()) return;
    view.dataset.state = "error";
    tell(error);
  }
}

/** The features that a text activates, each with its value at every token. */
async function read() {
  const text = byId("features-text").value, largest = new Map(known.features.map((each) => [each.number, each.largest]));
  try {
    const { tokens, features } = await post("/api/features/active", { model: chosen(), text });
    byId("features-active").replaceChildren(...features.map(({ number, values }) => make("li", {},
      make("button", { type: "button", className: "pill", textContent: nameOf(number), data: { feature: number }, onclick: () => browser.open(number) }),
      litText(tokens, values, largest.get(number)))));
    byId("features-active").hidden = false;
    say(byId("features-error"), features.length ? "" : "No feature is active on this text.");
  } catch (error) {
    tell(error);
  }
}

const nameOf = (number) => known.features.find((each) => each.number === number)?.name || String(number);

/** Below a feature: its name to be written, and its value to be changed while the model answers. */
function below(feature) {
  return [...(modelList.training ? [nameForm(feature)] : []), ...changeForm(feature)];
}

function nameForm(feature) {
  const input = make("input", { id: "feature-name", type: "text", maxLength: 200, value: feature.name, autocomplete: "off" });
  const form = make("form", { className: "row" }, make("label", { className: "field grow" }, "Name, kept with the dictionary", input), make("button", { type: "submit", textContent: "Keep it" }));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const { name } = await post("/api/features/name", { model: chosen(), number: feature.number, name: input.value });
      browser.rename(feature.number, name);
      say(byId("features-error"), "");
    } catch (error) {
      tell(error);
    }
  });
  return form;
}

function changeForm(feature) {
  const up = TURNED_UP * feature.largest;
  const contexts = feature.contexts.map((each, number) => [String(number), promptOf(each)]);
  const select = make("select", { id: "feature-context" });
  fillSelect(select, contexts);
  const text = make("input", { id: "feature-text", type: "text", autocomplete: "off", placeholder: "the context that is chosen" });
  const value = make("input", { id: "feature-value", type: "number", step: "any", value: "0" });
  const answers = make("div", { id: "feature-answers", data: { state: "empty" }, "aria-live": "polite" });
  const ask = async () => {
    const number = ++asked, own = known.reads_text && text.value.trim();
    answers.dataset.state = "busy";
    try {
      const given = own ? { text: text.value } : { context: Number(select.value) };
      const { whole, changed } = await post("/api/features/change", { model: chosen(), number: feature.number, value: Number(value.value), ...given });
      if (number !== asked) return;
      const prompt = own ? text.value : promptOf(feature.contexts[Number(select.value)]);
      answers.replaceChildren(answerTable(["Context", "As it is", `Feature ${feature.number} at ${Number(value.value).toPrecision(3)}`], [[prompt, whole, changed]]),
        make("p", { className: "hint", textContent: whole === changed ? "The answer is the same." : "The answer is another one." }));
      answers.dataset.state = "done";
      say(byId("features-error"), "");
    } catch (error) {
      answers.dataset.state = "empty";
      tell(error);
    }
  };
  const preset = (id, label, amount) => make("button", { id, type: "button", textContent: label, onclick: () => { value.value = String(amount); ask(); } });
  const form = make("form", { className: "row" },
    make("label", { className: "field" }, "Context", select),
    ...(known.reads_text ? [make("label", { className: "field grow" }, "or your own text", text)] : []),
    make("label", { className: "field" }, "Value everywhere", value),
    make("button", { id: "feature-go", type: "submit", textContent: "Ask the model" }),
    preset("feature-off", "Switch it off", 0), preset("feature-up", "Turn it up", Number(up.toPrecision(4))));
  form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  return feature.contexts.length ? [make("h3", { textContent: "What the model says when the feature has another value" }), form, answers] : [];
}

/** A context up to its strongest token; of an image, its number. */
const promptOf = (context) => (context.tokens.length ? spokenToken(context.tokens.slice(0, context.at + 1).join("")) : `image ${context.example}`);

registerTab("features", { title: "Features", reads: "features", markup, refresh: refreshFeatures });
start();
