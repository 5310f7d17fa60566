// What a model predicts at the places of a text, on the Look tab: asked for in pieces, and shaped by the settings that
// tokens are drawn with.

import { isAbort, post, wordsOf } from "./api.js";
import { byId, debounce, make } from "./dom.js";
import { ordinal, percent } from "./format.js";
import { PredictionView } from "./look/predictions.js";

const TOP = 12;
const AT_ONCE = 1000; // places asked for at a time

export class Predictions {
  #reshape = debounce(120, async () => {
    this.reshaping?.abort();
    const { signal } = (this.reshaping = new AbortController());
    try {
      this.view.replace(await this.#fetch(this.view.place, this.view.place + 1, signal));
    } catch (error) {
      this.#say(error);
    }
  });

  /** `sampling()` gives temperature and top_p as they are set now; `onPlace(place)` is told which place is shown. */
  constructor(sampling, onPlace) {
    this.sampling = sampling;
    const part = (name) => byId(`predictions-${name}`);
    const parts = { title: part("title"), hint: part("hint"), tokens: part("text"), readout: part("readout"), candidates: byId("odds") };
    this.view = new PredictionView(parts, { describe: (prediction) => this.#describe(prediction), how: "Point at a token, or step with the arrows.", onPlace });
    const step = (name, to) => part(name).addEventListener("click", () => this.view.step(to));
    step("first", () => 0);
    step("back", (at) => at - 1);
    step("forward", (at) => at + 1);
    step("last", (at, last) => last);
  }

  /** A text that is still being written: nothing can be asked about it yet. */
  showStream(prompt, text) {
    this.#explain(true);
    byId("predictions").hidden = false;
    byId("predictions").dataset.state = "busy";
    this.view.parts.tokens.replaceChildren(make("span", { textContent: prompt }), make("span", { className: "written", textContent: text }));
    this.view.parts.candidates.replaceChildren();
    this.view.parts.readout.textContent = "";
  }

  hide() {
    byId("predictions").hidden = true;
    this.running?.abort();
  }

  /** Show the tokens of a report, and ask for all predictions about them. */
  async show(report, asked, ability) {
    this.running?.abort();
    const { signal } = (this.running = new AbortController()), generates = ability === "write";
    Object.assign(this, { asked, generates });
    byId("predictions").dataset.state = "done";
    byId("predictions").hidden = !report.places;
    if (!report.places) return;
    this.#explain(generates);
    this.view.show(report.texts[generates ? "target" : "source"], generates);
    try {
      for (let first = 0; first < report.places; first += AT_ONCE) {
        this.view.add(await this.#fetch(first, Math.min(report.places, first + AT_ONCE), signal));
      }
    } catch (error) {
      this.#say(error);
    }
  }

  /** The settings changed: the distribution that is shown takes its new shape, the text stays. */
  reshape() {
    if (this.generates && this.view.place !== null) this.#reshape();
  }

  #explain(generates) {
    this.view.explain(generates);
    byId("odds-keys").hidden = document.querySelector("#predictions .legend").hidden = !generates;
  }

  async #fetch(first, last, signal) {
    const sampling = this.generates ? this.sampling() : {};
    const answer = await post("/api/look", { ...this.asked, predictions: { places: [first, last], top: TOP, ...sampling } }, signal);
    return answer.predictions;
  }

  #say(error) {
    if (!isAbort(error)) this.view.parts.readout.textContent = wordsOf(error);
  }

  #describe({ came, rank, place }) {
    const bold = (text) => make("b", { textContent: text, dir: "auto" }), token = this.view.tokens[place];
    const before = this.generates ? [" after ", bold(token)] : [];
    const parts = came
      ? [bold(came.token), ...before, `: ${rank === 1 ? "the most probable token" : `the ${ordinal(rank)} most probable token`}, ${percent(came.probability)}`]
      : this.generates ? ["Next", ...before, " could come"] : ["In the place of ", bold(token)];
    const { temperature, top_p: mass } = this.sampling();
    const how = !this.generates ? [] : temperature === 0 ? [" · always the best is taken"] : [` · drawn at temperature ${temperature.toFixed(2)}${mass < 1 ? `, from the most probable ${percent(mass)}` : ""}`];
    return [...parts, ...how];
  }
}
