// The page of a dictionary: features listed and searched, and the chosen one with its contexts, outputs and effects.

import { byId, make } from "./dom.js";
import { colour, inkOn, onTheme } from "./colours.js";
import { percent, spokenToken } from "./format.js";
import { drawUnderVeil } from "./overlay.js";

const report = JSON.parse(byId("report").textContent);
const SIDE = 150; // pixels of an image
const title = (feature) => feature.name || feature.words.map(spokenToken).join(" · ");

/** A text in which every token is tinted by its value, as a share of the feature's largest. */
function textContext(context, largest) {
  const words = context.tokens.map((token, at) => {
    const share = Math.max(0, context.values[at]) / (largest || 1);
    const word = make("span", { textContent: spokenToken(token), title: context.values[at].toFixed(2) });
    if (share > 0) Object.assign(word.style, { background: colour(share), color: inkOn(share) });
    if (at === context.at) word.className = "strongest";
    return word;
  });
  const value = make("span", { className: "value", textContent: context.values[context.at].toFixed(2) });
  return make("li", {}, value, make("p", { dir: "auto" }, ...words));
}

function imageContext(context) {
  const canvas = make("canvas", { role: "img", "aria-label": `image ${context.example}` });
  const cells = context.rows * context.columns;
  const image = new Image();
  image.onload = () => drawUnderVeil(canvas, image, SIDE, { grid: [context.rows, context.columns], weights: context.values.slice(-cells) });
  image.src = `data:image/png;base64,${report.images[context.example]}`;
  const elsewhere = context.at < context.values.length - cells ? " at the class token" : "";
  return make("li", {}, canvas, make("span", { className: "value", textContent: context.values[context.at].toFixed(2) + elsewhere }));
}

function outputList(pairs, className) {
  const most = Math.max(...pairs.map(([, value]) => Math.abs(value)), 1e-9);
  const rows = pairs.map(([name, value]) => {
    const bar = make("span");
    bar.style.width = `${(100 * Math.abs(value)) / most}%`;
    return make("li", {}, make("b", { textContent: spokenToken(name) }), make("span", { className: "bar-track" }, bar), make("span", { textContent: value.toFixed(2) }));
  });
  return make("ul", { className }, ...rows);
}

function effectTable(effects) {
  const head = ["Context", "As it is", "Switched off", "Turned up"].map((text) => make("th", { textContent: text, scope: "col" }));
  const rows = effects.map((each) =>
    make("tr", {}, ...[each.prompt, each.whole, each.off, each.up].map((text) => make("td", { textContent: spokenToken(text), dir: "auto" }))));
  return make("table", { className: "effects" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
}

function show(feature) {
  const images = feature.contexts.some((each) => each.rows);
  const parts = [
    make("h2", { textContent: `Feature ${feature.number}${feature.name ? `: ${feature.name}` : ""}` }),
    make("p", { className: "hint", textContent: `active at ${percent(feature.share)} of the positions, largest value ${feature.largest.toFixed(2)}` }),
    make("h3", { textContent: "Where it is strongest" }),
    make("ul", { className: images ? "contexts images" : "contexts" }, ...feature.contexts.map((each) => (images ? imageContext(each) : textContext(each, feature.largest)))),
  ];
  if (feature.outputs) {
    parts.push(make("h3", { textContent: "Logits that it raises and lowers, through the unembedding alone" }));
    parts.push(make("div", { className: "outputs" }, outputList(feature.outputs.raised, "raised"), outputList(feature.outputs.lowered, "lowered")));
  }
  if (feature.effects.length) parts.push(make("h3", { textContent: "What the model says" }), effectTable(feature.effects));
  byId("feature").replaceChildren(...parts);
  for (const link of byId("list").querySelectorAll("a")) link.setAttribute("aria-current", String(link.hash === `#${feature.number}`));
}

const chosen = () => report.features.find((each) => `#${each.number}` === location.hash) || report.features[0];

function list() {
  const wanted = byId("search").value.trim().toLowerCase();
  const matches = report.features.filter((each) => `${each.number} ${each.name} ${each.words.map(spokenToken).join(" ")}`.toLowerCase().includes(wanted));
  byId("list").replaceChildren(...matches.map((each) => make("li", {}, make("a", { href: `#${each.number}` },
    make("span", { className: "number", textContent: String(each.number) }), make("span", { textContent: title(each) }),
    make("span", { className: "share", textContent: percent(each.share) })))));
  byId("none").hidden = matches.length > 0;
}

byId("title").textContent = `Features of ${report.place}`;
byId("facts").append(...[["model", report.model], ["dictionary", report.dictionary], ["positions read", report.vectors.toLocaleString("en")]]
  .map(([name, value]) => make("li", {}, `${name} `, make("b", { textContent: value }))));
byId("search").addEventListener("input", () => { list(); show(chosen()); });
addEventListener("hashchange", () => show(chosen()));
onTheme(() => show(chosen()));
list();
if (report.features.length) show(chosen());
