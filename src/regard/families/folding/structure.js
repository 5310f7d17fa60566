// A protein: the map of distances between residues, predicted above the diagonal and true below it, with the attention
// between residues over it; and the chain in space, which turns with the mouse or the arrow keys. Point at a residue of
// the map or of the chain: what it looks at lights up in both. The offline page and the lens make their elements from
// `markup`.

import { registerLabels } from "../../look/axis_labels.js";
import { announce, make, partsOf } from "../../look/dom.js";
import { cssColour, font, onTheme, prepare } from "../../look/colours.js";
import { headTitle, layerTitle, percent } from "../../look/format.js";
import { registerView } from "../../look/offline.js";

const MEAN = -1; // in place of a head
const SIDE = 440, MARGIN = 26, NEAR = 14; // pixels: of both canvases, around the chain, from the pointer to a residue
const CLOSEST = 2, FARTHEST = 22; // Å: the ends of the scale of distances
const DISTANCES = [[11, 43, 82], [47, 116, 181], [156, 198, 230], [246, 250, 253]];
const SURE = [[226, 98, 42], [243, 199, 79], [90, 169, 224], [28, 79, 160]]; // confidence from 0 to 100
const LOOKED = [[120, 130, 150], [255, 140, 40]], WRONG = [[60, 150, 90], [243, 199, 79], [200, 40, 40]];
const OFF = 8; // Å from the true place that have the full colour of an error
const STEP = 0.12; // radians that an arrow key turns

const mixed = (stops, share) => {
  const place = Math.max(0, Math.min(1, share)) * (stops.length - 1), low = Math.min(Math.floor(place), stops.length - 2);
  return stops[low].map((from, channel) => Math.round(from + (stops[low + 1][channel] - from) * (place - low)));
};
const css = (rgb) => `rgb(${rgb.join(" ")})`;

export class StructureView {
  /** `weightsOf(number)` gives the bytes q of a panel, with weight (q / 255)², head by head and row by row. */
  constructor(root, report, weightsOf) {
    Object.assign(this, { root, report, weightsOf, parts: partsOf(root), details: report.details, pointed: null, other: null, held: false, asked: 0 });
    this.sequence = report.axes.find((axis) => axis.kind === "residues").sequence;
    this.length = this.sequence.length;
    this.places = centred(this.details.places, this.details.places);
    this.truth = this.details.truth && centred(this.details.truth.places, this.details.places);
    this.turn = broadSide(this.places);
    this.reach = Math.max(...[...this.places, ...(this.truth ?? [])].map((place) => (place ? Math.hypot(...place) : 0)), 1);
    this.#buildChoices();
    this.#listen();
    onTheme(() => this.#draw());
    this.show();
  }

  #buildChoices() {
    const { layer, head, colour, layers } = this.parts, { panels } = this.report;
    layers.hidden = !panels.length;
    layer.replaceChildren(...panels.map(({ name }, at) => make("option", { value: at, textContent: layerTitle(name) })));
    layer.value = String(panels.length - 1);
    const kinds = [["confidence", "confidence"], ...(panels.length ? [["attention", "attention"]] : []), ...(this.truth ? [["error", "error"]] : [])];
    colour.replaceChildren(...kinds.map(([value, textContent]) => make("option", { value, textContent })));
    const heads = () => head.replaceChildren(make("option", { value: MEAN, textContent: "mean of heads" }),
      ...Array.from({ length: panels[Number(layer.value)]?.heads ?? 0 }, (_, each) => make("option", { value: each, textContent: headTitle(each) })));
    heads();
    layer.onchange = () => { heads(); this.show(); };
    head.onchange = () => this.show();
    colour.onchange = () => this.#draw();
  }

  /** Fetch the weights of the chosen layer and head, and draw. */
  async show() {
    const asked = ++this.asked, number = Number(this.parts.layer.value), panel = this.report.panels[number];
    let weights = null;
    if (panel) {
      const bytes = await this.weightsOf(number), head = Number(this.parts.head.value), size = this.length ** 2;
      const chosen = head === MEAN ? [...Array(panel.heads).keys()] : [head];
      weights = new Float32Array(size);
      for (const each of chosen) for (let at = 0; at < size; at++) weights[at] += (bytes[each * size + at] / 255) ** 2 / chosen.length;
    }
    if (asked !== this.asked) return; // another layer was chosen in the meantime
    this.weights = weights;
    this.#announce();
    this.#draw();
  }

  /** The head that is shown, and the residue that is pointed at with the one beside the pointer, or the one that it looks at most. */
  #announce() {
    const { pointed, other, weights } = this;
    if (!weights) return;
    const key = pointed === null || (other !== null && other !== pointed) ? other : this.#most(pointed);
    announce(this.root, { panel: Number(this.parts.layer.value), head: Number(this.parts.head.value), query: pointed, key });
  }

  /** The residue that another looks at most. */
  #most(row) {
    const weights = this.weights.subarray(row * this.length, (row + 1) * this.length);
    return weights.indexOf(Math.max(...weights));
  }

  #draw() {
    this.#drawMap();
    this.#drawChain();
    this.parts.readout.textContent = this.#describe();
  }

  /** What residue `from` looks at, from 0 to 1; without a residue, how much each is looked at. */
  #light() {
    if (!this.weights) return null;
    const { length, weights } = this, rows = this.pointed === null ? [...Array(length).keys()] : [this.pointed];
    const sums = Array.from({ length }, (_, key) => rows.reduce((sum, row) => sum + weights[row * length + key], 0));
    const most = Math.max(...sums, 1e-9);
    return sums.map((sum) => sum / most);
  }

  #drawMap() {
    const { length, details, weights } = this, image = new ImageData(length, length);
    const strength = Number(this.parts.overlay.value) / 100;
    const peak = weights ? quantile(weights, 0.995) || 1 : 1;
    for (let row = 0; row < length; row++) for (let column = 0; column < length; column++) {
      const at = row * length + column, below = row > column && details.truth;
      const distance = below ? details.truth.distances[row][column] : details.distances[row][column];
      let rgb = distance === null ? [205, 205, 205] : mixed(DISTANCES, (distance - CLOSEST) / (FARTHEST - CLOSEST));
      if (weights && strength) {
        const over = Math.min(1, weights[at] / peak) * strength;
        rgb = rgb.map((value, channel) => Math.round(value + (LOOKED[1][channel] - value) * over));
      }
      image.data.set([...rgb, 255], 4 * at);
    }
    const small = document.createElement("canvas");
    [small.width, small.height] = [length, length];
    small.getContext("2d").putImageData(image, 0, 0);
    const context = prepare(this.parts.map, SIDE, SIDE);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, SIDE, SIDE);
    if (this.pointed === null) return;
    const cell = SIDE / length;
    context.strokeStyle = "#ff7a1a";
    context.lineWidth = 1.5;
    context.strokeRect(0, this.pointed * cell, SIDE, cell);
    if (this.other !== null) context.strokeRect(this.other * cell, this.pointed * cell, cell, cell);
  }

  /** The places of residues on the canvas: x, y, and depth from 0 (far) to 1. */
  #seen(places) {
    const scale = (SIDE / 2 - MARGIN) / this.reach;
    return places.map((place) => {
      if (place === null) return null;
      const [x, y, z] = this.turn.map((axis) => axis[0] * place[0] + axis[1] * place[1] + axis[2] * place[2]);
      return [SIDE / 2 + scale * x, SIDE / 2 - scale * y, Math.max(0, Math.min(1, (z / this.reach + 1) / 2))];
    });
  }

  #drawChain() {
    const context = prepare(this.parts.chain, SIDE, SIDE), seen = this.#seen(this.places), colours = this.#colours();
    context.lineCap = "round";
    if (this.truth && this.parts.truth.checked) {
      const true_ = this.#seen(this.truth);
      context.strokeStyle = "rgb(140 140 140 / 0.75)";
      context.lineWidth = 1.5;
      for (let at = 1; at < true_.length; at++) if (true_[at] && true_[at - 1]) line(context, true_[at - 1], true_[at]);
    }
    const parts = seen.slice(1).map((end, at) => ({ at, depth: (seen[at][2] + end[2]) / 2 })).sort((one, other) => one.depth - other.depth);
    for (const { at, depth } of parts) {
      context.lineWidth = 2.5 + 5 * depth;
      context.strokeStyle = `rgb(20 24 34 / ${0.25 + 0.35 * depth})`; // an edge, so that strands that cross are told apart
      line(context, seen[at], seen[at + 1]);
      context.lineWidth = 1.5 + 4.5 * depth;
      context.strokeStyle = css(colours[at].map((value, channel) => Math.round((value + colours[at + 1][channel]) / 2)));
      line(context, seen[at], seen[at + 1]);
    }
    context.font = font(12, 600);
    context.fillStyle = cssColour("--ink") || "#333";
    for (const [name, [x, y]] of [["N", seen[0]], ["C", seen[seen.length - 1]]]) context.fillText(name, x + 6, y - 6);
    for (const [number, size] of [[this.other, 4], [this.pointed, 6]]) {
      if (number === null || number === undefined) continue;
      context.beginPath();
      context.arc(...seen[number].slice(0, 2), size, 0, 2 * Math.PI);
      context.fillStyle = number === this.pointed ? "#ff7a1a" : "#ffd0a8";
      context.fill();
    }
    this.drawn = seen;
  }

  #colours() {
    const { colour } = this.parts, { details } = this;
    if (colour.value === "attention") return (this.#light() ?? []).map((share) => mixed(LOOKED, share ** 0.7));
    if (colour.value === "error") return this.places.map((place, at) => (this.truth[at] ? mixed(WRONG, distance(place, this.truth[at]) / OFF) : [170, 170, 170]));
    return details.confidence.map((value) => mixed(SURE, value / 100));
  }

  #name(number) { return `${this.sequence[number]}${number + 1}`; }

  /** What is pointed at, in words. */
  #describe() {
    const { details, pointed, other } = this;
    if (pointed === null) return "Point at a residue, here or in the chain.";
    const told = [`${this.#name(pointed)}: confidence ${details.confidence[pointed].toFixed(0)}`];
    if (other !== null && other !== pointed) {
      told.push(`to ${this.#name(other)} ${details.distances[pointed][other].toFixed(1)} Å`);
      const true_ = details.truth?.distances[pointed][other];
      if (true_ !== null && true_ !== undefined) told.push(`true ${true_.toFixed(1)} Å`);
      if (this.weights) told.push(`attention ${percent(this.weights[pointed * this.length + other])}`);
    } else if (this.weights) {
      const best = this.#most(pointed);
      told.push(`looks most at ${this.#name(best)} (${percent(this.weights[pointed * this.length + best])})`);
    }
    return told.join(" · ");
  }

  #point(number, other = null) {
    if (number === this.pointed && other === this.other) return;
    Object.assign(this, { pointed: number, other });
    this.#announce();
    this.#draw();
  }

  #turnBy(right, down) {
    const [sin, cos] = [Math.sin(right), Math.cos(right)], [sinDown, cosDown] = [Math.sin(down), Math.cos(down)];
    const [x, y, z] = this.turn;
    const [x2, z2] = [x.map((value, at) => cos * value + sin * z[at]), x.map((value, at) => cos * z[at] - sin * value)];
    this.turn = [x2, y.map((value, at) => cosDown * value + sinDown * z2[at]), z2.map((value, at) => cosDown * value - sinDown * y[at])];
    this.#drawChain();
  }

  #listen() {
    const { map, chain, overlay, truth, truths } = this.parts;
    this.other = null;
    truths.hidden = !this.truth;
    truth.onchange = () => this.#drawChain();
    overlay.oninput = () => this.#drawMap();
    const on = (canvas, event) => {
      const place = canvas.getBoundingClientRect();
      return [((event.clientX - place.left) / place.width) * SIDE, ((event.clientY - place.top) / place.height) * SIDE];
    };
    const cell = (at) => Math.max(0, Math.min(this.length - 1, Math.floor((at / SIDE) * this.length)));
    map.onpointermove = (event) => { if (!this.held) { const [x, y] = on(map, event); this.#point(cell(y), cell(x)); } };
    map.onpointerleave = () => { if (!this.held) this.#point(null); };
    map.onclick = () => { this.held = !this.held; };
    let from = null;
    chain.onpointerdown = (event) => { from = [event.clientX, event.clientY]; chain.setPointerCapture(event.pointerId); };
    chain.onpointerup = () => { from = null; };
    chain.onpointermove = (event) => {
      if (from) {
        this.#turnBy((event.clientX - from[0]) / 120, (event.clientY - from[1]) / 120);
        from = [event.clientX, event.clientY];
      } else if (!this.held) this.#point(this.#nearest(on(chain, event)));
    };
    chain.onkeydown = (event) => {
      const by = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP] }[event.key];
      if (!by) return;
      this.#turnBy(...by);
      event.preventDefault();
    };
  }

  /** The residue under the pointer, the nearest to the eye if there are several; null if there is none. */
  #nearest([x, y]) {
    const near = this.drawn.map(([left, top, depth], number) => ({ number, depth, away: Math.hypot(left - x, top - y) })).filter(({ away }) => away < NEAR);
    return near.length ? near.reduce((best, each) => (each.away - 8 * each.depth < best.away - 8 * best.depth ? each : best)).number : null;
  }
}

function line(context, [x1, y1], [x2, y2]) {
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}

const distance = (one, other) => Math.hypot(...one.map((value, at) => value - other[at]));

/** Places around the middle of others; null where a place is not known. */
function centred(places, around) {
  const middle = [0, 1, 2].map((axis) => around.reduce((sum, place) => sum + place[axis], 0) / around.length);
  return places.map((place) => (place.includes(null) ? null : place.map((value, axis) => value - middle[axis])));
}

/** The value below which a share of all lies, of every few values if there are many. */
function quantile(values, share) {
  const some = Array.from(values).filter((_, at) => at % Math.ceil(values.length / 20000) === 0).sort((one, other) => one - other);
  return some[Math.floor(share * (some.length - 1))];
}

/** The three directions of a view from the broad side: of most spread, of the most across it, and toward the eye. */
function broadSide(places) {
  const along = direction(places, null), across = direction(places, along);
  const toward = [1, 2, 0].map((next, at) => along[next] * across[(at + 2) % 3] - along[(at + 2) % 3] * across[next]);
  return [along, across, toward];
}

/** The direction in which places spread most, by repeated multiplication; with `besides`, at right angles to it. */
function direction(places, besides) {
  let found = besides ? [besides[1] - besides[2], besides[2] - besides[0], besides[0] - besides[1]] : [1, 0.7, 0.4];
  for (let times = 0; times < 40; times++) {
    const next = [0, 1, 2].map((axis) => places.reduce((sum, place) => sum + place[axis] * dot(place, found), 0));
    if (besides) { const off = dot(next, besides); besides.forEach((value, axis) => { next[axis] -= off * value; }); }
    const size = Math.hypot(...next);
    if (size < 1e-9) break;
    found = next.map((value) => value / size);
  }
  const size = Math.hypot(...found) || 1;
  return found.map((value) => value / size);
}

const dot = (one, other) => one[0] * other[0] + one[1] * other[1] + one[2] * other[2];

const markup = `
  <section class="stage" aria-labelledby="map-name">
    <div class="bar"><h2 id="map-name">Distances between residues</h2><span class="badge">no claim of folding</span></div>
    <p class="readout" data-part="readout" role="status" id="structure-readout"></p>
    <canvas class="picture" data-part="map" role="img" aria-label="Map of distances: predicted above the diagonal, true below it if it is known" aria-describedby="structure-readout"></canvas>
    <p class="hint">Dark: near, light: 22 Å and more; above the diagonal predicted, below it true if it is known. Orange: what the residue of the row looks at. Click to hold.</p>
  </section>
  <section class="atlas" aria-labelledby="chain-name">
    <div class="bar"><h2 id="chain-name">The chain in space</h2></div>
    <div class="bar">
      <label>Colour <select data-part="colour"></select></label>
      <label data-part="truths"><input type="checkbox" data-part="truth" checked> true chain, grey</label>
    </div>
    <canvas class="picture" data-part="chain" tabindex="0" role="img" aria-label="The chain in space; drag it, or use the arrow keys, to turn it"></canvas>
    <p class="hint">Drag to turn. Confidence: orange is unsure, blue is sure.</p>
    <div class="bar" data-part="layers">
      <label>Layer <select data-part="layer"></select></label>
      <label>Head <select data-part="head"></select></label>
      <label>Attention over the map <input type="range" data-part="overlay" min="0" max="100" value="40"></label>
    </div>
  </section>`;

registerView("structure", { markup, layout: "gallery", open: (root, report, weightsOf) => new StructureView(root, report, weightsOf) });
registerLabels("residues", ({ sequence }, at) => `${sequence[at]}${at + 1}`);
