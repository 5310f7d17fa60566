// The places of an axis in words, by the kind of the axis.

const cell = ({ extra, columns }, at) => (at < extra ? "class token" : `row ${1 + Math.floor((at - extra) / columns)}, column ${1 + ((at - extra) % columns)}`);

const LABELS = { // kind of axis -> the label of a place
  tokens: ({ texts }, at) => texts[at],
  grid: cell,
  boxes: ({ names }, at) => names[at],
  steps: (_, at) => (at ? `step ${at - 1}` : "path"),
  frames: ({ seconds }, at) => `${(at * seconds).toFixed(2)} s`,
  residues: ({ sequence }, at) => `${sequence[at]}${at + 1}`,
  agents: ({ names, steps }, at) => `${names[Math.floor(at / steps.length)]} at ${steps[at % steps.length]}`,
};

export const labelOf = (axis, at) => (axis.texts ? axis.texts[at] : LABELS[axis.kind](axis, at));
