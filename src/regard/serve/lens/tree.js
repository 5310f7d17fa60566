// Beam search as a tree: a column for every step, its candidates from the most to the least probable, and the branches
// they grew from. It can be stepped through; which path wins is shown at the last step only, as in the search itself.

import { byId, calm, make, makeSvg, onWidth, within } from "./dom.js";
import { percent, plainToken, plural, signed } from "./format.js";

const COLUMN = 132, ROW = 50, BOX = { width: 106, height: 38 }, MARGIN = 10;
const MOST_STEPS = 150; // more would be thousands of boxes
const BEAT = 900; // milliseconds a step takes when playing
const STATES = { live: "kept", ended: "ended", dropped: "dropped" };
const SIGNS = { live: "", ended: "■", dropped: "✕" };

export class BeamTree {
  constructor() {
    [this.frame, this.line, this.readout] = [byId("beam-tree"), byId("tree-step"), byId("tree-readout")];
    const press = (id, action) => byId(id).addEventListener("click", () => { this.pause(); action(); });
    press("tree-first", () => this.go(1));
    press("tree-back", () => this.go(this.step - 1));
    press("tree-forward", () => this.go(this.step + 1));
    press("tree-last", () => this.go(this.steps));
    byId("tree-play").addEventListener("click", () => this.toggle());
    this.frame.addEventListener("keydown", (event) => this.#type(event));
    this.frame.addEventListener("pointerover", (event) => this.#pointAt(event.target.closest?.(".node")));
    this.frame.addEventListener("pointerleave", () => this.#pointAt(null));
    byId("tree-legend").replaceChildren(...legend());
    this.frame.addEventListener("scroll", () => this.#cue(), { passive: true });
    onWidth(this.frame, () => this.#cue());
  }

  show(search) {
    this.pause();
    const steps = search.nodes.reduce((most, node) => Math.max(most, node.step), 0);
    this.steps = Math.min(steps, MOST_STEPS);
    this.cutOff = steps > MOST_STEPS ? ` The search took ${steps} steps; the first ${MOST_STEPS} are drawn.` : "";
    this.nodes = new Map([[0, { id: 0, step: 0, rank: 0, token: "start", total: 0, state: "root", best: true }]]);
    const ranks = {};
    for (const node of [...search.nodes].sort((a, b) => a.step - b.step || b.total - a.total)) {
      const rank = ranks[node.step] ?? 0;
      ranks[node.step] = rank + 1;
      if (node.step <= this.steps) this.nodes.set(node.id, { ...node, rank });
    }
    this.#draw(Math.max(1, ...Object.values(ranks)));
    this.go(this.steps);
    this.frame.scrollTo({ left: 0, top: 0, behavior: "instant" });
    this.#cue();
  }

  go(step) {
    this.step = within(step, 1, Math.max(1, this.steps));
    const isLast = this.step === this.steps;
    const counts = { live: 0, ended: 0, dropped: 0 };
    for (const [id, { group, edge }] of this.drawn) {
      const node = this.nodes.get(id);
      const isShown = node.step <= this.step;
      group.classList.toggle("away", !isShown);
      edge?.classList.toggle("away", !isShown);
      group.classList.toggle("best", isLast && node.best);
      edge?.classList.toggle("best", isLast && node.best);
      group.classList.toggle("now", node.step === this.step);
      if (node.step === this.step && node.state in counts) counts[node.state] += 1;
    }
    const parts = Object.entries(counts).filter(([, number]) => number).map(([state, number]) => `${number} ${STATES[state]}`);
    const ending = isLast ? ` The best path is marked with ★.${this.cutOff}` : "";
    this.line.textContent = `Step ${this.step} of ${this.steps}: ${parts.join(", ")}.${ending}`;
    for (const id of ["tree-first", "tree-back"]) byId(id).disabled = this.step <= 1;
    for (const id of ["tree-forward", "tree-last"]) byId(id).disabled = isLast;
    this.#scrollTo(this.step);
  }

  toggle() {
    if (this.playing) { this.pause(); return; }
    if (this.step >= this.steps) this.go(1);
    this.playing = setInterval(() => { this.go(this.step + 1); if (this.step >= this.steps) this.pause(); }, BEAT);
    this.#label("Pause", "❚❚");
  }

  pause() {
    clearInterval(this.playing);
    this.playing = 0;
    this.#label("Play", "▶");
  }

  #label(words, sign) {
    byId("tree-play").setAttribute("aria-label", words);
    byId("tree-play").replaceChildren(make("span", { className: "play-sign", textContent: sign }), ` ${words}`);
  }

  #type(event) {
    const moves = {
      Home: () => this.go(1), ArrowLeft: () => this.go(this.step - 1), ArrowRight: () => this.go(this.step + 1), End: () => this.go(this.steps),
      ArrowUp: () => this.#read(-1), ArrowDown: () => this.#read(1),
    };
    if (event.key === " ") this.toggle();
    else if (moves[event.key]) { this.pause(); moves[event.key](); }
    else return;
    event.preventDefault();
  }

  /** Point at the next candidate of this step, by keyboard. */
  #read(by) {
    const candidates = [...this.nodes.values()].filter((node) => node.step === this.step).sort((a, b) => a.rank - b.rank);
    const at = candidates.findIndex((node) => node.id === this.pointed);
    this.#pointAt(this.drawn.get(candidates[within(at + by, 0, candidates.length - 1)].id).group);
  }

  #place = (node) => ({ x: MARGIN + node.step * COLUMN, y: MARGIN + node.rank * ROW });

  #draw(rows) {
    const width = 2 * MARGIN + this.steps * COLUMN + BOX.width, height = 2 * MARGIN + (rows - 1) * ROW + BOX.height;
    const edges = makeSvg("g"), boxes = makeSvg("g");
    this.drawn = new Map();
    for (const node of this.nodes.values()) {
      const parent = this.nodes.get(node.parent);
      const edge = parent ? this.#edge(parent, node) : null;
      const group = this.#box(node);
      if (edge) edges.append(edge);
      boxes.append(group);
      this.drawn.set(node.id, { group, edge });
    }
    this.frame.replaceChildren(makeSvg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "presentation" }, edges, boxes));
  }

  #edge(parent, node) {
    const [from, to] = [this.#place(parent), this.#place(node)];
    const [x1, y1, x2, y2] = [from.x + BOX.width, from.y + BOX.height / 2, to.x, to.y + BOX.height / 2];
    const bend = (x2 - x1) / 2;
    return makeSvg("path", { class: `edge ${node.state}`, d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` });
  }

  #box(node) {
    const { x, y } = this.#place(node);
    const text = (className, dy, words, dx = 10) => {
      const made = makeSvg("text", { class: className, x: dx, y: dy });
      made.textContent = words;
      return made;
    };
    const token = plainToken(node.token);
    const marks = { "data-id": node.id, "data-state": node.state, "data-best": node.best };
    const group = makeSvg("g", { class: `node ${node.state}`, transform: `translate(${x} ${y})`, ...marks },
      makeSvg("rect", { width: BOX.width, height: BOX.height, rx: 9 }));
    if (node.state === "ended") group.append(makeSvg("rect", { class: "inner", x: 3, y: 3, width: BOX.width - 6, height: BOX.height - 6, rx: 6 }));
    group.append(text("token", 16, token.length > 11 ? `${token.slice(0, 10)}…` : token));
    if (node.state === "root") return group;
    group.append(text("number", 30, signed(node.total)));
    group.append(text("sign", 16, SIGNS[node.state], BOX.width - 18), text("star", 31, "★", BOX.width - 19));
    return group;
  }

  /** Light up the way to a candidate, and say what it is. */
  #pointAt(element) {
    for (const { group, edge } of this.drawn?.values() ?? []) { group.classList.remove("path"); edge?.classList.remove("path"); }
    this.pointed = null;
    if (!element || element.classList.contains("away")) { this.readout.replaceChildren(); return; }
    this.pointed = Number(element.dataset.id);
    const chosen = this.nodes.get(this.pointed);
    const tokens = [];
    for (let node = chosen; node; node = this.nodes.get(node.parent)) {
      this.drawn.get(node.id).group.classList.add("path");
      this.drawn.get(node.id).edge?.classList.add("path");
      if (node.id) tokens.unshift(node.token);
    }
    if (!chosen.id) { this.readout.textContent = "Every hypothesis begins here."; return; }
    const own = chosen.total - (this.nodes.get(chosen.parent)?.total ?? 0);
    const said = tokens.map((token) => token.replace(/^[▁Ġ]/, " ")).join("").trim();
    const together = `together ${signed(chosen.total)} over ${plural(chosen.step, "step")}, score ${signed(chosen.score, 3)}`;
    this.readout.replaceChildren(make("b", { textContent: said, dir: "auto" }),
      ` · this token ${signed(own)} (${percent(Math.exp(own))}), ${together} · ${STATES[chosen.state]}`);
  }

  /** Show on which sides there is more to see than fits. */
  #cue() {
    const { scrollLeft, scrollWidth, clientWidth } = this.frame;
    const hidden = scrollWidth - clientWidth;
    byId("tree-frame").classList.toggle("more-left", scrollLeft > 4);
    byId("tree-frame").classList.toggle("more-right", hidden - scrollLeft > 4);
    byId("tree-more").hidden = hidden <= 4;
  }

  #scrollTo(step) {
    const right = MARGIN + step * COLUMN + BOX.width + MARGIN;
    const { scrollLeft, clientWidth } = this.frame;
    const left = step === 1 ? 0 : right > scrollLeft + clientWidth ? right - clientWidth : Math.min(scrollLeft, right - BOX.width - COLUMN);
    if (left !== scrollLeft) this.frame.scrollTo({ left, behavior: calm.matches ? "auto" : "smooth" });
  }
}

function legend() {
  const box = (state, sign) => make("span", { className: `sign-box ${state}`, "aria-hidden": "true", textContent: sign });
  const entry = (state, sign, words) => make("li", {}, box(state, sign), words);
  return [
    entry("live", "", "kept in the beam"),
    entry("dropped", SIGNS.dropped, "dropped: others were more probable"),
    entry("ended", SIGNS.ended, "ended: a complete translation"),
    entry("best", "★", "the way to the best one"),
    make("li", {}, "numbers: log-probability so far"),
  ];
}
