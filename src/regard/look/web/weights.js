// The attention weights of one view: how much each query (row) looks at each key (column).

const SQUARES = Float32Array.from({ length: 256 }, (_, q) => (q / 255) ** 2); // weights come as bytes q = round(255 √w)

export function bytesOf(base64) {
  const letters = atob(base64);
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
  return bytes;
}

export class WeightMap {
  constructor(queries, keys) {
    [this.queries, this.keys, this.rows, this.columns] = [queries, keys, queries.length, keys.length];
    this.weights = new Float32Array(this.rows * this.columns);
    this.peaks = new Float32Array(this.rows);
  }

  static of(queries, keys, piece) {
    const map = new WeightMap(queries, keys);
    map.put(0, bytesOf(piece.data));
    return map;
  }

  /** The mean of some heads of a layer, whose `bytes` hold all of them one after another. */
  static ofHeads(queries, keys, bytes, heads) {
    const map = new WeightMap(queries, keys), size = map.weights.length;
    for (const head of heads) for (let cell = 0; cell < size; cell++) map.weights[cell] += SQUARES[bytes[head * size + cell]] / heads.length;
    map.weights.forEach((weight, cell) => {
      const row = Math.floor(cell / map.columns);
      if (weight > map.peaks[row]) map.peaks[row] = weight;
    });
    return map;
  }

  /** Fill in rows that have arrived. */
  put(firstRow, bytes) {
    const start = firstRow * this.columns;
    for (let at = 0; at < bytes.length; at++) {
      const cell = start + at, weight = SQUARES[bytes[at]], row = Math.floor(cell / this.columns);
      this.weights[cell] = weight;
      if (weight > this.peaks[row]) this.peaks[row] = weight;
    }
  }

  /** Take over the weights of another map of the same size. */
  take({ weights, peaks }) {
    Object.assign(this, { weights, peaks });
  }

  at(row, column) {
    return this.weights[row * this.columns + column];
  }

  peak() {
    return this.peaks.reduce((most, each) => Math.max(most, each), 0);
  }

  heaviestKey(row) {
    let best = 0;
    for (let column = 1; column < this.columns; column++) if (this.at(row, column) > this.at(row, best)) best = column;
    return best;
  }
}
