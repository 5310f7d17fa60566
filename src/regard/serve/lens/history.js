// The history of translations. It is kept in this browser alone: the server is never told of it.

import { byId, debounce, make } from "./dom.js";
import { languageName } from "./format.js";

const KEPT = "regard-history";
const MOST = 50; // entries
const SETTLED = 2000; // milliseconds without a change, after which a translation is kept

let restore;

/** What is kept; nothing where the browser keeps nothing. */
function entries() {
  try {
    return JSON.parse(localStorage.getItem(KEPT)) ?? [];
  } catch {
    return [];
  }
}

function keep(all) {
  try {
    localStorage.setItem(KEPT, JSON.stringify(all));
  } catch {
    // a browser that keeps nothing has no history
  }
  show();
}

/** `onChoose(entry)` shows a translation again: { text, said, from, to }. */
export function startHistory(onChoose) {
  restore = onChoose;
  byId("history-forget").addEventListener("click", () => { note.cancel(); keep([]); });
  show();
}

/** A translation is shown: keep it if it stays. What it was typed on from is not kept beside it. */
export const note = debounce(SETTLED, (entry) => {
  const [newest, ...older] = entries();
  const isTypedOn = newest && newest.to === entry.to && entry.text.startsWith(newest.text);
  const others = (newest && !isTypedOn ? [newest, ...older] : older).filter(({ text, to }) => text !== entry.text || to !== entry.to);
  keep([entry, ...others].slice(0, MOST));
});

function show() {
  const all = entries();
  byId("translate-history").hidden = !all.length;
  byId("history-list").replaceChildren(...all.map((entry) => {
    const button = make("button", { type: "button" },
      make("span", { className: "hint", textContent: `${languageName(entry.from)} → ${languageName(entry.to)}` }),
      make("span", { textContent: entry.text, lang: entry.from, dir: "auto" }),
      make("span", { className: "said", textContent: entry.said, lang: entry.to, dir: "auto" }));
    button.addEventListener("click", () => restore(entry));
    return make("li", {}, button);
  }));
}
