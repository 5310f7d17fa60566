"""Scores of predictions: the official metrics of GLUE, mean overlap of masks, and the Fréchet distance of features."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = Sequence[float] | NDArray[Any]


def label_scores(predicted: Numbers, true: Numbers, labels: int) -> dict[str, float]:
    """Accuracy; with two labels also F1 and Matthews' correlation."""
    both = {"f1": f1(predicted, true), "matthews": matthews(predicted, true)} if labels == 2 else {}
    return {"accuracy": accuracy(predicted, true), **both}


def value_scores(predicted: Numbers, true: Numbers) -> dict[str, float]:
    """The correlations of Pearson and Spearman."""
    return {"pearson": pearson(predicted, true), "spearman": spearman(predicted, true)}


def accuracy(predicted: Numbers, true: Numbers) -> float:
    """The share of correct predictions."""
    return float(np.mean(np.asarray(predicted) == np.asarray(true)))


def f1(predicted: Numbers, true: Numbers) -> float:
    """2 TP / (2 TP + FP + FN) of the second of two labels; 0 if that label neither occurs nor was predicted."""
    predicted_yes, is_yes = np.asarray(predicted) == 1, np.asarray(true) == 1
    both = np.sum(predicted_yes & is_yes)
    return float(2 * both / max(1, predicted_yes.sum() + is_yes.sum()))


def matthews(predicted: Numbers, true: Numbers) -> float:
    """Matthews' correlation: Pearson's correlation of two labels as numbers; 0 if only one label is ever predicted."""
    return pearson(predicted, true)


def pearson(predicted: Numbers, true: Numbers) -> float:
    """Σ(x - x̄)(y - ȳ) / √(Σ(x - x̄)² Σ(y - ȳ)²); 0 if all values of a side are the same."""
    x, y = (np.asarray(side, dtype=np.float64) for side in (predicted, true))
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    return float((x @ y) / np.sqrt((x @ x) * (y @ y)))


def spearman(predicted: Numbers, true: Numbers) -> float:
    """Pearson's correlation of the ranks."""
    return pearson(ranks(predicted), ranks(true))


def ranks(values: Numbers) -> NDArray[np.float64]:
    """The rank of each value, from 1 on; equal values share their mean rank."""
    _, kind, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean: NDArray[np.float64] = (last - (counts - 1) / 2)[kind]
    return mean


def recalls(scores: NDArray[Any], right: NDArray[np.bool_], counts: Sequence[int] = (1, 5, 10)) -> dict[int, float]:
    """The share of queries (rows) that have a right candidate (column) among the best 1, 5 and 10.

    A wrong candidate with the score of the best right one counts as better, so equal scores find nothing.
    """
    best = np.where(right, scores, -np.inf).max(axis=1, keepdims=True)
    before = ((scores >= best) & ~right).sum(axis=1)
    return {count: float(np.mean(before < count)) for count in counts}


def mean_overlap(confusion: NDArray[Any]) -> float:
    """The mean over classes of intersection / union, from how often class i (row) was predicted as j (column).

    Classes that neither occur nor were predicted do not count.
    """
    both = np.diag(confusion).astype(float)
    either = confusion.sum(axis=0) + confusion.sum(axis=1) - both
    return float(np.mean(both[either > 0] / either[either > 0])) if (either > 0).any() else 0.0


def frechet(first: NDArray[Any], second: NDArray[Any]) -> float:
    """The Fréchet distance of two sets of vectors [N D] as normal distributions (Heusel et al. 2017, equation 6):
    |m - n|² + tr(C + D - 2 (C D)^½)."""
    means = first.mean(axis=0) - second.mean(axis=0)
    one, other = (np.cov(each, rowvar=False).reshape(each.shape[1], -1) for each in (first, second))
    values, vectors = np.linalg.eigh(one)
    root = vectors * np.sqrt(values.clip(0)) @ vectors.T  # (C D)^½ has the trace of (C^½ D C^½)^½, which is symmetric
    joint = np.sqrt(np.linalg.eigvalsh(root @ other @ root).clip(0)).sum()
    return float(means @ means + np.trace(one) + np.trace(other) - 2 * joint)
