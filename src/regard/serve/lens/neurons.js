// The neuron view of the Look tab: fetched when a query and a key are pointed at together.

import { isAbort, post } from "./api.js";
import { debounce } from "./dom.js";
import { showNeurons } from "./look/neuron_view.js";

export class Neurons {
  #point = debounce(200, (row, column) => this.#fetch(row, column));

  constructor(place) {
    this.place = place;
  }

  /** Another head is shown; `asked` is the input it looks at. */
  choose(panel, head, map, asked) {
    Object.assign(this, { panel, head, map, asked });
    this.#point.cancel();
    this.place.hidden = true;
  }

  point(row, column) {
    if (row === null || column === null || this.panel.kind === "alignment") return;
    this.#point(row, column);
  }

  async #fetch(row, column) {
    const { panel, head, asked, map } = this;
    this.running?.abort();
    const { signal } = (this.running = new AbortController());
    try {
      const found = await post("/api/look/neurons", { ...asked, layer: panel.name, head, query: row, key: column }, signal);
      if (map !== this.map) return; // another head was chosen meanwhile
      showNeurons(this.place, found, [map.queries[row], map.keys[column]]);
    } catch (error) {
      if (!isAbort(error)) this.place.hidden = true;
    }
  }
}
