// What the reader points at: a query (row), a key (column), both or nothing; shared by all views of one map.

export const NOTHING = Object.freeze({ row: null, column: null });
const same = (a, b) => a.row === b.row && a.column === b.column;

export class Pointing {
  #watchers = [];
  place = NOTHING;
  held = false;

  watch(action) {
    this.#watchers.push(action);
  }

  /** Point in passing: does nothing while something is held. */
  look(place) {
    if (!this.held && !same(place, this.place)) this.move(place);
  }

  /** Hold a place, or let go of the one that is held. */
  hold(place) {
    const again = this.held && same(place, this.place);
    this.move(place);
    this.held = !again;
  }

  move(place) {
    this.held = false;
    this.place = place;
    this.#watchers.forEach((action) => action(place));
  }

  release() {
    this.move(NOTHING);
  }
}

/** The share of the pointed query's attention that falls on a key; null when no query is pointed at. */
export const shareOfKey = (map, { row }, column) => (row === null ? null : map.at(row, column));
/** The share a query gives to the pointed key; null unless a key alone is pointed at. */
export const shareOfQuery = (map, place, row) => (place.row !== null || place.column === null ? null : map.at(row, place.column));
