"""The claims of the lectures that a command can put to the test, what a test finds, and its figures as charts."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from regard.errors import UsageError
from regard.look.figures import line_chart

Outcome = Literal["holds", "does not hold", "depends"]
Row = dict[str, Any]


@dataclass(frozen=True)
class ClaimOptions:
    """How claims that train are tested: with how many seeds, for how many steps (None: as each says), and where."""

    seeds: int = 3
    steps: int | None = None
    runs: Path = Path("runs/claims")


@dataclass(frozen=True)
class Chart:
    """How rows of figures are drawn: the column of the x-axis, the columns of the lines, and the labels."""

    title: str
    x: str
    y: tuple[str, ...]
    x_label: str
    y_label: str
    by: str = ""  # a column whose values each get their own line
    spread: str = ""  # a column with the spread of the first y
    logarithmic: bool = False
    log_x: bool = True
    only: tuple[str, ...] = ()  # the values of x that are drawn; empty: all

    def draw(self, path: Path, rows: Sequence[Row]) -> None:
        """Draw rows of figures, with their spread where they have one."""
        shown = [row for row in rows if not self.only or row[self.x] in self.only]
        lines = self._by(shown, self.y[0]) if self.by else {name: [row[name] for row in shown] for name in self.y}
        line_chart(
            path, list(dict.fromkeys(row[self.x] for row in shown)), lines, title=self.title, x_label=self.x_label,
            y_label=self.y_label, logarithmic=self.logarithmic, log_x=self.log_x,
            spreads=self._by(shown, self.spread) if self.spread else {},
        )  # fmt: skip

    def _by(self, rows: Sequence[Row], column: str) -> dict[str, list[float]]:
        lines: dict[str, list[float]] = {}
        for row in rows:
            lines.setdefault(str(row[self.by]), []).append(row[column])
        return lines


@dataclass(frozen=True)
class Verdict:
    """What a test found: the outcome, one sentence of why, the figures it rests on, and how to draw them."""

    outcome: Outcome
    words: str
    rows: list[Row] = field(default_factory=list)
    chart: Chart | None = None


@dataclass(frozen=True)
class Claim:
    """A claim of a lecture, and the test of it. `regard claims NAME` runs the test."""

    name: str
    lecture: str  # the part of the lectures that makes it
    tested_by: str  # MODULE.FUNCTION of this package; it, and all of training with some, is imported only when it runs
    statement: str

    @property
    def trains(self) -> bool:
        """Whether the test takes minutes, not seconds."""
        return self.tested_by.startswith("trained_claims")

    def test(self, options: ClaimOptions) -> Verdict:
        """Put the claim to the test."""
        module, _, name = self.tested_by.partition(".")
        verdict: Verdict = getattr(import_module(f"regard.claims.{module}"), name)(options)
        return verdict


def judge(holds: bool, words: str, rows: list[Row] | None = None, chart: Chart | None = None) -> Verdict:
    """The verdict on a claim that holds or does not."""
    return Verdict("holds" if holds else "does not hold", words, rows or [], chart)


# fmt: off
CLAIMS = (
    Claim("gradient-flow", "1 recurrent networks", "measured_claims.gradient_flow",
          "Gradients explode or vanish with the largest singular value; not along open gates of a GRU or an LSTM."),
    Claim("gradient-flow-trained", "1 recurrent networks", "trained_claims.gradient_flow_trained",
          "Trained GRUs and LSTMs remember over more steps than a trained RNN."),
    Claim("gru-unrolled", "14 from GRU to attention", "structural_claims.gru_unrolled",
          "An unrolled GRU is a weighted sum of all earlier candidates."),
    Claim("fixed-context", "3 RNN + attention", "trained_claims.fixed_context",
          "One context vector is a bottleneck: attention translates long sentences better."),
    Claim("alignment", "3 RNN + attention", "trained_claims.alignment",
          "Attention learns to align words, crossings too, from translations alone."),
    Claim("attention-is-unsupervised", "3 RNN + attention", "structural_claims.gradients_reach_attention",
          "Gradients flow through the attention weights without any supervision of them."),
    Claim("do-not-supervise", "3 RNN + attention", "trained_claims.guidance",
          "Attention need not be supervised: translations are as good without it."),
    Claim("soft-or-hard", "4 captioning", "trained_claims.hard_attention",
          "Soft attention learns better than hard attention."),
    Claim("content-or-location", "14 kinds of attention", "structural_claims.content_or_location",
          "Attention is by content or by location."),
    Claim("worked-example", "5 the attention layer", "structural_claims.worked_example",
          "Scores [31, 27, 22] / √3 give the weights .6, .2, .2 (a slide)."),
    Claim("permutation", "5 the attention layer", "structural_claims.permutation",
          "Self-attention without positions is permutation equivariant; positions break it."),
    Claim("mask-by-a-number", "5 the attention layer", "structural_claims.masked_by_a_large_number",
          "A score of -1e9 masks as -∞ does."),
    Claim("scaling", "5 the attention layer", "measured_claims.scaling",
          "Large dot products saturate the softmax; the division by √d prevents it."),
    Claim("scaling-trained", "5 the attention layer", "trained_claims.scaling_trained",
          "A Transformer learns better if scores are divided by √d."),
    Claim("heads-cost", "5 the attention layer", "measured_claims.heads_cost",
          "All heads together cost about as much as one head of full width."),
    Claim("one-weighted-sum", "14 why many heads", "structural_claims.one_weighted_sum",
          "One weighted sum loses resolution; several heads keep it."),
    Claim("many-heads", "5 the attention layer", "trained_claims.many_heads",
          "Several heads translate better than one wide head."),
    Claim("similarity-search", "14 misconceptions", "structural_claims.similarity_search",
          "Attention is a vector similarity search (a misconception)."),
    Claim("layer-by-layer", "14 misconceptions", "structural_claims.memory_of_layers",
          "Decoder layer i reads encoder layer i (a misconception)."),
    Claim("positions", "6 position", "trained_claims.positions",
          "Sinusoidal positions are better than linear, learned, rotary and concatenated ones."),
    Claim("three-ways", "7 the Transformer", "measured_claims.three_ways_of_sequences",
          "Recurrence is sequential, convolution needs depth to see far, attention sees all at once."),
    Claim("three-ways-trained", "7 the Transformer", "trained_claims.three_ways_trained",
          "At equal cost, attention translates better than convolution and recurrence."),
    Claim("layer-norm", "7 the Transformer", "structural_claims.layer_norm_deviation",
          "The σ of layer norm is the root of the sum of squares (a slide)."),
    Claim("crossing", "14 complexity per layer", "structural_claims.crossing",
          "Self-attention is cheaper than recurrence while n < d."),
    Claim("pretraining", "8 pre-training", "trained_claims.pretraining",
          "BERT and GPT learn more from few labels after pre-training than from scratch."),
    Claim("memory-of-pixels", "9 attention inside CNNs", "structural_claims.memory_of_pixels",
          "Attention between all pixels of 128 x 128 needs 768 GB."),
    Claim("patch-is-convolution", "10 ViT", "structural_claims.patch_is_convolution",
          "The patch embedding is a strided convolution."),
    Claim("feed-forward-is-convolution", "14 equivalences", "structural_claims.feed_forward_is_convolution",
          "The feed-forward part is two 1 x 1 convolutions."),
    Claim("little-data", "10 ViT", "trained_claims.little_data",
          "With little data a ResNet is better than a ViT."),
    Claim("equal-flops", "14 two lectures disagree", "measured_claims.equal_flops",
          "A ViT is faster than a ConvNet at equal FLOPs (another lecture: dearer to train and run)."),
    Claim("hierarchical", "14 shapes of stages", "structural_claims.hierarchical",
          "CNNs and Swins are hierarchical, a ViT is isotropic."),
    Claim("swin-or-vit", "11 Swin", "trained_claims.swin_or_vit",
          "A Swin is more accurate than a ViT that is trained alike."),
    Claim("windows", "11 Swin", "measured_claims.windows",
          "Attention in windows grows linearly, attention between all patches quadratically."),
    Claim("superposition", "13 reading models", "measured_claims.more_features_than_neurons",
          "Networks represent more features than they have neurons."),
)
# fmt: on


def find_claim(name: str) -> Claim:
    """A claim by its name."""
    for claim in CLAIMS:
        if claim.name == name:
            return claim
    near = difflib.get_close_matches(name, [claim.name for claim in CLAIMS], n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"`regard claims` lists {len(CLAIMS)} of them"
    raise UsageError(f"there is no claim {name!r}; {hint}")
