// The answers of models that read files, by what they can do. A new ability is one more row of ANSWERS.

import { make } from "./dom.js";
import { percent } from "./format.js";

const SHOWN = 5; // classes

const labels = (named) => ({ labels: found }) => [
  make("h3", { className: "answer-name", id: "picture-answer-name", textContent: named }),
  make("ol", { className: "labels", "aria-labelledby": "picture-answer-name" }, ...Object.entries(found).slice(0, SHOWN).map(bar)),
];

/** A name, a bar and a share. */
function bar([label, share]) {
  const filled = make("span", { className: "filled" });
  filled.style.setProperty("--share", share);
  return make("li", {}, make("span", { className: "key", title: label, textContent: label }),
    make("span", { className: "track" }, filled), make("span", { className: "part", textContent: percent(share) }));
}

const ANSWERS = { // ability -> the elements that show its answer
  see: labels("The model takes it for"),
  segment: labels("The picture consists of"),
};

/** Show an answer in an element; null empties it. */
export function showAnswer(root, ability, answer) {
  root.replaceChildren(...(answer === null ? [] : ANSWERS[ability](answer)));
}
