// The features of a dictionary: listed and searched, and the chosen one with its contexts, its outputs and what else is known.

import { colour, inkOn, onTheme } from "../../look/colours.js";
import { make, partsOf } from "../../look/dom.js";
import { percent, spokenToken } from "../../look/format.js";
import { drawBoxes, drawUnderVeil } from "../../look/overlay.js";

const SIDE = 150; // pixels of an image
const MARKUP = `
  <nav class="card stage" aria-label="Features">
    <input data-part="search" type="search" placeholder="Name, word or number" aria-label="Search features">
    <ul class="features" data-part="list"></ul>
    <p class="hint" data-part="none" hidden>No feature here matches.</p>
  </nav>
  <section class="card stage feature" data-part="feature" aria-live="polite"></section>`;
const titleOf = (feature) => feature.name || feature.words.map(spokenToken).join(" · ");

/** A text in which every token is tinted by its value, as a share of the feature's largest. */
export function litText(tokens, values, largest, strongest = -1) {
  return make("p", { dir: "auto" }, ...tokens.map((token, at) => {
    const share = Math.min(1, Math.max(0, values[at]) / (largest || 1));
    const word = make("span", { textContent: spokenToken(token), title: values[at].toFixed(2) });
    if (share > 0) Object.assign(word.style, { background: colour(share), color: inkOn(share) });
    if (at === strongest) word.className = "strongest";
    return word;
  }));
}

function textContext(context, largest) {
  const value = make("span", { className: "value", textContent: context.values[context.at].toFixed(2) });
  return make("li", {}, value, litText(context.tokens, context.values, largest, context.at));
}

function imageContext(context, images) {
  const canvas = make("canvas", { role: "img", "aria-label": `image ${context.example}` });
  const cells = context.rows * context.columns;
  const image = new Image();
  image.onload = () => cells
    ? drawUnderVeil(canvas, image, SIDE, { grid: [context.rows, context.columns], weights: context.values.slice(-cells) })
    : drawBoxes(canvas, image, SIDE, context.boxes, context.values);
  image.src = `data:image/png;base64,${images[context.example]}`;
  const elsewhere = cells && context.at < context.values.length - cells ? " at the class token" : "";
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

/** The answers of a model in columns: `rows` of texts below `heads`. */
export function answerTable(heads, rows) {
  const head = heads.map((text) => make("th", { textContent: text, scope: "col" }));
  const cells = (row) => make("tr", {}, ...row.map((text) => make("td", { textContent: spokenToken(text), dir: "auto" })));
  return make("table", { className: "effects" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows.map(cells)));
}

/**
 * The list and the chosen feature inside `root`. `load(number)` promises everything of a feature, `below(feature)` are
 * further elements of its part, `opened(number)` hears which one is shown, `failed(error)` what went wrong.
 */
export class FeatureBrowser {
  constructor(root, { load, below, opened, failed }) {
    root.classList.add("dictionary");
    root.innerHTML = MARKUP; // constant: the words of features are only ever text nodes
    Object.assign(this, { parts: partsOf(root), load, below, opened, failed, features: [], shown: null });
    this.parts.search.addEventListener("input", () => this.#list());
    onTheme(() => { if (this.shown) this.#draw(this.shown); });
  }

  /** List some features and open one of them: that of a number, or the first. */
  show(features, number) {
    this.features = features;
    this.#list();
    const chosen = features.find((each) => each.number === number) ?? features[0];
    return chosen ? this.open(chosen.number) : this.parts.feature.replaceChildren();
  }

  async open(number) {
    this.wanted = number;
    try {
      const feature = await this.load(number);
      if (this.wanted !== number) return; // another one was chosen meanwhile
      this.shown = feature;
      this.#draw(feature);
      this.#mark();
      this.opened(number);
    } catch (error) {
      this.failed(error);
    }
  }

  /** A feature has another name now. */
  rename(number, name) {
    for (const feature of [...this.features, this.shown]) if (feature.number === number) feature.name = name;
    this.#list();
    this.parts.feature.querySelector("h2").textContent = headingOf(this.shown);
  }

  #list() {
    const wanted = this.parts.search.value.trim().toLowerCase();
    const matches = this.features.filter((each) => `${each.number} ${each.name} ${each.words.map(spokenToken).join(" ")}`.toLowerCase().includes(wanted));
    this.parts.list.replaceChildren(...matches.map((each) => make("li", {}, make("button", { type: "button", data: { feature: each.number }, onclick: () => this.open(each.number) },
      make("span", { className: "which", textContent: String(each.number) }), make("span", { textContent: titleOf(each) }),
      make("span", { className: "share", textContent: percent(each.share) })))));
    this.parts.none.hidden = matches.length > 0;
    this.#mark();
  }

  #mark() {
    for (const button of this.parts.list.querySelectorAll("button")) button.setAttribute("aria-current", String(Number(button.dataset.feature) === this.shown?.number));
  }

  #draw(feature) {
    const images = feature.contexts.some((each) => each.rows || each.boxes?.length);
    const parts = [
      make("h2", { textContent: headingOf(feature) }),
      make("p", { className: "hint", textContent: `active at ${percent(feature.share)} of the positions, largest value ${feature.largest.toFixed(2)}` }),
      make("h3", { textContent: "Where it is strongest" }),
      make("ul", { className: images ? "contexts images" : "contexts" },
        ...feature.contexts.map((each) => (images ? imageContext(each, feature.images) : textContext(each, feature.largest)))),
    ];
    if (feature.outputs) {
      parts.push(make("h3", { textContent: "Logits that it raises and lowers, through the unembedding alone" }));
      parts.push(make("div", { className: "outputs" }, outputList(feature.outputs.raised, "raised"), outputList(feature.outputs.lowered, "lowered")));
    }
    this.parts.feature.replaceChildren(...parts, ...this.below(feature));
  }
}

const headingOf = (feature) => `Feature ${feature.number}${feature.name ? `: ${feature.name}` : ""}`;
