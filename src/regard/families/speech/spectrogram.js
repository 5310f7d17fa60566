// A recording: its wave and its spectrogram with the path of labels over it, and what every token looked at. The sound
// can be played: a cursor moves along, and the token that is being said shows where it looked. The offline page and the
// lens make their elements from `markup`.

import { registerLabels } from "../../look/axis_labels.js";
import { announce, make, onWidth, partsOf } from "../../look/dom.js";
import { cssColour, onTheme, prepare } from "../../look/colours.js";
import { headTitle, layerTitle, percent } from "../../look/format.js";
import { registerView } from "../../look/offline.js";

const MEAN = -1; // in place of a head
const WAVE = 56, SPECTRUM = 210, TAGS = 20; // pixels: height of the wave, of the spectrogram, of the labels above it
const CONTRAST = 0.6; // exponent of weights, so that faint looks are seen

export class SpectrogramView {
  /** `weightsOf(number)` gives the bytes q of a panel, with weight (q / 255)², head by head and row by row. */
  constructor(root, report, weightsOf) {
    Object.assign(this, { root, report, weightsOf, parts: partsOf(root), details: report.details, chosen: null, held: false });
    this.tokens = report.panels.length ? report.axes[report.panels[0].axes[0]].texts : [];
    this.image = new Image();
    this.image.addEventListener("load", () => this.#draw());
    this.image.src = report.picture;
    this.#buildTokens();
    this.#buildLayers();
    this.#listen();
    onTheme(() => this.#draw());
    onWidth(this.parts.canvas.parentElement, () => this.#draw());
    this.show();
  }

  /** The token that is said at a time, by the path of labels; -1 between tokens. */
  #tokenAt(seconds) {
    return this.details.path.findIndex(([, start, end]) => seconds >= start && seconds < end);
  }

  #buildTokens() {
    this.parts.said.replaceChildren(...this.tokens.map((text, token) => make("li", {}, make("button", {
      type: "button", textContent: text, data: { token },
      onpointerenter: () => { if (!this.held) this.choose(token); }, onfocus: () => this.choose(token),
      onclick: () => { this.held = !this.held || token !== this.chosen; this.choose(token); this.#playFrom(token); } }))));
  }

  #playFrom(token) {
    const span = this.details.path[token];
    if (!span) return;
    this.parts.sound.currentTime = span[1];
  }

  /** The last layer comes first: the cross-attention of a decoder, or the top of the encoder. */
  #buildLayers() {
    const { layer, head, layers } = this.parts, { panels } = this.report;
    layers.hidden = !panels.length;
    layer.replaceChildren(...panels.map(({ name }, at) => make("option", { value: at, textContent: layerTitle(name) })));
    const crossing = panels.findLastIndex(({ kind }) => kind === "cross");
    layer.value = String(crossing < 0 ? panels.length - 1 : crossing);
    const heads = () => head.replaceChildren(make("option", { value: MEAN, textContent: "mean of heads" }),
      ...Array.from({ length: panels[Number(layer.value)]?.heads ?? 0 }, (_, each) => make("option", { value: each, textContent: headTitle(each) })));
    heads();
    layer.onchange = () => { heads(); this.show(); };
    head.onchange = () => this.show();
  }

  #listen() {
    const { canvas, sound } = this.parts;
    sound.src = this.details.audio;
    sound.hidden = !this.details.audio;
    const follow = () => {
      this.#follow();
      if (!sound.paused && !sound.ended) requestAnimationFrame(follow);
    };
    sound.addEventListener("play", follow);
    sound.addEventListener("seeked", () => this.#follow());
    const time = (event) => (event.offsetX / canvas.clientWidth) * this.details.seconds;
    canvas.onclick = (event) => { sound.currentTime = time(event); };
    canvas.onpointermove = (event) => {
      const token = this.#tokenAt(time(event));
      if (token >= 0 && !this.held && sound.paused) this.choose(token);
    };
  }

  /** Move the cursor to where the sound is, and show the token that is said there. */
  #follow() {
    const token = this.#tokenAt(this.parts.sound.currentTime);
    if (token >= 0 && token !== this.chosen && !this.held) this.choose(token);
    else this.#draw();
  }

  /** The frames of the chosen layer: how many, and the seconds of one; together they may be a little longer than the sound. */
  get #frames() { return this.report.axes[this.report.panels[Number(this.parts.layer.value)].axes[1]]; }

  /** The weights of the chosen layer and head: for every token, one weight for each frame. */
  async #table() {
    const number = Number(this.parts.layer.value), panel = this.report.panels[number];
    if (!panel) return null;
    const bytes = await this.weightsOf(number), frames = this.#frames.count, head = Number(this.parts.head.value);
    const heads = head === MEAN ? [...Array(panel.heads).keys()] : [head], rows = this.tokens.length;
    return this.tokens.map((_, token) => Float32Array.from({ length: frames }, (_, frame) =>
      heads.reduce((sum, each) => sum + (bytes[(each * rows + token) * frames + frame] / 255) ** 2, 0) / heads.length));
  }

  async show() {
    this.table = await this.#table();
    this.#describe();
    this.#draw();
  }

  /** Show what a token looked at. */
  choose(token) {
    this.chosen = token;
    for (const button of this.parts.said.querySelectorAll("button")) button.setAttribute("aria-pressed", Number(button.dataset.token) === token);
    this.#describe();
    this.#draw();
  }

  #describe() {
    const weights = this.table?.[this.chosen], shown = { panel: Number(this.parts.layer.value), head: Number(this.parts.head.value) };
    if (!weights) {
      this.parts.readout.textContent = this.tokens.length ? "" : "Nothing was heard.";
      if (this.table) announce(this.root, shown);
      return;
    }
    const best = weights.indexOf(Math.max(...weights)), { seconds } = this.#frames;
    announce(this.root, { ...shown, query: this.chosen, key: best });
    const span = this.details.path[this.chosen], said = span ? `, said at ${span[1].toFixed(2)} s,` : "";
    this.parts.readout.textContent = `“${this.tokens[this.chosen]}”${said} looked most at ${(best * seconds).toFixed(2)} s (${percent(weights[best])})`;
  }

  #draw() {
    const { canvas, sound } = this.parts, { seconds, wave, path, words } = this.details;
    const width = Math.max(canvas.parentElement.clientWidth, 200), context = prepare(canvas, width, WAVE + TAGS + SPECTRUM);
    const [ink, accent] = ["--ink", "--accent"].map(cssColour), x = (at) => (at / seconds) * width, top = WAVE + TAGS;
    const gain = WAVE / Math.max(...wave, 1e-3);
    context.fillStyle = ink;
    wave.forEach((peak, at) => context.fillRect((at / wave.length) * width, (WAVE - peak * gain) / 2, Math.max(1, width / wave.length - 0.5), Math.max(1, peak * gain)));
    if (this.image.complete && this.image.width) context.drawImage(this.image, 0, top, width, SPECTRUM);
    this.#veil(context, width, top);
    const spans = path.length ? path : words.map(({ text, start, end }) => [text, start, end]);
    Object.assign(context, { font: "12px system-ui", textAlign: "center", textBaseline: "bottom" });
    spans.forEach(([label, start, end], at) => {
      context.fillStyle = accent;
      context.fillRect(x(start), top - 4, Math.max(2, x(end) - x(start)), 4);
      context.fillStyle = at === this.chosen && path.length ? accent : ink;
      context.fillText(label, (x(start) + x(end)) / 2, top - 5);
    });
    context.fillStyle = accent;
    if (sound.currentTime > 0) context.fillRect(x(sound.currentTime) - 1, 0, 2, top + SPECTRUM);
  }

  /** Darkness over the frames that the chosen token did not look at. */
  #veil(context, width, top) {
    const weights = this.table?.[this.chosen];
    if (!weights) return;
    const most = Math.max(...weights, 1e-9), step = (this.#frames.seconds / this.details.seconds) * width;
    weights.forEach((weight, frame) => {
      context.fillStyle = `rgb(8 12 24 / ${0.8 * (1 - (weight / most) ** CONTRAST)})`;
      context.fillRect(Math.round(frame * step), top, Math.round((frame + 1) * step) - Math.round(frame * step), SPECTRUM);
    });
  }
}

const markup = `
  <section class="stage" aria-labelledby="view-name">
    <div class="bar"><h2 id="view-name">What was heard, and where it looked</h2>
      <div class="filters" data-part="layers"><select data-part="layer" aria-label="Layer"></select> <select data-part="head" aria-label="Head"></select></div></div>
    <ul class="said" data-part="said"></ul>
    <p class="readout" id="readout" data-part="readout" role="status"></p>
    <div class="spectrogram"><canvas data-part="canvas" role="img" aria-label="Wave and spectrogram"></canvas></div>
    <audio data-part="sound" controls preload="auto"></audio>
    <p class="hint">Play it, or point at a token: the frames that it looked at stay light. Bars above the spectrogram are the frames of each label. Click to move the cursor.</p>
  </section>`;

registerView("spectrogram", { markup, open: (root, report, weightsOf) => new SpectrogramView(root, report, weightsOf) });
registerLabels("frames", ({ seconds }, at) => `${(at * seconds).toFixed(2)} s`);
