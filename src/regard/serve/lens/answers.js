// The answers of models that read files, by what they can do. The script of a family registers how its answers are shown.

import { make } from "./dom.js";
import { percent } from "./format.js";

const SHOWN = 5; // classes
const answers = new Map(); // ability -> the elements that show its answer

/** `elementsOf(answer)` are the elements that show an answer of models with an ability. */
export function registerAnswer(ability, elementsOf) {
  answers.set(ability, elementsOf);
}

// A JavaScript object has labels that are numbers first, whatever their order in the answer; so they are sorted here.
const bestFirst = (found) => Object.entries(found).sort(([, one], [, other]) => other - one);
/** A title, and bars of classes with their shares. */
export const labels = (named) => ({ labels: found }) => [
  make("h2", { className: "answer-name", id: "picture-answer-name", textContent: named }),
  make("ol", { className: "labels", "aria-labelledby": "picture-answer-name" }, ...bestFirst(found).slice(0, SHOWN).map(bar)),
];

/** A name, a bar and a share. */
export function bar([label, share]) {
  const filled = make("span", { className: "filled" });
  filled.style.setProperty("--share", share);
  return make("li", {}, make("span", { className: "key", title: label, textContent: label }),
    make("span", { className: "track" }, filled), make("span", { className: "part", textContent: percent(share) }));
}

/** Show an answer in an element; null empties it. With `whole`, what was answered with all heads stands beside it. */
export function showAnswer(root, ability, answer, whole = null) {
  const shown = answer === null ? [] : elementsOf(ability, answer);
  if (answer === null || whole === null) { root.replaceChildren(...shown); return; }
  const side = (name, part, elements) => make("div", { data: { part } }, make("p", { className: "hint", textContent: name }), ...elements);
  root.replaceChildren(make("div", { className: "answers-beside" },
    side("Without the heads that are off", "changed", shown), side("With all heads", "whole", elementsOf(ability, whole))));
}

const elementsOf = (ability, answer) => answers.get(ability)?.(answer) ?? [];
