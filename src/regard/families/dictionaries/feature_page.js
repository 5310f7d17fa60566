// The offline page of a dictionary: its features and what the model says without them are in the page itself.

import { drawScale, onTheme } from "../../look/colours.js";
import { byId, make } from "../../look/dom.js";
import { FeatureBrowser, answerTable } from "./feature_view.js";

const HEADS = ["Context", "As it is", "Switched off", "Turned up"];
const report = JSON.parse(byId("report").textContent);
const wanted = () => Number(location.hash.slice(1));

async function load(number) {
  return { ...report.features.find((each) => each.number === number), images: report.images };
}

function below({ effects }) {
  if (!effects.length) return [];
  const rows = effects.map((each) => [each.prompt, each.whole, each.off, each.up]);
  return [make("h3", { textContent: "What the model says" }), answerTable(HEADS, rows)];
}

function start() {
  const facts = { model: report.model, dictionary: report.dictionary, "positions read": report.vectors.toLocaleString("en") };
  byId("title").textContent = `Features of ${report.place}`;
  byId("facts").append(...Object.entries(facts).map(([name, value]) => make("li", {}, `${name} `, make("b", { textContent: value }))));
  byId("legend").querySelector("figcaption").textContent = "share of the largest value";
  drawScale(byId("scale"));
  onTheme(() => drawScale(byId("scale")));
  const opened = (number) => history.replaceState(null, "", `#${number}`);
  const browser = new FeatureBrowser(document.querySelector("main"), { load, below, opened, failed: console.error });
  browser.show(report.features, wanted());
  addEventListener("hashchange", () => browser.open(wanted()));
}

start();
