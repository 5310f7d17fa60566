// The neurons of an offline page: queries and keys of every head as 16-bit integers, of which one pair is taken out.

/** The vectors of a query and a key, as `showNeurons` takes them; null if the two do not meet, as in different windows. */
export function neuronsAt({ shapes, units, scale, additive, cells, groups }, bytes, head, query, key) {
  const numbers = new Int16Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 2);
  const [[, heads, queries, width], [, shared, keys]] = shapes, place = placeOf(cells, query, key);
  if (!place) return null;
  const [window, row, column] = place, starts = startsOf(shapes);
  const own = groups && groups[0][row] === groups[1][column] ? 2 : 0, added = groups ? 4 : 2; // where vectors of own pairs, and the bias, are
  const vector = (array, from) => Array.from(numbers.subarray(starts[array] + from, starts[array] + from + width), (each) => each * units[array]);
  const one = vector(own, ((window * heads + head) * queries + row) * width);
  const other = vector(own + 1, ((window * shared + Math.floor((head * shared) / heads)) * keys + column) * width);
  const parts = one.map((value, at) => (additive ? additive[at] * Math.tanh(value + other[at]) : value * other[at]));
  const bias = shapes.length > added ? numbers[starts[added] + broadcastAt(shapes[added], [window, head, row, column])] * units[added] : 0;
  return { query: one, key: other, parts, scale, bias, score: parts.reduce((sum, part) => sum + part, 0) * scale + bias };
}

/** Where each array begins. */
function startsOf(shapes) {
  let start = 0;
  return shapes.map((shape) => { const first = start; start += shape.reduce((size, side) => size * side, 1); return first; });
}

/** The place of an entry in an array whose sides of 1 stand for any length. */
const broadcastAt = (shape, place) => shape.reduce((at, side, axis) => at * side + (side === 1 ? 0 : place[axis]), 0);

/** The window, the query and the key in it. */
function placeOf(cells, query, key) {
  if (!cells) return [0, query, key];
  for (let window = 0; window < cells[0].length; window++) {
    const [row, column] = [cells[0][window].indexOf(query), cells[1][window].indexOf(key)];
    if (row >= 0 && column >= 0) return [window, row, column];
  }
  return null;
}
