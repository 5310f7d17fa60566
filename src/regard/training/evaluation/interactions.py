"""Scores of yes-or-no predictions, and what simple predictions achieve on pairs of proteins."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from regard.training.evaluation.scores import accuracy, f1, ranks


def binary_scores(scores: Float[np.ndarray, N], labels: Int[np.ndarray, N]) -> dict[str, float]:
    """Accuracy, precision, recall and F1 of predicting 1 where a score is above 0, and the area under the ROC curve.

    Precision and recall are 0 where nothing is predicted or nothing is true.
    """
    predicted = np.asarray(scores) > 0
    right = int((predicted & (labels == 1)).sum())
    return {
        "accuracy": accuracy(predicted, labels),
        "precision": right / max(1, int(predicted.sum())),
        "recall": right / max(1, int((labels == 1).sum())),
        "f1": f1(predicted, labels),
        "auc": area_under_curve(scores, labels),
    }


def area_under_curve(scores: NDArray[np.floating], labels: NDArray[np.integer]) -> float:
    """The probability that a pair of label 1 has a higher score than one of label 0; equal scores count half.

    0.5 if there is one label only.
    """
    yes, no = int((labels == 1).sum()), int((labels == 0).sum())
    if not yes or not no:
        return 0.5
    return float((ranks(scores)[labels == 1].sum() - yes * (yes + 1) / 2) / (yes * no))
