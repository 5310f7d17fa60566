// How the page shows a caption.

import { registerAnswer } from "../../answers.js";
import { make } from "../../dom.js";

const caption = ({ caption: said, score }) => [
  make("h2", { className: "answer-name", textContent: "The model says" }),
  make("p", { className: "caption", textContent: said || "nothing" }),
  make("p", { className: "hint", textContent: `score ${score.toFixed(3)} a word; point at a word to see where it looked` }),
];

registerAnswer("caption", caption);
