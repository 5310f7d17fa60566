// Numbers and tokens as people read them.

export const percent = (share) => (share < 0.001 ? "0%" : share < 0.095 ? `${(share * 100).toFixed(1)}%` : `${Math.round(share * 100)}%`);

/** The kinds of attention, by their names in a report. */
export const KINDS = { cross: "cross-attention", self: "self-attention", causal: "causal self-attention" };

/** A token as it stands in a running text. */
export const spokenToken = (token) => token.replaceAll("▁", " ").replaceAll("⏎", "\n").replaceAll("⇥", "\t");

/** An attention layer in words: encoder.0.attention is “Encoder layer 1”, and decoder.1.cross “Decoder layer 2, cross-attention”. */
export function layerTitle(name) {
  const numbered = name.replaceAll("_", " ")
    .replace(/\b(block|layer|link|stage)s\.(\d+)/g, (_, what, number) => `${what} ${Number(number) + 1}`)
    .replace(/\.(\d+)/g, (_, number) => ` layer ${Number(number) + 1}`);
  const spoken = numbered.replace(/\.attention$/, "").replace(/\bcross(?=$| head)/, "cross-attention").replace(/\.(?=layer \d)/g, " ").replace(/(?<=\d)\./g, ", ").replaceAll(".", " ");
  return spoken.charAt(0).toUpperCase() + spoken.slice(1);
}

export const headTitle = (head) => (head < 0 ? "mean of heads" : `head ${head + 1}`); // -1 is the mean of all

/** A head as the server names it, LAYER:NUMBER, in words. */
export function spokenHead(name) {
  const [layer, head] = name.split(":");
  return `${layerTitle(layer)}, ${headTitle(Number(head))}`;
}
