// What a model expects at the places of a text: its tokens shaded by how probable they were, and for the place that is
// pointed at the most probable candidates, beside how likely each is drawn.

import { isAbort, post, wordsOf } from "./api.js";
import { byId, debounce, make, within } from "./dom.js";
import { ordinal, percent, spokenToken } from "./format.js";
import { Pointing } from "./pointing.js";
import { asRow, fillWords, listenToWords, shadeWords } from "./words.js";

const TOP = 12;
const AT_ONCE = 1000; // places asked for at a time
const NEXT = "…"; // stands for the token after the last one

export class Foretold {
  #told = new Map(); // place -> what was foretold there
  #reshape = debounce(120, () => this.#ask(this.place, this.place + 1).then(() => this.#show()).catch((error) => this.#say(error)));
  pointing = new Pointing();

  /** `drawing()` gives temperature and top_p as they are set now; `onPlace(place)` is told which place is shown. */
  constructor(drawing, onPlace) {
    [this.drawing, this.onPlace, this.list] = [drawing, onPlace, byId("foretold-text")];
    listenToWords(this.list, this.pointing, asRow);
    this.pointing.watch(({ row }) => { if (row !== null) this.#choose(row); });
    const step = (id, to) => byId(`foretold-${id}`).addEventListener("click", () => this.#step(to));
    step("first", () => 0);
    step("back", (at) => at - 1);
    step("forward", (at) => at + 1);
    step("last", (at, last) => last);
  }

  /** A text in the making: nothing can be asked about it yet. */
  showStream(prompt, text) {
    this.#title("write");
    byId("foretold").hidden = false;
    byId("foretold").dataset.state = "busy";
    this.list.replaceChildren(make("span", { textContent: prompt }), make("span", { className: "written", textContent: text }));
    byId("odds").replaceChildren();
    byId("foretold-readout").textContent = "";
  }

  hide() {
    byId("foretold").hidden = true;
    this.running?.abort();
  }

  /** Show the tokens of a sight, and ask for all that is foretold about them. */
  async show(sight, asked, ability) {
    this.running?.abort();
    const { signal } = (this.running = new AbortController());
    this.#told.clear();
    [this.asked, this.writes, this.place] = [asked, ability === "write", null];
    byId("foretold").dataset.state = "done";
    byId("foretold").hidden = !sight.places;
    if (!sight.places) return;
    this.#title(ability);
    const tokens = sight.texts[this.writes ? "target" : "source"];
    fillWords(this.list, this.writes ? [...tokens.map(spokenToken), NEXT] : tokens);
    this.tokens = tokens;
    this.list.classList.toggle("running", this.writes);
    try {
      for (let first = 0; first < sight.places; first += AT_ONCE) {
        await this.#ask(first, Math.min(sight.places, first + AT_ONCE), signal);
        this.#shade();
        if (this.place === null) this.#step((at, last, written) => written);
      }
    } catch (error) {
      this.#say(error);
    }
  }

  /** The settings changed: the distribution that is shown takes its new shape, the text stays. */
  reshape() {
    if (this.writes && this.place !== null) this.#reshape();
  }

  #title(ability) {
    const writes = ability === "write";
    byId("foretold-title").textContent = writes ? "What it expected next" : "What it guesses for hidden words";
    byId("odds-keys").hidden = document.querySelector("#foretold .legend").hidden = !writes;
    byId("foretold-hint").textContent = writes
      ? "Each token is shaded by the probability the model gave it; what the model wrote itself is underlined. Point at a token, or step with the arrows."
      : "Choose a hidden word to see what could stand there.";
  }

  async #ask(first, last, signal) {
    const drawing = this.writes ? this.drawing() : {};
    const answer = await post("/api/look", { ...this.asked, foretold: { places: [first, last], top: TOP, ...drawing } }, signal);
    for (const each of answer.foretold) this.#told.set(each.place, each);
  }

  #say(error) {
    if (!isAbort(error)) byId("foretold-readout").textContent = wordsOf(error);
  }

  /** The place at which a token was foretold: the one before it, or of a hidden word its own. */
  #placeOf(index) {
    return this.writes ? index - 1 : index;
  }

  #shade() {
    const at = (index) => this.#told.get(this.#placeOf(index));
    shadeWords(this.list, (index) => at(index)?.came?.probability ?? null, () => 1, this.place === null ? null : this.place + (this.writes ? 1 : 0));
    [...this.list.children].forEach((word, index) => {
      word.classList.toggle("written", Boolean(at(index)?.written));
      word.classList.toggle("hidden-word", !this.writes && Boolean(at(index)));
      delete word.dataset.percent;
    });
  }

  #choose(index) {
    if (!this.#told.has(this.#placeOf(index))) return;
    this.place = this.#placeOf(index);
    this.#show();
    this.onPlace(this.place);
  }

  #step(to) {
    const places = [...this.#told.keys()].sort((a, b) => a - b);
    if (!places.length) return;
    const written = Math.max(0, places.findIndex((place) => this.#told.get(place).written));
    const next = within(to(places.indexOf(this.place), places.length - 1, written), 0, places.length - 1);
    this.pointing.move(asRow(places[next] + (this.writes ? 1 : 0)));
  }

  #show() {
    this.#shade();
    const told = this.#told.get(this.place);
    this.#tell(told);
    const most = Math.max(...told.choices.flatMap((choice) => [choice.probability, choice.drawn ?? 0]), 1e-9);
    const rows = told.rank > told.choices.length ? [...told.choices, told.came] : told.choices;
    const rankOf = (index) => (index < told.choices.length ? index + 1 : told.rank); // tokens may look alike, ranks do not
    byId("odds").replaceChildren(...rows.map((choice, index) => this.#row(choice, rankOf(index), rankOf(index) === told.rank, most)));
  }

  #tell({ came, rank }) {
    const bold = (text) => make("b", { textContent: text, dir: "auto" });
    const before = this.writes ? [" after ", bold(this.tokens[this.place])] : [];
    const parts = came
      ? [bold(came.token), ...before, `: ${rank === 1 ? "the most probable token" : `the ${ordinal(rank)} most probable token`}, ${percent(came.probability)}`]
      : this.writes ? ["Next", ...before, " could come"] : ["In the place of ", bold(this.tokens[this.place])];
    const { temperature, top_p: mass } = this.drawing();
    const how = !this.writes ? [] : temperature === 0 ? [" · always the best is taken"] : [` · drawn at temperature ${temperature.toFixed(2)}${mass < 1 ? `, from the most probable ${percent(mass)}` : ""}`];
    byId("foretold-readout").replaceChildren(...parts, ...how);
  }

  #row(choice, rank, isCame, most) {
    const bar = (name, share) => {
      const made = make("span", { className: name });
      made.style.setProperty("--share", (share / most).toFixed(4));
      return made;
    };
    const drawn = choice.drawn === null ? [] : [bar("drawn", choice.drawn)];
    const share = choice.drawn === null ? "" : choice.drawn === 0 ? "never drawn" : `drawn ${percent(choice.drawn)}`;
    return make("li", { data: isCame ? { came: "yes" } : {} },
      make("span", { className: "rank", textContent: rank }),
      make("span", { className: "token", textContent: choice.token, title: choice.token, dir: "auto" }),
      make("span", { className: "odds-track", "aria-hidden": "true" }, bar("own", choice.probability), ...drawn),
      make("span", { className: "share", textContent: percent(choice.probability) }),
      make("span", { className: "drawn-share", textContent: share }),
      make("span", { className: "came", textContent: isCame ? "★ came" : "" }));
  }
}
