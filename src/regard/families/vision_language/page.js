// How the page shows what a text has to do with an image.

import { labels, registerAnswer } from "../../answers.js";
import { make } from "../../dom.js";
import { percent } from "../../format.js";

/** An answer to a question, the region of a phrase, or how well a text fits, by what the model was trained for. */
function compared({ text, labels: answers, probabilities: regions, score, probability }) {
  if (answers) return labels(text)({ labels: answers });
  if (regions) {
    const named = regions.map((share, number) => [number ? `region ${number}` : "whole image", share]);
    return labels(`“${text}” means`)({ labels: Object.fromEntries(named) });
  }
  const fit = probability == null ? `score ${score.toFixed(2)}; compare it with other texts` : `${percent(probability)} that it belongs to the image`;
  return [make("h2", { className: "answer-name", textContent: `“${text}”` }), make("p", { className: "caption", textContent: fit })];
}

registerAnswer("compare", compared);
