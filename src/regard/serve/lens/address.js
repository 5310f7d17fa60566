// The fragment of the address names the tab and holds what the tab shows, so that a link to it can be shared.
// Browsers do not send it: the server sees neither the link's text nor its languages.

export function readAddress() {
  const [tab, query = ""] = location.hash.slice(1).split("?");
  return { tab, values: Object.fromEntries(new URLSearchParams(query)) };
}

/** Put what a tab shows into the address, if the tab is the one that is open; empty values are left out. */
export function writeAddress(tab, values) {
  if ((readAddress().tab || "translate") !== tab) return;
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value));
  history.replaceState(null, "", `#${tab}${query.size ? `?${query}` : ""}`);
}
