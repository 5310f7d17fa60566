// Numbers and tokens as people read them.

export const percent = (share) => (share < 0.001 ? "0%" : share < 0.095 ? `${(share * 100).toFixed(1)}%` : `${Math.round(share * 100)}%`);

/** The kinds of attention, by their names in a report. */
export const KINDS = { cross: "cross-attention", self: "self-attention", causal: "causal self-attention" };

/** A token as it stands in a running text. */
export const spokenToken = (token) => token.replaceAll("▁", " ").replaceAll("⏎", "\n").replaceAll("⇥", "\t");
