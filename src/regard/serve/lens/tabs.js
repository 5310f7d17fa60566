// The parts of the page, of which one is open: links in the head of the page, those to kinds of models behind one menu.
// Families bring more of them. Their scripts run before main.js, which finds the tabs on the page.

import { byId, make } from "./dom.js";

const refreshes = new Map(); // name of a tab -> what to do when it is opened

/**
 * A tab for models that read one kind of input, `reads`; the ids of its elements begin with its name. `markup` is the
 * content of its panel, and `refresh(values)` is called when it is opened, with the values of the address.
 */
export function registerTab(name, { title, reads, markup, refresh = () => {} }) {
  byId("tab-compare").before(make("a", { id: `tab-${name}`, href: `#${name}`, textContent: title, data: { reads } }));
  const panel = make("section", { className: "panel", id: `panel-${name}`, "aria-labelledby": `tab-${name}`, hidden: true });
  panel.innerHTML = markup; // constant markup of the tab
  byId("panel-workbench").before(panel);
  refreshes.set(name, refresh);
}

export const refreshOf = (name) => refreshes.get(name);

export const tabs = () => [...document.querySelectorAll(".tabs a")];
export const nameOf = (tab) => tab.hash.slice(1);

/** Mark the tab that is open, and show its panel alone; unless it is not ready. */
export function openTab(name, isReady) {
  const menu = byId("kinds-menu");
  for (const tab of tabs()) {
    const isChosen = nameOf(tab) === name;
    if (isChosen) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
    byId(`panel-${nameOf(tab)}`).hidden = !isChosen || !isReady;
  }
  const chosen = menu.querySelector("[aria-current]");
  byId("kinds-button").classList.toggle("holds-chosen", chosen !== null);
  byId("kinds-chosen").textContent = chosen ? `: ${chosen.textContent}` : "";
  menu.hidePopover();
}

/** The menu opens below its button; arrow keys go through it. */
export function startMenu() {
  const menu = byId("kinds-menu"), button = byId("kinds-button");
  menu.addEventListener("beforetoggle", ({ newState }) => {
    if (newState !== "open") return;
    const { left, bottom } = button.getBoundingClientRect();
    Object.assign(menu.style, { left: `${left + scrollX}px`, top: `${bottom + scrollY + 6}px` });
  });
  menu.addEventListener("toggle", ({ newState }) => { if (newState === "open") offered(menu)[0].focus(); });
  menu.addEventListener("click", () => menu.hidePopover()); // also of the one that is open already
  menu.addEventListener("keydown", (event) => {
    const links = offered(menu), at = links.indexOf(document.activeElement);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: links.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    links[(next + links.length) % links.length].focus();
  });
}

const offered = (menu) => [...menu.querySelectorAll("a:not([hidden])")];
