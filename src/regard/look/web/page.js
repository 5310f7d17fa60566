// The offline page: a report whose description and weights are in the page itself.

import { drawScale, onTheme } from "./colours.js";
import { byId, make } from "./dom.js";
import { LensCard } from "./logit_lens.js";
import { neuronsAt } from "./neuron_data.js";
import { NeuronCard } from "./neuron_view.js";
import { viewOf } from "./offline.js";
import { bytesOf } from "./weights.js";

const report = JSON.parse(byId("report").textContent);
const unpacked = new Map(); // id of an element -> a promise of its bytes

/** The weights of a panel, which are inflated when they are first needed. */
const weightsOf = (number) => unpackedBytes(`weights-${number}`);

function unpackedBytes(id) {
  if (!unpacked.has(id)) unpacked.set(id, inflate(byId(id).textContent));
  return unpacked.get(id);
}

/** The neurons of a query and a key, if the page has them. */
async function neuronsOf({ panel, head, query, key }) {
  const form = report.neurons[panel];
  return form ? neuronsAt(form, await unpackedBytes(`neurons-${panel}`), head, query, key) : null;
}

async function inflate(base64) {
  const stream = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function writeHeading() {
  const fact = (name, value) => make("li", {}, `${name} `, make("b", { textContent: value }));
  byId("title").textContent = report.title;
  byId("facts").append(fact("model", report.model), ...Object.entries(report.meta).map(([name, value]) => fact(name, value || "–")));
}

function start() {
  const { markup, layout, hasScale, open } = viewOf(report.view), main = document.querySelector("main");
  writeHeading();
  byId("legend").hidden = !hasScale;
  drawScale(byId("scale"));
  onTheme(() => drawScale(byId("scale")));
  main.className = layout;
  main.innerHTML = markup; // constant markup of the view; the words of a report are only ever text nodes
  new LensCard(main).show(report);
  const neurons = new NeuronCard(main);
  neurons.show(report, neuronsOf);
  if (!layout) main.querySelector(".stage").after(neurons.card); // near what is pointed at, unless the page has columns
  open(main, report, weightsOf);
}

start();
