// What the model expected: the next token at every place, or the hidden words. `sight.foretold` is empty for the others.

const foretells = new Map(sight.foretold.map((each) => [each.place, each]));
const writes = sight.foretold.some((each) => each.came !== null || each.choices[0].drawn !== null);

let shownPlace = null;
const spoken = (token) => token.replaceAll("▁", " ").replaceAll("⏎", "\n").replaceAll("⇥", "\t");

function buildForetold() {
  byId("foretold").hidden = !foretells.size;
  if (!foretells.size) return;
  byId("foretold-name").textContent = writes ? "What it expected next" : "What it guesses for hidden words";
  byId("foretold-hint").textContent = writes
    ? "Each token is shaded by the probability the model gave it; what the model wrote itself is underlined. Point at one, or use the arrow keys."
    : "Choose a hidden word to see what could stand there.";
  const { tokens } = sight, list = byId("foretold-text");
  list.classList.toggle("apart", !writes);
  list.replaceChildren(...(writes ? [...tokens.map(spoken), "…"] : tokens).map((token, index) => foretoldWord(token, index)));
  list.addEventListener("keydown", moveAmongForetold);
  showForetold((sight.foretold.find((each) => each.written) ?? sight.foretold[0]).place);
}

function foretoldWord(token, index) {
  const told = foretells.get(writes ? index - 1 : index);
  const word = make("span", { textContent: token, title: token });
  if (!told) return word;
  word.className = told.written ? "foretold written" : "foretold";
  word.dataset.place = told.place;
  word.tabIndex = -1;
  for (const event of ["pointerenter", "focus", "click"]) word.addEventListener(event, () => showForetold(told.place));
  return word;
}

function moveAmongForetold(event) {
  const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  const words = [...byId("foretold-text").querySelectorAll(".foretold")];
  const next = words[words.indexOf(event.target) + by];
  if (!next) return;
  event.preventDefault();
  next.focus();
}

function showForetold(place) {
  shownPlace = place;
  const { choices, came, rank } = foretells.get(place);
  for (const word of byId("foretold-text").querySelectorAll(".foretold")) {
    const told = foretells.get(Number(word.dataset.place)), share = told.came?.probability ?? 0;
    word.classList.toggle("on", told.place === place);
    word.tabIndex = told.place === place ? 0 : -1;
    [word.style.backgroundColor, word.style.color] = share < 0.01 ? ["", ""] : [colour(share), inkOn(share)];
  }
  byId("foretold-readout").textContent = came ? `“${came.token}” came: number ${rank} of the candidates, with ${percent(came.probability)}` : "";
  const most = Math.max(...choices.flatMap((each) => [each.probability, each.drawn ?? 0]), 1e-9);
  const listed = rank > choices.length ? [...choices, came] : choices;
  const rankOf = (index) => (index < choices.length ? index + 1 : rank); // tokens may look alike, ranks do not
  byId("odds").replaceChildren(...listed.map((each, index) => oddsRow(each, rankOf(index), rankOf(index) === rank, most)));
}

function oddsRow({ token, probability, drawn }, rank, isCame, most) {
  const bar = (share) => { const made = make("span"); made.style.setProperty("--share", (share / most).toFixed(4)); return made; };
  const how = drawn === null ? "" : drawn === 0 ? "never drawn" : `drawn ${percent(drawn)}`;
  return make("li", { className: isCame ? "came" : "" },
    make("span", { className: "muted", textContent: rank }), make("b", { textContent: token, dir: "auto" }),
    make("i", { ariaHidden: "true" }, bar(probability), ...(drawn === null ? [] : [bar(drawn)])),
    make("span", { textContent: percent(probability) }), make("span", { className: "muted", textContent: how }));
}
