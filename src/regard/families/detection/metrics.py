"""Average precision of detected boxes, by COCO's protocol: IoU .50 to .95, 101 recalls, 100 boxes an image."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from regard.families.detection.data import FoundBoxes, TrueBoxes

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
MOST = 100  # detections of a class in an image that count
ALMOST_ONE = 1 - 1e-10  # a threshold of 1 would be missed by rounding

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ClassMatches:
    """All detections of a class: scores, and at each threshold whether they match a true box or an ignored one."""

    scores: Array
    correct: NDArray[np.bool_]  # [thresholds N]
    ignored: NDArray[np.bool_]
    truths: int

    def precisions(self) -> Array | None:
        """The precision at every threshold and recall; None for a class without true boxes."""
        if not self.truths:
            return None
        order = np.argsort(-self.scores, kind="mergesort")
        correct, counted = self.correct[:, order], ~self.ignored[:, order]
        right = np.cumsum(correct & counted, axis=1).astype(float)
        wrong = np.cumsum(~correct & counted, axis=1).astype(float)
        table = np.zeros((len(right), len(RECALLS)))
        for row, tp, fp in zip(table, right, wrong, strict=True):
            precision = tp / (tp + fp + np.spacing(1))
            best_after = np.maximum.accumulate(precision[::-1])[::-1]
            places = np.searchsorted(tp / self.truths, RECALLS, side="left")
            reached = places < len(best_after)
            row[reached] = best_after[places[reached]]
        return table


@dataclass(frozen=True)
class AveragePrecision:
    """Average precision over classes and thresholds, and each class alone."""

    names: Sequence[str]
    precisions: Sequence[Array | None] = field(repr=False)  # of each class: [thresholds, recalls]

    def _mean(self, threshold: int | slice = slice(None)) -> float:
        known = [table[threshold] for table in self.precisions if table is not None]
        return float(np.mean(known)) if known else 0.0

    @property
    def ap(self) -> float:
        """The mean over thresholds .50 to .95."""
        return self._mean()

    @property
    def ap50(self) -> float:
        return self._mean(0)

    @property
    def ap75(self) -> float:
        return self._mean(5)

    @property
    def ap50_by_class(self) -> dict[str, float]:
        """AP50 of every class that occurs."""
        tables = zip(self.names, self.precisions, strict=True)
        return {name: float(table[0].mean()) for name, table in tables if table is not None}


def average_precision(pairs: Iterable[tuple[TrueBoxes, FoundBoxes]], names: Sequence[str]) -> AveragePrecision:
    """The average precision of detections in images whose true boxes are known."""
    pairs = list(pairs)
    return AveragePrecision(names, [class_matches(pairs, label).precisions() for label in range(len(names))])


def class_matches(pairs: Sequence[tuple[TrueBoxes, FoundBoxes]], label: int) -> ClassMatches:
    """The detections of a class in all images, matched with its true boxes."""
    scores, correct, ignored, truths = [np.zeros(0)], [_none(0)], [_none(0)], 0
    for truth, found in pairs:
        mine, theirs = truth.labels == label, np.flatnonzero(found.labels == label)
        truths += int((mine & ~truth.ignored).sum())
        if not len(theirs):
            continue
        theirs = theirs[np.argsort(-found.scores[theirs], kind="mergesort")][:MOST]
        hits, left_out = _matched(truth.boxes[mine], truth.ignored[mine], found.boxes[theirs])
        scores.append(found.scores[theirs].astype(float))
        correct.append(hits)
        ignored.append(left_out)
    return ClassMatches(np.concatenate(scores), np.concatenate(correct, 1), np.concatenate(ignored, 1), truths)


def _none(count: int) -> NDArray[np.bool_]:
    return np.zeros((len(THRESHOLDS), count), dtype=bool)


def _matched(
    truth: NDArray[np.floating], ignored: NDArray[np.bool_], found: NDArray[np.floating]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """For detections from best to worst, at each threshold: does it match a true box, and an ignored one?

    Each takes the free true box that it overlaps most, the later one of equals; ignored boxes only if there is no
    other, and as often as they are overlapped.
    """
    hits, left_out = _none(len(found)), _none(len(found))
    if not len(truth):
        return hits, left_out
    order = np.argsort(ignored, kind="mergesort")
    truth, ignored = truth[order], ignored[order]
    overlaps = overlap(found, truth, ignored)
    for row, threshold in enumerate(np.minimum(THRESHOLDS, ALMOST_ONE)):
        free = np.ones(len(truth), dtype=bool)
        for number, own in enumerate(overlaps):
            for allowed in (free & ~ignored, ignored):
                fitting = np.where(allowed & (own >= threshold), own, -1.0)
                best = len(fitting) - 1 - int(np.argmax(fitting[::-1]))
                if fitting[best] >= 0:
                    free[best] = False
                    hits[row, number], left_out[row, number] = True, ignored[best]
                    break
    return hits, left_out


def overlap(found: NDArray[np.floating], truth: NDArray[np.floating], crowd: NDArray[np.bool_]) -> Array:
    """IoU of every detection with every true box; with a crowd, the part of the detection inside it."""
    found, truth = found.astype(np.float64), truth.astype(np.float64)
    low = np.maximum(found[:, None, :2], truth[None, :, :2])
    high = np.minimum(found[:, None, 2:], truth[None, :, 2:])
    both = (high - low).clip(0).prod(axis=2)
    own, other = ((each[:, 2:] - each[:, :2]).prod(axis=1) for each in (found, truth))
    either = np.where(crowd, own[:, None], own[:, None] + other - both)
    result: Array = np.divide(both, either, out=np.zeros_like(both), where=either > 0)
    return result
