// Lists of words that can be pointed at. Each list is one stop of the Tab key; the arrows move inside it.

import { colour, inkOn } from "./colours.js";
import { make } from "./dom.js";
import { percent } from "./format.js";
import { shareOfKey, shareOfQuery } from "./pointing.js";

/** Make the words of a list point; `placeOf(index)` says at what. */
export function listenToWords(list, pointing, placeOf) {
  const withIndex = (action) => (event) => {
    const index = event.target.dataset?.index;
    if (index !== undefined) action(placeOf(Number(index)), event);
  };
  list.addEventListener("pointerover", withIndex((place, event) => { if (event.pointerType !== "touch") pointing.look(place); }));
  list.addEventListener("focusin", withIndex((place) => pointing.look(place)));
  list.addEventListener("click", withIndex((place) => pointing.hold(place)));
  list.addEventListener("keydown", (event) => moveAmongWords(event, pointing));
}

export const asRow = (row) => ({ row, column: null });
export const asColumn = (column) => ({ row: null, column });

/** Words, of which those at the places `unknown` are marked as ones that the model does not know. */
export function fillWords(list, words, unknown = []) {
  list.replaceChildren(...words.map((word, index) => wordElement(word, index, unknown.includes(index))));
}

/** The words of a text, with all that stands between them in it: spaces and line breaks. */
export function fillText(list, words, text) {
  const parts = [];
  let at = 0;
  words.forEach((word, index) => {
    const found = text.indexOf(word, at);
    if (found < 0) return;
    parts.push(text.slice(at, found), wordElement(word, index));
    at = found + word.length;
  });
  list.replaceChildren(...parts, text.slice(at));
}

function wordElement(word, index, isUnknown = false) {
  const title = isUnknown ? `${word}: the model does not know this word` : word;
  return make("span", { textContent: word, title, className: isUnknown ? "unknown" : "", dir: "auto", tabIndex: index ? -1 : 0, data: { index } });
}

function moveAmongWords(event, pointing) {
  const word = event.target;
  if (word.dataset.index === undefined) return;
  if (event.key === "Enter" || event.key === " ") { event.preventDefault(); word.click(); return; }
  const next = {
    ArrowRight: word.nextElementSibling, ArrowDown: word.nextElementSibling,
    ArrowLeft: word.previousElementSibling, ArrowUp: word.previousElementSibling,
    Home: word.parentElement.firstElementChild, End: word.parentElement.lastElementChild,
  }[event.key];
  if (!next) return;
  event.preventDefault();
  pointing.held = false;
  [word.tabIndex, next.tabIndex] = [-1, 0];
  next.focus();
}

/** Shade each word by its share (null: none), and mark the one pointed at. Of a thousand words only few change. */
export function shadeWords(list, shareOf, gainOf, pointedAt) {
  [...list.children].forEach((word, index) => {
    const share = shareOf(index);
    const visible = share === null ? 0 : Math.min(1, share * gainOf(index));
    const shades = visible < 0.01 ? ["", ""] : [colour(visible), inkOn(visible)];
    const look = [index === pointedAt, ...shades, share !== null && share >= 0.02 ? percent(share) : ""];
    if (String(word.look ?? [false, "", "", ""]) === String(look)) return;
    word.look = look;
    word.classList.toggle("on", look[0]);
    [word.style.backgroundColor, word.style.color, word.dataset.percent] = look.slice(1);
  });
}

/** Say in words what is pointed at. */
export function tell(line, map, { row, column }) {
  const bold = (text) => make("b", { textContent: text, dir: "auto" });
  if (row !== null && column !== null) {
    line.replaceChildren(bold(map.queries[row]), " looks at ", bold(map.keys[column]), ` with ${percent(map.at(row, column))} of its attention`);
  } else if (row !== null) {
    line.replaceChildren(bold(map.queries[row]), " looks at ", ...heaviest(map.keys, (index) => map.at(row, index), bold));
  } else if (column !== null) {
    const lookers = heaviest(map.queries, (index) => map.at(index, column), bold);
    line.replaceChildren(bold(map.keys[column]), ...(lookers.length ? [" is looked at by ", ...lookers] : [" is looked at by no word"]));
  } else line.replaceChildren();
}

function heaviest(words, weightOf, bold) {
  const order = words.map((_, index) => index).sort((a, b) => weightOf(b) - weightOf(a)).slice(0, 3).filter((index) => weightOf(index) >= 0.01);
  return order.flatMap((index, place) => [place ? ", " : "", bold(words[index]), ` ${percent(weightOf(index))}`]);
}

/** The keys and the queries of a map as two lists of words, shaded by what is pointed at. */
export class WordPair {
  constructor(keys, queries, pointing) {
    [this.keys, this.queries, this.pointing, this.map] = [keys, queries, pointing, null];
    listenToWords(keys, pointing, asColumn);
    listenToWords(queries, pointing, asRow);
    pointing.watch(() => this.update());
  }

  show(map, relative = false) {
    const isNew = map !== this.map;
    [this.map, this.relative] = [map, relative];
    if (isNew) {
      fillWords(this.keys, map.keys);
      fillWords(this.queries, map.queries);
    }
    this.update();
  }

  /** By how much the weights of a row are raised, so that its largest one gets the full colour. */
  gain(row) {
    return this.relative ? 1 / (this.map.peaks[row] || 1) : 1;
  }

  update() {
    if (!this.map) return;
    const place = this.pointing.place;
    shadeWords(this.keys, (column) => shareOfKey(this.map, place, column), () => (place.row === null ? 1 : this.gain(place.row)), place.column);
    shadeWords(this.queries, (row) => shareOfQuery(this.map, place, row), (row) => this.gain(row), place.row);
  }
}
