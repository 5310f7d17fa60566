// Making and finding elements. Text from anywhere only ever becomes a text node.

export const byId = (id) => document.getElementById(id);

/** An element; names with a dash and `role` become attributes, `data` its data attributes, everything else properties. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "data") Object.assign(element.dataset, value);
    else if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

/** The elements inside `root` by the names in their `data-part` attributes. */
export function partsOf(root) {
  return Object.fromEntries([...root.querySelectorAll("[data-part]")].map((element) => [element.dataset.part, element]));
}

/**
 * Tell whoever shows a view what it shows: the number of a panel, a head (-1: the mean of all), and the query and the key
 * that are pointed at, null if none are.
 */
export function announce(root, { panel, head, query = null, key = null }) {
  root.dispatchEvent(new CustomEvent("look", { detail: { panel, head, query, key } }));
}

export const calm = matchMedia("(prefers-reduced-motion: reduce)");
export const within = (value, low, high) => Math.max(low, Math.min(high, value));

/** Call back when an element gets another width. */
export function onWidth(element, action) {
  let width = element.clientWidth;
  new ResizeObserver(() => {
    if (element.clientWidth === width) return;
    width = element.clientWidth;
    if (width) action();
  }).observe(element);
}

/**
 * After a key was pressed, a pointer points only once it has moved: moving the focus scrolls the page, and whatever
 * comes to lie under a resting pointer would replace what the key chose.
 */
function keepChoicesOfKeys() {
  let moved = true, last = null; // the last place of the pointer in the window
  addEventListener("keydown", () => { moved = false; }, true);
  addEventListener("pointerdown", () => { moved = true; }, true);
  const filter = (event) => {
    const place = `${event.clientX} ${event.clientY}`;
    if (place !== last) moved = true;
    last = place;
    if (!moved) event.stopImmediatePropagation();
  };
  for (const kind of ["pointerover", "pointerenter", "pointermove", "pointerout", "pointerleave"]) addEventListener(kind, filter, true);
}

keepChoicesOfKeys();
