// The answers of models that read files, by what they can do. A new ability is one more row of ANSWERS.

import { make } from "./dom.js";
import { percent } from "./format.js";
import { drawBoxes } from "./look/axes/boxes.js";

const SHOWN = 5, SHOWN_OBJECTS = 12; // classes, objects
const ANSWER_SIDE = 400; // pixels of an image with boxes

// A JavaScript object has labels that are numbers first, whatever their order in the answer; so they are sorted here.
const bestFirst = (found) => Object.entries(found).sort(([, one], [, other]) => other - one);
const labels = (named) => ({ labels: found }) => [
  make("h3", { className: "answer-name", id: "picture-answer-name", textContent: named }),
  make("ol", { className: "labels", "aria-labelledby": "picture-answer-name" }, ...bestFirst(found).slice(0, SHOWN).map(bar)),
];

/** A name, a bar and a share. */
function bar([label, share]) {
  const filled = make("span", { className: "filled" });
  filled.style.setProperty("--share", share);
  return make("li", {}, make("span", { className: "key", title: label, textContent: label }),
    make("span", { className: "track" }, filled), make("span", { className: "part", textContent: percent(share) }));
}

/** The image with the boxes of its objects, and a list of them. */
function objects({ objects: found, image: source }) {
  const canvas = make("canvas", { className: "picture", role: "img", "aria-labelledby": "picture-answer-name" }), image = new Image();
  const [boxes, names] = [found.map(({ box }) => box), found.map(({ label }) => label)];
  image.addEventListener("load", () => drawBoxes(canvas, image, boxes, names, { side: ANSWER_SIDE }));
  image.src = source;
  const title = found.length ? `${found.length} ${found.length === 1 ? "object" : "objects"} found` : "No object found";
  return [
    make("h3", { className: "answer-name", id: "picture-answer-name", textContent: title }), canvas,
    make("ol", { className: "labels", "aria-labelledby": "picture-answer-name" }, ...found.slice(0, SHOWN_OBJECTS).map(({ label, score }) => bar([label, score]))),
  ];
}
const caption = ({ caption: said, score }) => [
  make("h3", { className: "answer-name", textContent: "The model says" }),
  make("p", { className: "caption", textContent: said || "nothing" }),
  make("p", { className: "hint", textContent: `score ${score.toFixed(3)} a word; point at a word to see where it looked` }),
];

/** An answer to a question, the region of a phrase, or how well a text fits, by what the model was trained for. */
function compared({ text, labels: answers, probabilities: regions, score, probability }) {
  if (answers) return labels(text)({ labels: answers });
  if (regions) {
    const named = regions.map((share, number) => [number ? `region ${number}` : "whole image", share]);
    return labels(`“${text}” means`)({ labels: Object.fromEntries(named) });
  }
  const fit = probability == null ? `score ${score.toFixed(2)}; compare it with other texts` : `${percent(probability)} that it belongs to the image`;
  return [make("h3", { className: "answer-name", textContent: `“${text}”` }), make("p", { className: "caption", textContent: fit })];
}

const heard = ({ text, words, seconds }) => [
  make("h3", { className: "answer-name", textContent: "The model hears" }),
  make("p", { className: "caption", textContent: text || "nothing" }),
  make("p", { className: "hint", textContent: `${seconds.toFixed(1)} s${words.length ? `; ${words.length} words with their times: play it below` : ""}` }),
];
/** How sure a model is of a structure, and what was changed in the sequence. */
function folded({ name, confidence, told }) {
  const mean = confidence.reduce((sum, each) => sum + each, 0) / confidence.length;
  return [
    make("h3", { className: "answer-name", textContent: `${name}: ${confidence.length} residues` }),
    make("p", { className: "caption", textContent: `confidence ${mean.toFixed(0)} of 100, its own estimate; no claim of folding` }),
    ...told.map((each) => make("p", { className: "hint", textContent: each })),
  ];
}

/** Whether two proteins bind, and their residues, darker where the model weighs them more. */
function bound({ probability, proteins, told }) {
  return [
    make("h3", { className: "answer-name", textContent: `${percent(probability)} that the two bind` }),
    ...proteins.flatMap(weighed),
    make("p", { className: "hint", textContent: "Darker residues weigh more in the comparison of the two." }),
    ...told.map((each) => make("p", { className: "hint", textContent: each })),
  ];
}

/** A name, and a sequence whose residues have a background by their weight. */
function weighed({ name, sequence, weights }) {
  const most = Math.max(...weights), residues = [...sequence].map((letter, place) => {
    const residue = make("span", { textContent: letter, title: `${letter}${place + 1}: ${percent(weights[place])}` });
    residue.style.setProperty("--share", (weights[place] / most).toFixed(3));
    return residue;
  });
  return [make("h4", { className: "answer-name", textContent: `${name}, ${sequence.length} residues` }), make("p", { className: "residues" }, ...residues)];
}

const ANSWERS = { // ability -> the elements that show its answer
  see: labels("The model takes it for"),
  segment: labels("The image consists of"),
  detect: objects,
  caption,
  compare: compared,
  transcribe: heard,
  fold: folded,
  interact: bound,
};

/** Show an answer in an element; null empties it. With `whole`, what was answered with all heads stands beside it. */
export function showAnswer(root, ability, answer, whole = null) {
  const shown = answer === null ? [] : ANSWERS[ability](answer);
  if (answer === null || whole === null) { root.replaceChildren(...shown); return; }
  const side = (name, part, elements) => make("div", { data: { part } }, make("p", { className: "hint", textContent: name }), ...elements);
  root.replaceChildren(make("div", { className: "answers-beside" },
    side("Without the heads that are off", "changed", shown), side("With all heads", "whole", ANSWERS[ability](whole))));
}
