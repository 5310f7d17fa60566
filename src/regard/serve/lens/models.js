// The Models tab: a card for every model; what is inside is fetched when it is opened.

import { get, wordsOf } from "./api.js";
import { byId, make } from "./dom.js";
import { bytes, count, ABILITIES, KINDS, languageName, millions } from "./format.js";
import { renderMarkdown } from "./markdown.js";
import { modelList, watchModels } from "./model_list.js";

let actions;

/** `use(id)` translates with a model, `lookInto(id)` shows its attention. */
export function startModels(use, lookInto) {
  actions = { use, lookInto };
  watchModels(show);
}

function show() {
  byId("models-empty").hidden = modelList.models.length > 0;
  const kept = new Map([...byId("model-cards").children].map((old) => [old.dataset.model, old.querySelector("details")]));
  byId("model-cards").replaceChildren(...modelList.models.map((model) => card(model, kept.get(model.id) ?? closed(model.id))));
}

/** What can be opened below a card; it outlives the card, so that a new list of models does not close it. */
function closed(id) {
  const details = make("details", {}, make("summary", { textContent: "Configuration, layers, costs, card" }));
  details.addEventListener("toggle", () => open(details, id));
  return details;
}

function card(model, details) {
  const translates = model.ability === "translate";
  const buttons = [
    ...(translates ? [button("Translate with it", actions.use, model)] : []),
    ...(model.input !== "text" || (translates && !model.attention) ? [] : [button("Look into it", actions.lookInto, model)]),
  ];
  const targets = model.targets.map(languageName).join(", ");
  return make("article", { className: "card model", data: { model: model.id } },
    make("div", { className: "bar" },
      make("h2", { textContent: model.id }),
      make("span", { className: "badge", textContent: model.title }),
      make("span", { className: "badge", textContent: model.loaded ? "in memory" : "loads when used" }),
      make("div", { className: "row" }, ...buttons)),
    make("p", { className: "pair", textContent: translates ? `${model.sources.map(languageName).join(", ")} → ${targets}` : ABILITIES[model.ability] }),
    facts({
      Parameters: millions(model.parameters),
      Size: bytes(model.bytes),
      Attention: model.attention ? "can be looked at" : "none: one fixed vector",
    }),
    details);
}

function button(label, action, { id }) {
  const made = make("button", { type: "button", textContent: label, "aria-label": `${label}: ${id}` });
  made.addEventListener("click", () => action(id));
  return made;
}

function facts(values) {
  const fact = ([name, value]) => make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value }));
  return make("dl", { className: "fact-grid" }, ...Object.entries(values).map(fact));
}

async function open(details, id) {
  if (!details.open || details.dataset.filled) return;
  details.dataset.filled = "yes";
  const place = make("div", { className: "inside" }, make("p", { className: "hint", textContent: "Opening…" }));
  details.append(place);
  try {
    place.replaceChildren(...inside(await get(`/api/models/${encodeURIComponent(id)}`)));
  } catch (error) {
    place.replaceChildren(make("p", { className: "notice bad", role: "alert", textContent: wordsOf(error) }));
    delete details.dataset.filled;
    details.addEventListener("toggle", () => place.remove(), { once: true });
  }
}

function inside(model) {
  const { kind, step: _, ...metrics } = model.metrics ?? {};
  const layers = (model.layers ?? []).map((layer) => [layer.name, KINDS[layer.kind] ?? layer.kind, String(layer.heads)]);
  const parts = [
    ["What it costs", model.plan?.length ? table([], model.plan) : null],
    [`How good it is${kind === "test" ? ", on sentences set aside" : ""}`, Object.keys(metrics).length ? table([], flat(metrics)) : null],
    ["Attention layers", layers.length ? table(["Layer", "Kind", "Heads"], layers) : null],
    ["Configuration", table([], flat(model.config))],
    ["Model card", model.card ? renderMarkdown(model.card) : null],
    ["Recipe", model.recipe ? make("pre", { tabIndex: 0 }, make("code", { textContent: model.recipe })) : null],
  ];
  return parts.filter(([, content]) => content).map(([title, content]) => make("section", {}, make("h3", { textContent: title }), content));
}

/** Nested values as rows of dotted names. */
function flat(values, prefix = "") {
  return Object.entries(values).flatMap(([name, value]) => {
    const path = prefix ? `${prefix}.${name}` : name;
    return value && typeof value === "object" && !Array.isArray(value) ? flat(value, path) : [[path, shown(value)]];
  });
}

function shown(value) {
  if (typeof value === "number") return Number.isInteger(value) ? count(value) : String(Number(value.toPrecision(4)));
  if (typeof value === "boolean") return value ? "yes" : "no";
  return value === null ? "none" : Array.isArray(value) ? value.join(", ") : String(value);
}

function table(head, rows) {
  const row = (tag, cells) => make("tr", {}, ...cells.map((cell) => make(tag, { textContent: cell })));
  const headings = head.length ? [make("thead", {}, row("th", head))] : [];
  return make("table", { className: "plain" }, ...headings, make("tbody", {}, ...rows.map((cells) => row("td", cells))));
}
