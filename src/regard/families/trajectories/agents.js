// A scene from above: where agents walked, samples of where they may walk, and what happened. Point at an agent at a
// step, and whom and when it looks at grows; play the scene in time. The offline page and the lens make their elements
// from `markup`.

import { registerLabels } from "../../look/axis_labels.js";
import { announce, calm, make, partsOf, within } from "../../look/dom.js";
import { cssColour, onTheme, prepare } from "../../look/colours.js";
import { headTitle, layerTitle, percent } from "../../look/format.js";
import { registerView } from "../../look/offline.js";

const MEAN = -1, LIKELIEST = -1; // in place of a head, of a sample
const WIDTH = 660, MOST_HEIGHT = 560, MARGIN = 30; // pixels of the plan
const NEAR = 16; // pixels from the pointer to an agent
const STEP = 260; // milliseconds of a step that is played
const COLOURS = ["42 92 190", "194 87 12", "25 160 95", "139 74 194", "179 39 63", "13 138 156", "138 109 29", "90 100 114"];
const LIT = "255 140 40";
const when = (step) => (step ? `${step > 0 ? "+" : "−"}${Math.abs(step)}` : "now");

export class AgentsView {
  /** `weightsOf(number)` gives the bytes q of a panel, with weight (q / 255)², head by head and row by row. */
  constructor(root, report, weightsOf) {
    Object.assign(this, { root, report, weightsOf, parts: partsOf(root), details: report.details, pointed: null, table: null, asked: 0 });
    const { past, likeliest, samples, sample } = this.details;
    this.past = past[0].length;
    this.future = likeliest[0].length;
    this.chosen = sample === LIKELIEST ? likeliest : samples[sample];
    this.panels = report.panels.map((panel, number) => ({ ...panel, number, sides: panel.axes.map((axis) => report.axes[axis]) }));
    this.time = this.future;
    this.#buildLayers();
    this.#listen();
    onTheme(() => this.#draw());
    this.parts.readout.textContent = this.#describe();
    this.#list();
    this.#draw();
  }

  /** Where an agent is at a step: in the past as it was seen, later in the future that is looked at. */
  #place(agent, step) {
    return step > 0 ? this.chosen[agent][step - 1] : this.details.past[agent][this.past - 1 + step];
  }

  #buildLayers() {
    const { layer, head, layers } = this.parts;
    layers.hidden = !this.panels.length;
    layer.replaceChildren(make("option", { value: "", textContent: "last layer" }),
      ...this.panels.map(({ name }, at) => make("option", { value: at, textContent: layerTitle(name) })));
    const heads = Math.max(1, ...this.panels.map((panel) => panel.heads));
    head.replaceChildren(make("option", { value: MEAN, textContent: "mean of heads" }),
      ...Array.from({ length: heads }, (_, each) => make("option", { value: each, textContent: headTitle(each) })));
    layer.onchange = head.onchange = () => this.#point(this.pointed);
  }

  /** The panel that the pointed token asks: the chosen one if that token is among its queries, else the last that has it. */
  #panel(step) {
    const fits = ({ sides: [queries] }) => queries.steps.includes(step), wanted = this.panels[this.parts.layer.value];
    return wanted && fits(wanted) ? wanted : this.panels.findLast((panel) => fits(panel) && panel.sides[1].steps[0] <= 0);
  }

  /** What an agent at a step looks at: one weight for each agent and step. */
  async #looked({ agent, step }) {
    const panel = this.#panel(step);
    if (!panel) return null;
    const bytes = await this.weightsOf(panel.number), [queries, keys] = panel.sides, head = Number(this.parts.head.value);
    const rows = queries.names.length * queries.steps.length, columns = keys.names.length * keys.steps.length;
    const row = agent * queries.steps.length + queries.steps.indexOf(step);
    const heads = head === MEAN || head >= panel.heads ? [...Array(panel.heads).keys()] : [head];
    const cells = Array.from({ length: columns }, (_, column) => ({
      agent: Math.floor(column / keys.steps.length), step: keys.steps[column % keys.steps.length],
      weight: heads.reduce((sum, each) => sum + (bytes[(each * rows + row) * columns + column] / 255) ** 2, 0) / heads.length,
    }));
    return { panel, cells };
  }

  async #point(place) {
    const number = ++this.asked;
    this.pointed = place;
    const table = place ? await this.#looked(place) : null;
    if (number !== this.asked) return;
    this.table = table;
    this.#announce();
    this.parts.readout.textContent = this.#describe();
    this.#list();
    this.#draw();
  }

  /** The head that is shown, and the agent and step that are pointed at with those that they look at most. */
  #announce() {
    const panel = this.table?.panel ?? this.panels[this.parts.layer.value], shown = { panel: panel?.number, head: Number(this.parts.head.value) };
    if (!panel) return;
    if (!this.table) { announce(this.root, shown); return; }
    const { steps } = panel.sides[0], { agent, step } = this.pointed, weights = this.table.cells.map(({ weight }) => weight);
    announce(this.root, { ...shown, query: agent * steps.length + steps.indexOf(step), key: weights.indexOf(Math.max(...weights)) });
  }

  #describe() {
    if (!this.pointed || !this.table) return this.pointed ? "This model has no attention." : "Point at an agent at a step.";
    const { agents } = this.details, best = this.table.cells.reduce((most, cell) => (cell.weight > most.weight ? cell : most));
    return `Agent ${agents[this.pointed.agent]} (${when(this.pointed.step)}) looks most at agent ${agents[best.agent]} (${when(best.step)}): ${percent(best.weight)}`;
  }

  /** How much of the look goes to each agent, at all steps together. */
  #list() {
    const { agents } = this.details, sums = agents.map(() => 0);
    for (const { agent, weight } of this.table?.cells ?? []) sums[agent] += weight;
    const order = [...sums.keys()].sort((one, other) => sums[other] - sums[one]).slice(0, 12);
    this.parts.layerName.textContent = this.table ? layerTitle(this.table.panel.name) : "How the agent that you point at divides its attention.";
    this.parts.whom.replaceChildren(...(this.table ? order : []).map((agent) => make("li", { data: { agent } },
      make("b", { textContent: percent(sums[agent]) }), ` agent ${agents[agent]}${agent === this.pointed.agent ? " (itself)" : ""}`)));
  }

  /** Metres to pixels: x to the right, y up. */
  #plan() {
    if (this.scale) return this.scale;
    const { past, samples, likeliest, truth } = this.details;
    const all = [past, likeliest, truth, ...samples].flat(2).filter(Boolean);
    const [xs, ys] = [0, 1].map((axis) => all.map((place) => place[axis]));
    const low = (values) => values.reduce((a, b) => Math.min(a, b)), high = (values) => values.reduce((a, b) => Math.max(a, b));
    const [left, right, bottom, top] = [low(xs), high(xs), low(ys), high(ys)];
    const metres = Math.min((WIDTH - 2 * MARGIN) / Math.max(right - left, 2), (MOST_HEIGHT - 2 * MARGIN) / Math.max(top - bottom, 2));
    const height = Math.round(Math.max(top - bottom, 2) * metres) + 2 * MARGIN;
    const at = ([x, y]) => [MARGIN + (x - left) * metres, height - MARGIN - (y - bottom) * metres];
    this.scale = { height, at, metres };
    return this.scale;
  }

  #draw() {
    const { canvas } = this.parts, { agents, past, samples, likeliest, truth } = this.details;
    const { height, at, metres } = this.#plan(), context = prepare(canvas, WIDTH, height), { time } = this;
    Object.assign(canvas.style, { width: `${WIDTH}px`, height: "auto" });
    Object.assign(context, { lineCap: "round", lineJoin: "round" });
    const line = (places, colour, width, dash = []) => {
      const known = places.filter(Boolean);
      if (known.length < 2) return;
      context.beginPath();
      known.forEach((place, number) => context[number ? "lineTo" : "moveTo"](...at(place)));
      Object.assign(context, { strokeStyle: colour, lineWidth: width });
      context.setLineDash(dash);
      context.stroke();
      context.setLineDash([]);
    };
    const dot = (place, radius, colour) => {
      context.beginPath();
      context.arc(...at(place), radius, 0, 2 * Math.PI);
      context.fillStyle = colour;
      context.fill();
    };
    const ink = cssColour("--ink") || "#1b2233", until = within(time, 0, this.future);
    agents.forEach((_, agent) => {
      const colour = COLOURS[agent % COLOURS.length], now = past[agent].at(-1);
      const dim = this.pointed && this.pointed.agent !== agent ? 0.5 : 1;
      for (const sample of until ? samples : []) line([now, ...sample[agent].slice(0, until)], `rgb(${colour} / ${0.22 * dim})`, 1);
      line(past[agent].slice(0, this.past + Math.min(time, 0)), `rgb(${colour} / ${dim})`, 3);
      if (until) line([now, ...likeliest[agent].slice(0, until)], `rgb(${colour} / ${0.9 * dim})`, 2);
      if (until) line([now, ...truth[agent].slice(0, until)], ink, 1.3, [4, 3]);
      past[agent].slice(0, this.past + Math.min(time, 0)).forEach((place) => place && dot(place, 2.4, `rgb(${colour} / ${dim})`));
    });
    this.#drawLooks(dot);
    agents.forEach((name, agent) => {
      const place = this.#place(agent, time) ?? past[agent].at(-1), colour = COLOURS[agent % COLOURS.length];
      dot(place, 6, `rgb(${colour})`);
      const [x, y] = at(place);
      Object.assign(context, { fillStyle: ink, font: "11px system-ui", textAlign: "left", textBaseline: "middle" });
      context.fillText(name, x + 9, y - 8);
    });
    this.#drawRuler(context, metres, height, ink);
    this.parts.clock.textContent = when(time);
    if (Number(this.parts.time.value) !== time) this.parts.time.value = time;
  }

  /** The places that the pointed agent looks at, larger where it looks more, and the place it looks from. */
  #drawLooks(dot) {
    if (!this.table) return;
    const most = Math.max(...this.table.cells.map(({ weight }) => weight), 1e-9);
    for (const { agent, step, weight } of this.table.cells) {
      const place = this.#place(agent, step), share = weight / most;
      if (place && share > 0.02) dot(place, 3 + 10 * Math.sqrt(share), `rgb(${LIT} / ${0.15 + 0.55 * share})`);
    }
    const from = this.#place(this.pointed.agent, this.pointed.step);
    if (from) { dot(from, 8, "#10131c"); dot(from, 5, "#ffffff"); }
  }

  /** A line of some metres. */
  #drawRuler(context, metres, height, ink) {
    const length = [10, 5, 2, 1].find((each) => each * metres < WIDTH / 3) ?? 1;
    context.beginPath();
    context.moveTo(MARGIN, height - 10);
    context.lineTo(MARGIN + length * metres, height - 10);
    Object.assign(context, { strokeStyle: ink, lineWidth: 1.5, fillStyle: ink, font: "10px system-ui", textBaseline: "bottom" });
    context.stroke();
    context.fillText(`${length} m`, MARGIN, height - 12);
  }

  /** The agent and step nearest to the pointer, if one is near. */
  #nearest(event) {
    const { canvas } = this.parts, box = canvas.getBoundingClientRect(), { at } = this.#plan(), ratio = WIDTH / box.width;
    const [x, y] = [(event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio];
    let best = { away: NEAR };
    for (let agent = 0; agent < this.details.agents.length; agent++) {
      for (let step = 1 - this.past; step <= this.future; step++) {
        const place = this.#place(agent, step);
        if (!place) continue;
        const away = Math.hypot(at(place)[0] - x, at(place)[1] - y);
        if (away < best.away) best = { agent, step, away };
      }
    }
    return best.agent === undefined ? null : { agent: best.agent, step: best.step };
  }

  #play() {
    const { play } = this.parts;
    if (this.playing) {
      clearInterval(this.playing);
      this.playing = null;
    } else {
      if (this.time >= this.future) this.time = 1 - this.past;
      this.playing = setInterval(() => {
        if (!play.isConnected) { clearInterval(this.playing); return; }
        this.time += 1;
        if (this.time >= this.future) this.#play();
        this.#draw();
      }, calm.matches ? 4 * STEP : STEP);
    }
    play.textContent = this.playing ? "Pause" : "Play";
    this.#draw();
  }

  #listen() {
    const { canvas, time, play } = this.parts, count = this.details.agents.length;
    Object.assign(time, { min: 1 - this.past, max: this.future, value: this.time });
    time.oninput = () => { this.time = Number(time.value); this.#draw(); };
    play.onclick = () => this.#play();
    canvas.onpointermove = (event) => {
      const found = this.#nearest(event);
      if (found?.agent !== this.pointed?.agent || found?.step !== this.pointed?.step) this.#point(found);
    };
    canvas.onkeydown = (event) => {
      const by = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
      if (event.key === "Escape") this.#point(null);
      else if (by && !this.pointed) this.#point({ agent: 0, step: 0 });
      else if (by) this.#point({ agent: (this.pointed.agent + by[0] + count) % count, step: within(this.pointed.step + by[1], 1 - this.past, this.future) });
      else return;
      event.preventDefault();
    };
  }
}

const markup = `
  <section class="stage" aria-labelledby="agents-name">
    <div class="bar"><h2 id="agents-name">The scene from above</h2></div>
    <p class="readout" data-part="readout" role="status" id="agents-readout"></p>
    <canvas class="picture" data-part="canvas" tabindex="0" role="img" aria-label="Agents from above, with samples of their future" aria-describedby="agents-readout"></canvas>
    <div class="bar">
      <button type="button" data-part="play">Play</button>
      <label class="grow">Step <input type="range" data-part="time" step="1"></label>
      <output data-part="clock"></output>
    </div>
    <p class="hint">Thick: the past and the likeliest future; thin: samples; dashed: what happened. Point at an agent at a step, or move with the arrow keys: whom and when it looks at lights up.</p>
  </section>
  <section class="atlas" aria-labelledby="whom-name">
    <h2 id="whom-name">Whom it looks at</h2>
    <div class="bar" data-part="layers">
      <label>Layer <select data-part="layer"></select></label>
      <label>Head <select data-part="head"></select></label>
    </div>
    <p class="hint" data-part="layerName"></p>
    <ol class="ranked" data-part="whom"></ol>
  </section>`;

registerView("agents", { markup, layout: "gallery", open: (root, report, weightsOf) => new AgentsView(root, report, weightsOf) });
registerLabels("agents", ({ names, steps }, at) => `${names[Math.floor(at / steps.length)]} at ${steps[at % steps.length]}`);
