// How the page shows whether two proteins bind.

import { registerAnswer } from "../../answers.js";
import { make } from "../../dom.js";
import { percent } from "../../format.js";

/** Whether two proteins bind, and their residues, darker where the model weighs them more. */
function bound({ probability, proteins, told }) {
  return [
    make("h2", { className: "answer-name", textContent: `${percent(probability)} that the two bind` }),
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
  return [make("h3", { className: "answer-name", textContent: `${name}, ${sequence.length} residues` }), make("p", { className: "residues" }, ...residues)];
}

registerAnswer("interact", bound);
