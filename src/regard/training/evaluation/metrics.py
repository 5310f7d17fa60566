"""How well labels and values were guessed: the official metrics of GLUE."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = Sequence[float] | NDArray[Any]


def label_scores(guessed: Numbers, true: Numbers, labels: int) -> dict[str, float]:
    """Accuracy; of two labels also F1 and Matthews."""
    both = {"f1": f1(guessed, true), "matthews": matthews(guessed, true)} if labels == 2 else {}
    return {"accuracy": accuracy(guessed, true), **both}


def value_scores(guessed: Numbers, true: Numbers) -> dict[str, float]:
    """Pearson and Spearman."""
    return {"pearson": pearson(guessed, true), "spearman": spearman(guessed, true)}


def accuracy(guessed: Numbers, true: Numbers) -> float:
    """The share that is right."""
    return float(np.mean(np.asarray(guessed) == np.asarray(true)))


def f1(guessed: Numbers, true: Numbers) -> float:
    """2 TP / (2 TP + FP + FN) of the second of two labels; 0 where it neither is nor was guessed."""
    said, was = np.asarray(guessed) == 1, np.asarray(true) == 1
    both = np.sum(said & was)
    return float(2 * both / max(1, said.sum() + was.sum()))


def matthews(guessed: Numbers, true: Numbers) -> float:
    """Matthews' correlation: that of two labels as numbers; 0 where one of them is always guessed."""
    return pearson(guessed, true)


def pearson(guessed: Numbers, true: Numbers) -> float:
    """Σ(x - x̄)(y - ȳ) / √(Σ(x - x̄)² Σ(y - ȳ)²); 0 where all values of a side are the same."""
    x, y = (np.asarray(side, dtype=np.float64) for side in (guessed, true))
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    return float((x @ y) / np.sqrt((x @ x) * (y @ y)))


def spearman(guessed: Numbers, true: Numbers) -> float:
    """Pearson's correlation of the ranks."""
    return pearson(ranks(guessed), ranks(true))


def ranks(values: Numbers) -> NDArray[np.float64]:
    """The place of each value in their order, from 1 on; equal ones share the mean of their places."""
    _, kind, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean: NDArray[np.float64] = (last - (counts - 1) / 2)[kind]
    return mean


def mean_overlap(confusion: NDArray[Any]) -> float:
    """The mean over classes of intersection / union, from how often class i (row) was taken for j (column); classes
    that neither are nor were guessed do not count."""
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
