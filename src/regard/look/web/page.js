// The offline page: a report whose description and weights are in the page itself.

import { drawScale, onTheme } from "./colours.js";
import { byId, make } from "./dom.js";
import { viewOf } from "./offline.js";
import { bytesOf } from "./weights.js";

const report = JSON.parse(byId("report").textContent);
const unpacked = new Map(); // number of a panel -> a promise of its bytes

/** The weights of a panel, which are inflated when they are first needed. */
function weightsOf(number) {
  if (!unpacked.has(number)) unpacked.set(number, inflate(byId(`weights-${number}`).textContent));
  return unpacked.get(number);
}

async function inflate(base64) {
  const stream = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function writeHeading() {
  const fact = (name, value) => make("li", {}, `${name} `, make("b", { textContent: value }));
  byId("title").textContent = report.title;
  byId("facts").append(fact("model", report.model), ...Object.entries(report.meta).map(([name, value]) => fact(name, value)));
}

function start() {
  const { markup, layout, hasScale, open } = viewOf(report.view), main = document.querySelector("main");
  writeHeading();
  byId("legend").hidden = !hasScale;
  drawScale(byId("scale"));
  onTheme(() => drawScale(byId("scale")));
  main.className = layout;
  main.innerHTML = markup; // constant markup of the view; the words of a report are only ever text nodes
  open(main, report, weightsOf);
}

start();
