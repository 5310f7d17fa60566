// The places of an axis in words, by the kind of the axis. The module of a view adds the kinds that it shows.

const cell = ({ extra, columns }, at) => (at < extra ? "class token" : `row ${1 + Math.floor((at - extra) / columns)}, column ${1 + ((at - extra) % columns)}`);
const labels = new Map([["grid", cell]]);

/** `label(axis, at)` is the text of a place of such an axis. */
export function registerLabels(kind, label) {
  labels.set(kind, label);
}

export const labelOf = (axis, at) => (axis.texts ? axis.texts[at] : labels.get(axis.kind)?.(axis, at) ?? `${axis.kind} ${at + 1}`);
