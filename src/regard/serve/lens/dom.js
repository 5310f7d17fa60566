// What the page of the server needs beyond the shared parts: drawings, notices, menus, dropped files and the clipboard.

import { make } from "./look/dom.js";

export * from "./look/dom.js";

export function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Words in a place that is hidden while it has none. */
export function say(place, words) {
  place.textContent = words;
  place.hidden = !words;
}

export function debounce(milliseconds, action) {
  let timer = 0;
  const later = (...values) => { clearTimeout(timer); timer = setTimeout(() => action(...values), milliseconds); };
  later.cancel = () => clearTimeout(timer);
  return later;
}

/** Fill a select, keeping what was chosen where it is still offered. */
export function fillSelect(select, options, chosen) {
  select.replaceChildren(...options.map(([value, label]) => make("option", { value, textContent: label })));
  if (options.some(([value]) => value === chosen)) select.value = chosen;
}

/** Take files that are dropped on an element, which shows that it would. */
export function onDrop(element, take) {
  for (const kind of ["dragenter", "dragover"]) element.addEventListener(kind, (event) => { event.preventDefault(); element.classList.add("over"); });
  for (const kind of ["dragleave", "drop"]) element.addEventListener(kind, () => element.classList.remove("over"));
  element.addEventListener("drop", (event) => { event.preventDefault(); take([...event.dataTransfer.files]); });
}

/** Put a text on the clipboard; a page that came without TLS from another machine may only do it by a marked field. */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = make("textarea", { value: text });
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  if (!done) throw new Error("the browser does not copy");
}

/** A button that copies `textOf()` and says so for a moment. */
export function copyButton(button, textOf) {
  const words = button.textContent;
  button.addEventListener("click", async () => {
    button.textContent = await copyText(textOf()).then(() => "Copied", () => "Could not copy");
    setTimeout(() => { button.textContent = words; }, 1600);
  });
}
