// Attention between the tokens of texts: one head at a time as lines and as a matrix, and every head as a small map.
// It is also the view of reports whose axes are of several kinds, by the labels of their places. The offline page makes
// its elements from `markup`; the lens has its own, with the same `data-part` names.

import { Atlas, headsOf, MEAN } from "../atlas.js";
import { announce, calm, partsOf } from "../dom.js";
import { headTitle, KINDS, layerTitle, percent } from "../format.js";
import { Matrix } from "../matrix.js";
import { registerView } from "../offline.js";
import { Pointing } from "../pointing.js";
import { PredictionView } from "../predictions.js";
import { Threads } from "../threads.js";
import { WeightMap } from "../weights.js";
import { tell, WordPair } from "../words.js";

const LONG = 32; // tokens from which the matrix takes the whole width
const VERY_LONG = 160; // tokens from which rows are scaled to their peaks at first

/** The name of what is shown: { panel, head }. */
export function titleOf({ panel, head }) {
  return panel.heads === 1 ? panel.title : `${panel.title}, ${headTitle(head)}`;
}

export class TokensView {
  pointing = new Pointing();
  views = []; // every { panel, head } that can be chosen
  view = null; // the one that is shown, with its `map`

  /**
   * `fill(view, paint, signal)` puts weights into `view.map`, and may call `paint` as they arrive. `onView(view)` is told
   * what is shown, `onError(error)` why it cannot be. With `means`, the mean of a layer's heads can be chosen too.
   */
  constructor(root, { fill, onView = () => {}, onError = () => {}, means = false, zoom = "never" }) {
    Object.assign(this, { fill, onView, onError, means, parts: partsOf(root) });
    const { stage, matrix, threads, atlas, filters, relative, previous, next, readout } = this.parts;
    this.matrix = new Matrix(matrix, this.pointing, { zoom, describedBy: readout.id });
    this.threads = new Threads(threads, this.pointing);
    this.sentences = this.parts["keys-text"] ? new WordPair(this.parts["keys-text"], this.parts["queries-text"], this.pointing) : null;
    this.atlas = new Atlas(atlas, filters, (panel, head) => this.#chooseFromAtlas(panel, head), { means });
    relative.addEventListener("change", () => this.paint());
    previous.addEventListener("click", () => this.#step(-1));
    next.addEventListener("click", () => this.#step(1));
    stage.addEventListener("pointerleave", () => { if (!this.pointing.held) this.pointing.release(); });
    this.pointing.watch((place) => { if (this.view?.map) tell(readout, this.view.map, place); });
  }

  /** Show panels as `Atlas` knows them: the chosen view, the one of the same name as before, or the first. */
  show(panels, isChosen = () => false) {
    const before = this.view;
    this.views = panels.flatMap((panel) => headsOf(panel, this.means).map((head) => ({ panel, head })));
    this.atlas.build(panels);
    this.parts.relative.checked = Math.max(0, ...panels.flatMap((panel) => [panel.queryTexts.length, panel.keyTexts.length])) > VERY_LONG;
    const again = before && this.views.find((each) => each.panel.name === before.panel.name && each.head === before.head);
    return this.choose(this.views.find(isChosen) ?? again ?? this.views[0]);
  }

  async choose(chosen) {
    if (!chosen) return;
    this.loading?.abort();
    const { signal } = (this.loading = new AbortController());
    const { panel, head } = chosen, { stage, name, kind, readout } = this.parts;
    this.view = { ...chosen, map: new WeightMap(panel.queryTexts, panel.keyTexts) };
    name.textContent = this.matrix.label = titleOf(chosen);
    name.title = panel.name;
    kind.textContent = panel.badge ?? panel.about;
    stage.classList.toggle("long", Math.max(panel.queryTexts.length, panel.keyTexts.length) > LONG);
    this.atlas.mark(panel, head);
    this.pointing.release();
    this.onView(this.view);
    this.paint();
    try {
      await this.fill(this.view, () => this.paint(), signal);
      if (signal.aborted) return;
      readout.replaceChildren();
      this.paint();
      this.pointing.move(this.pointing.place);
    } catch (error) {
      if (!signal.aborted) this.onError(error);
    }
  }

  /** Point at a query, and scroll to it. */
  reveal(row) {
    this.pointing.move({ row, column: null });
    this.threads.reveal(row);
    this.matrix.reveal(this.pointing.place);
  }

  paint() {
    if (!this.view) return;
    const relative = this.parts.relative.checked;
    for (const each of [this.sentences, this.threads, this.matrix]) each?.show(this.view.map, relative);
  }

  #step(by) {
    const at = this.views.findIndex((each) => each.panel === this.view.panel && each.head === this.view.head);
    this.choose(this.views[(at + by + this.views.length) % this.views.length]);
  }

  #chooseFromAtlas(panel, head) {
    this.choose(this.views.find((each) => each.panel === panel && each.head === head));
    this.parts.stage.scrollIntoView({ block: "start", behavior: calm.matches ? "auto" : "smooth" });
  }
}

// The offline page

const markup = `
  <section class="stage" data-part="stage" aria-labelledby="view-name">
    <div class="bar">
      <h2 id="view-name" data-part="name"></h2>
      <span class="badge" id="view-kind" data-part="kind"></span>
      <label class="switch"><input type="checkbox" id="relative" data-part="relative"> scale each row to its peak</label>
      <div class="steps" role="group" aria-label="Other heads">
        <button type="button" id="previous" data-part="previous" aria-label="Previous head">←</button>
        <button type="button" id="next" data-part="next" aria-label="Next head">→</button>
      </div>
    </div>
    <div class="text">
      <span class="side" data-part="keys-side"></span><div class="words sentence" id="keys-text" data-part="keys-text" dir="auto"></div>
      <span class="side" data-part="queries-side"></span><div class="words sentence" id="queries-text" data-part="queries-text" dir="auto"></div>
    </div>
    <p class="readout" id="readout" data-part="readout" role="status"></p>
    <div class="views">
      <div class="threads" data-part="threads">
        <canvas aria-hidden="true"></canvas>
        <div class="scroller">
          <div class="words column keys-side"></div>
          <div class="words column queries-side"></div>
        </div>
      </div>
      <div class="matrix" data-part="matrix"></div>
    </div>
    <p class="hint">Point at a word, or move with the arrow keys: its partners light up. Click or press Enter to hold it, Esc to let go.</p>
  </section>
  <section class="stage" id="predictions" data-part="predictions" aria-labelledby="predictions-name" hidden>
    <div class="bar"><h2 id="predictions-name" data-part="predictions-title"></h2></div>
    <p class="hint" data-part="predictions-hint"></p>
    <div class="tokens" id="predictions-text" data-part="predictions-tokens" dir="auto"></div>
    <p class="readout" id="predictions-readout" data-part="predictions-readout" role="status"></p>
    <ol class="odds" id="odds" data-part="candidates"></ol>
  </section>
  <section class="atlas" aria-labelledby="atlas-name">
    <div class="bar">
      <h2 id="atlas-name">Every layer and head</h2>
      <div class="filters" data-part="filters" role="group" aria-label="Kinds of attention"></div>
    </div>
    <p class="hint">Rows look at columns. Each small map is shaded up to its own peak. Choose one to see it large.</p>
    <div data-part="atlas"></div>
  </section>`;

/** The panels of a report as views know them; weights are numbered with the alignment first. */
function panelsOf({ axes, alignment, panels }) {
  return [...(alignment ? [alignment] : []), ...panels].map((panel, number) => {
    const [queryTexts, keyTexts] = panel.axes.map((axis) => axes[axis].texts), isAlignment = panel === alignment;
    const [title, about] = isAlignment ? ["Word alignment", `words, read from ${layerTitle(panel.name)}`] : [layerTitle(panel.name), KINDS[panel.kind]];
    return { ...panel, kind: isAlignment ? "alignment" : panel.kind, number, title, about, queryTexts, keyTexts };
  });
}

const addressOf = ({ panel, head }) => `#${panel.number}.${head === MEAN ? "mean" : head}`;

function open(root, report, weightsOf) {
  const mapOf = async (panel, head) => {
    const heads = head === MEAN ? [...Array(panel.heads).keys()] : [head];
    return WeightMap.ofHeads(panel.queryTexts, panel.keyTexts, await weightsOf(panel.number), heads);
  };
  const view = new TokensView(root, {
    means: true,
    fill: async ({ panel, head, map }) => map.take(await mapOf(panel, head)),
    onView: (shown) => {
      const isCross = ["cross", "alignment"].includes(shown.panel.kind);
      view.parts["keys-side"].textContent = isCross ? "source" : "looked at";
      view.parts["queries-side"].textContent = isCross ? "target" : "looking";
      if (location.protocol !== "about:") history.replaceState(null, "", addressOf(shown)); // a notebook's frame has no address
      announceView();
    },
  });
  /** The head that is shown, and the query and the key that are pointed at; a query alone is shown with its heaviest key. */
  const announceView = () => {
    const { panel, head, map } = view.view, { row, column } = view.pointing.place;
    if (panel.kind === "alignment") announce(root, { panel: null, head });
    else announce(root, { panel: panel.number - (report.alignment ? 1 : 0), head, query: row, key: row === null ? null : (column ?? map.heaviestKey(row)) });
  };
  view.pointing.watch(() => { if (view.view?.map) announceView(); });
  showPredictions(view.parts, report);
  view.show(panelsOf(report), (each) => addressOf(each) === location.hash);
  view.atlas.drawWhenVisible(mapOf);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") view.pointing.release(); });
}

function showPredictions(parts, { tokens, predictions }) {
  if (!predictions.length) return;
  const describe = ({ came, rank }) => (came ? [`“${came.token}” came: number ${rank} of the candidates, with ${percent(came.probability)}`] : []);
  const view = new PredictionView({
    title: parts["predictions-title"], hint: parts["predictions-hint"], tokens: parts["predictions-tokens"],
    readout: parts["predictions-readout"], candidates: parts.candidates,
  }, { describe, how: "Point at one, or use the arrow keys." });
  parts.predictions.hidden = false;
  view.show(tokens, predictions.some((each) => each.came !== null || each.choices[0].drawn !== null));
  view.add(predictions);
}

registerView("tokens", { markup, hasScale: true, open });
