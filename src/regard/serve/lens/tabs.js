// The tabs that families bring. Their scripts run before main.js, which finds the tabs on the page.

import { byId, make } from "./dom.js";

const refreshes = new Map(); // name of a tab -> what to do when it is opened

/**
 * A tab for models that read one kind of input, `reads`; the ids of its elements begin with its name. `markup` is the
 * content of its panel, and `refresh(values)` is called when it is opened, with the values of the address.
 */
export function registerTab(name, { title, reads, markup, refresh = () => {} }) {
  byId("tab-workbench").before(make("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`, textContent: title, data: { tab: name, reads } }));
  const panel = make("section", { role: "tabpanel", id: `panel-${name}`, "aria-labelledby": `tab-${name}`, tabIndex: -1, hidden: true });
  panel.innerHTML = markup; // constant markup of the tab
  byId("panel-workbench").before(panel);
  refreshes.set(name, refresh);
}

export const refreshOf = (name) => refreshes.get(name);
