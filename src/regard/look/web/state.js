"use strict";
// One view (the words' alignment, or a head of a layer) is shown at a time, as text, as lines and as a matrix.
// `point` says what the reader points at: a query (row), a key (column), or both.

const byId = (id) => document.getElementById(id);
const sight = JSON.parse(byId("sight").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const KIND_NAMES = { cross: "cross-attention", self: "self-attention", causal: "causal self-attention" };
const MEAN = -1; // the head number that stands for the mean of all heads
const LONG = 32; // words from which the matrix takes the whole width
const VERY_LONG = 160; // words from which labels find no room and rows are scaled to their peaks at first
const NOTHING = { row: null, column: null };

const views = sight.panels.flatMap((panel, index) => {
  const heads = [...Array(panel.heads).keys()];
  return (panel.heads > 1 ? [MEAN, ...heads] : heads).map((head) => ({ panel, index, head }));
});
let view = null;
let point = NOTHING;
let held = false;
