// A house from above with ranked paths, darker where they are more probable, and the attention between the words of an
// instruction and the steps of a path: point at a word, and the steps it looks at light up; point at a step, and the
// words light up. The offline page and the lens make their elements from `markup`.

import { registerLabels } from "../../look/axis_labels.js";
import { announce, make, partsOf } from "../../look/dom.js";
import { onTheme, prepare } from "../../look/colours.js";
import { headTitle, layerTitle, percent } from "../../look/format.js";
import { registerView } from "../../look/offline.js";

const MEAN = -1; // in place of a head
const WIDTH = 620, MOST_HEIGHT = 560, MARGIN = 34; // pixels of the plan
const SHOWN = 10; // paths in the list
const NEAR = 22; // pixels from the pointer to a step
const LIT = "255 140 40", PATH = "42 92 190", START = "#19a05f", END = "#c2570c";

export class HouseView {
  /** `weightsOf(number)` gives the bytes q of a panel, with weight (q / 255)², head by head and row by row. */
  constructor(root, report, weightsOf) {
    const panels = report.panels.map((panel, number) => ({ ...panel, number, sides: panel.axes.map((axis) => report.axes[axis]) }));
    Object.assign(this, { root, report, weightsOf, parts: partsOf(root), details: report.details });
    this.panels = panels.filter(({ sides: [queries, keys] }) => queries.kind !== keys.kind);
    this.words = report.axes.find((axis) => axis.kind === "tokens")?.texts ?? [];
    this.pointed = { word: null, step: null };
    this.#buildWords();
    this.#buildPaths();
    this.#buildLayers();
    this.#listen();
    onTheme(() => this.#draw());
    this.show();
  }

  /** The layer in which words look at steps comes first; without any layer the plan alone is shown. */
  #buildLayers() {
    const { layer, layers, head } = this.parts;
    layers.hidden = !this.panels.length;
    layer.replaceChildren(...this.panels.map(({ name, sides: [queries] }, at) =>
      make("option", { value: at, textContent: `${layerTitle(name)}: ${queries.kind === "tokens" ? "words look at steps" : "steps look at words"}` })));
    const first = this.panels.findLastIndex(({ sides: [queries] }) => queries.kind === "tokens");
    layer.value = String(Math.max(0, first));
    const heads = () => {
      const count = this.panels[Number(layer.value)]?.heads ?? 0;
      head.replaceChildren(make("option", { value: MEAN, textContent: "mean of heads" }),
        ...Array.from({ length: count }, (_, each) => make("option", { value: each, textContent: headTitle(each) })));
    };
    heads();
    layer.onchange = () => { heads(); this.show(); };
    head.onchange = () => this.show();
  }

  #buildWords() {
    this.parts.words.replaceChildren(...this.words.map((text, word) => {
      const element = make("span", { textContent: text, tabIndex: 0, role: "button", data: { word } });
      element.addEventListener("pointerenter", () => this.#point({ word, step: null }));
      element.addEventListener("focus", () => this.#point({ word, step: null }));
      return element;
    }));
    this.parts.words.onpointerleave = () => this.#point({ word: null, step: null });
  }

  #buildPaths() {
    const { paths, rank } = this.details;
    this.parts.paths.replaceChildren(...paths.slice(0, SHOWN).map(({ probability, length, viewpoints }, at) => {
      const item = make("li", { "aria-current": at === rank, data: { path: at } },
        make("b", { textContent: percent(probability) }), ` ${length.toFixed(1)} m, ${viewpoints.length} viewpoints`);
      item.addEventListener("pointerenter", () => { this.hovered = at; this.#draw(); });
      item.addEventListener("pointerleave", () => { this.hovered = null; this.#draw(); });
      item.addEventListener("click", () => item.dispatchEvent(new CustomEvent("rank", { bubbles: true, detail: at })));
      return item;
    }));
  }

  /** The weights of the chosen layer and head as [word][row of the path], whichever side looks. */
  async #table() {
    const panel = this.panels[Number(this.parts.layer.value)];
    if (!panel) return null;
    const bytes = await this.weightsOf(panel.number), head = Number(this.parts.head.value);
    const [rows, columns] = panel.sides.map((axis) => (axis.kind === "tokens" ? axis.texts.length : axis.viewpoints.length + 1));
    const chosen = head === MEAN ? [...Array(panel.heads).keys()] : [head];
    const at = (row, column) => chosen.reduce((sum, each) => sum + (bytes[(each * rows + row) * columns + column] / 255) ** 2, 0) / chosen.length;
    const byWord = panel.sides[0].kind === "tokens", steps = (byWord ? columns : rows) - 1;
    return { byWord, cells: this.words.map((_, word) => Array.from({ length: steps + 1 }, (_, step) => (byWord ? at(word, step) : at(step, word)))) };
  }

  async show() {
    this.table = await this.#table();
    this.#point(this.pointed);
  }

  #point(place) {
    this.pointed = place;
    const { word, step } = place, { cells } = this.table ?? { cells: null };
    const shares = cells && step !== null ? cells.map((row) => row[step + 1]) : null;
    const most = shares ? Math.max(...shares, 1e-9) : 1;
    for (const element of this.parts.words.children) {
      const number = Number(element.dataset.word);
      element.classList.toggle("on", number === word);
      element.style.background = shares ? `rgb(${LIT} / ${0.8 * shares[number] / most})` : "";
    }
    this.parts.readout.textContent = this.#describe();
    this.#announce();
    this.#draw();
  }

  /** The head that is shown, and the word or step that is pointed at with its partner; rows of a path begin before its steps. */
  #announce() {
    const panel = this.panels[Number(this.parts.layer.value)], { word, step } = this.pointed, { cells, byWord } = this.table ?? {};
    if (!panel || !cells) return;
    const pair = word !== null ? [word, heaviest(cells[word])] : step !== null ? [heaviest(cells.map((row) => row[step + 1])), step + 1] : [null, null];
    const [query, key] = byWord ? pair : pair.reverse();
    announce(this.root, { panel: panel.number, head: Number(this.parts.head.value), query, key });
  }

  /** What is pointed at, in words. */
  #describe() {
    const { word, step } = this.pointed, { cells, byWord } = this.table ?? {};
    if (!cells || (word === null && step === null)) return "";
    const values = word === null ? cells.map((row) => row[step + 1]) : cells[word].slice(1);
    const best = values.indexOf(Math.max(...values)), verb = (word !== null) === byWord ? "looks most at" : "is looked at most by";
    const [from, to] = word === null ? [`Step ${step}`, `“${this.words[best]}”`] : [`“${this.words[word]}”`, `step ${best}`];
    return `${from} ${verb} ${to} (${percent(values[best])})`;
  }

  /** How brightly each step of the chosen path is lit, from 0 to 1. */
  #light() {
    const { cells } = this.table ?? {}, { word } = this.pointed;
    if (!cells) return [];
    const rows = word === null ? cells : [cells[word]];
    const sums = rows[0].slice(1).map((_, step) => rows.reduce((sum, row) => sum + row[step + 1], 0));
    const most = Math.max(...sums, 1e-9);
    return sums.map((each) => each / most);
  }

  /** The scale of the plan: metres to pixels, x to the right and y up. */
  #plan() {
    const { positions } = this.details.house;
    const [xs, ys] = [0, 1].map((axis) => positions.map((place) => place[axis]));
    const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const scale = Math.min((WIDTH - 2 * MARGIN) / Math.max(right - left, 1), (MOST_HEIGHT - 2 * MARGIN) / Math.max(high - low, 1));
    const height = Math.round((high - low) * scale) + 2 * MARGIN;
    return { height, at: (number) => [MARGIN + (positions[number][0] - left) * scale, height - MARGIN - (positions[number][1] - low) * scale] };
  }

  #draw() {
    const { canvas } = this.parts, { house, paths, rank, heading } = this.details;
    const { height, at } = this.#plan(), context = prepare(canvas, WIDTH, height);
    Object.assign(canvas.style, { width: `${WIDTH}px`, height: "auto" });
    Object.assign(context, { lineCap: "round", lineJoin: "round" });
    const line = (numbers, colour, width) => {
      context.beginPath();
      numbers.forEach((number, step) => context[step ? "lineTo" : "moveTo"](...at(number)));
      Object.assign(context, { strokeStyle: colour, lineWidth: width });
      context.stroke();
    };
    const dot = (number, radius, colour) => {
      context.beginPath();
      context.arc(...at(number), radius, 0, 2 * Math.PI);
      context.fillStyle = colour;
      context.fill();
    };
    for (const edge of house.edges) line(edge, "rgb(128 138 160 / 30%)", 1);
    house.positions.forEach((_, number) => dot(number, 2.5, "rgb(128 138 160 / 70%)"));
    const most = paths[0].probability || 1;
    [...paths.keys()].reverse().forEach((each) => line(paths[each].viewpoints, `rgb(${PATH} / ${0.08 + 0.5 * (paths[each].probability / most)})`, 3));
    const shown = this.hovered ?? rank, chosen = paths[shown].viewpoints;
    line(chosen, `rgb(${PATH})`, 5);
    const light = shown === rank ? this.#light() : [];
    chosen.forEach((number, step) => {
      dot(number, 7 + 9 * (light[step] ?? 0), `rgb(${LIT} / ${0.25 + 0.75 * (light[step] ?? 0)})`);
      if (step === this.pointed.step && shown === rank) { context.strokeStyle = START; context.lineWidth = 3; context.stroke(); }
      Object.assign(context, { fillStyle: "#10131c", font: "11px system-ui", textAlign: "center", textBaseline: "middle" });
      context.fillText(String(step), ...at(number));
    });
    this.#drawEnds(context, at(chosen[0]), at(chosen.at(-1)), heading);
  }

  #drawEnds(context, start, end, heading) {
    const tip = [start[0] + 30 * Math.sin(heading), start[1] - 30 * Math.cos(heading)];
    context.beginPath();
    context.moveTo(...start);
    context.lineTo(...tip);
    Object.assign(context, { strokeStyle: START, lineWidth: 2, font: "600 12px system-ui", textAlign: "left" });
    context.stroke();
    for (const [[x, y], colour, name] of [[start, START, "start"], [end, END, "end"]]) {
      context.fillStyle = colour;
      context.fillText(name, x + 10, y - 14);
    }
  }

  /** The one of some viewpoints that is nearest to the pointer, its place among them, and how many pixels it is away. */
  #nearest(event, numbers) {
    const { canvas } = this.parts, box = canvas.getBoundingClientRect(), { at } = this.#plan(), ratio = WIDTH / box.width;
    const [x, y] = [(event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio];
    const away = numbers.map((number) => Math.hypot(at(number)[0] - x, at(number)[1] - y));
    const place = away.indexOf(Math.min(...away));
    return { number: numbers[place], place, away: away[place] };
  }

  /** The step of the chosen path that is nearest to the pointer, if it is near. */
  #stepAt(event) {
    const { place, away } = this.#nearest(event, this.details.paths[this.details.rank].viewpoints);
    return away < NEAR ? place : null;
  }

  #listen() {
    const { canvas } = this.parts, { house, paths, rank } = this.details, steps = paths[rank].viewpoints.length, all = [...house.viewpoints.keys()];
    canvas.onpointermove = (event) => {
      const step = this.#stepAt(event);
      if (step !== this.pointed.step) this.#point({ word: null, step });
    };
    canvas.onclick = (event) => canvas.dispatchEvent(new CustomEvent("viewpoint", { bubbles: true, detail: house.viewpoints[this.#nearest(event, all).number] }));
    canvas.onpointerleave = () => this.#point({ word: null, step: null });
    canvas.onkeydown = (event) => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") this.#point({ word: null, step: null });
      else if (by) this.#point({ word: null, step: ((this.pointed.step ?? (by > 0 ? -1 : 0)) + by + steps) % steps });
      else return;
      event.preventDefault();
    };
  }
}

const heaviest = (weights) => weights.indexOf(Math.max(...weights));

const markup = `
  <section class="stage" aria-labelledby="house-name">
    <div class="bar"><h2 id="house-name">The house from above</h2><span class="badge">no images: geometry alone</span></div>
    <p class="readout" data-part="readout" role="status" id="house-readout"></p>
    <canvas class="picture" data-part="canvas" tabindex="0" role="img" aria-label="The house from above, with ranked paths" aria-describedby="house-readout"></canvas>
    <p class="hint">Blue: candidate paths, darker where more probable. Point at a word, and the steps it looks at grow; point at a step, or move with the arrow keys, and the words light up.</p>
  </section>
  <section class="atlas" aria-labelledby="words-name">
    <div class="bar"><h2 id="words-name">The instruction</h2></div>
    <div class="words sentence" data-part="words" dir="auto"></div>
    <div class="bar" data-part="layers">
      <label>Layer <select data-part="layer"></select></label>
      <label>Head <select data-part="head"></select></label>
    </div>
    <h2>Ranked paths</h2>
    <ol class="ranked" data-part="paths"></ol>
  </section>`;

registerView("house", { markup, layout: "gallery", open: (root, report, weightsOf) => new HouseView(root, report, weightsOf) });
registerLabels("steps", (_, at) => (at ? `step ${at - 1}` : "path"));
