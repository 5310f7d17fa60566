// How the page shows the objects of an image.

import { bar, registerAnswer } from "../../answers.js";
import { make } from "../../dom.js";
import { drawBoxes } from "./boxes.js";

const SHOWN = 12; // objects
const ANSWER_SIDE = 400; // pixels of an image with boxes

/** The image with the boxes of its objects, and a list of them. */
function objects({ objects: found, image: source }) {
  const canvas = make("canvas", { className: "picture", role: "img", "aria-labelledby": "picture-answer-name" }), image = new Image();
  const [boxes, names] = [found.map(({ box }) => box), found.map(({ label }) => label)];
  image.addEventListener("load", () => drawBoxes(canvas, image, boxes, names, { side: ANSWER_SIDE }));
  image.src = source;
  const title = found.length ? `${found.length} ${found.length === 1 ? "object" : "objects"} found` : "No object found";
  return [
    make("h2", { className: "answer-name", id: "picture-answer-name", textContent: title }), canvas,
    make("ol", { className: "labels", "aria-labelledby": "picture-answer-name" }, ...found.slice(0, SHOWN).map(({ label, score }) => bar([label, score]))),
  ];
}

registerAnswer("detect", objects);
