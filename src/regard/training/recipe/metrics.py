"""Metrics: the numbers that a task measures, and which way each of them is better."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A number by which two models of one task can be compared."""

    name: str  # as in a recipe's `training.metric` and in metrics.jsonl
    higher_is_better: bool = False

    @property
    def arrow(self) -> str:
        """The direction that is better, as tables of results mark it."""
        return "↑" if self.higher_is_better else "↓"

    def better(self, value: float, best: float | None) -> bool:
        """Whether a measured value beats the best so far; NaN never does."""
        if best is None or math.isnan(value):
            return not math.isnan(value)
        return value > best if self.higher_is_better else value < best


LOSS = Metric("loss")
PERPLEXITY = Metric("perplexity")
ACCURACY = Metric("accuracy", higher_is_better=True)
FRECHET = Metric("frechet")
BLEU = Metric("bleu", higher_is_better=True)
CHRF = Metric("chrf", higher_is_better=True)
EXACT = Metric("exact", higher_is_better=True)
DECODED = (BLEU, CHRF, EXACT)  # measured on decoded answers
