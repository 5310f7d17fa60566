"""Scores of detected boxes: average precision by COCO's protocol (IoU .50 to .95, 101 recalls, 100 boxes an image),
and what kinds of mistakes there are (Hoiem et al. 2012)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.families.detection.annotations import TrueBoxes

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
MOST = 100  # detections of a class in an image that count
ALMOST_ONE = 1 - 1e-10  # a threshold of 1 would be missed by rounding

LEAST = 0.5  # score of the boxes whose kinds are counted
RIGHT, NEAR = 0.5, 0.1  # IoU of a right box, and of one in the wrong place
MISSED, IGNORED = "missed", "ignored"

Array = NDArray[np.float64]


class FoundBoxes(NamedTuple):
    """Detections in an image: corners [N 4], classes and scores."""

    boxes: NDArray[np.floating]
    labels: NDArray[np.integer]
    scores: NDArray[np.floating]


Pair = tuple[TrueBoxes, FoundBoxes]  # of one image


@dataclass(frozen=True)
class AveragePrecision:
    """Average precision over classes and thresholds, and each class alone."""

    names: Sequence[str]
    precisions: Sequence[Array | None] = field(repr=False)  # of each class: [thresholds, recalls]

    def _mean(self, threshold: int | slice = slice(None)) -> float:
        tables = [table[threshold] for table in self.precisions if table is not None]
        return float(np.mean(tables)) if tables else 0.0

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
    def curves(self) -> dict[str, Array]:
        """The precision of every class that occurs at 101 recalls, at an IoU of .50."""
        tables = zip(self.names, self.precisions, strict=True)
        return {name: table[0] for name, table in tables if table is not None}

    @property
    def ap50_by_class(self) -> dict[str, float]:
        """AP50 of every class that occurs."""
        return {name: float(curve.mean()) for name, curve in self.curves.items()}


def average_precision(pairs: Iterable[Pair], names: Sequence[str]) -> AveragePrecision:
    """The average precision of detections in images whose true boxes are known."""
    pairs = list(pairs)
    return AveragePrecision(names, [_class_precisions(pairs, label) for label in range(len(names))])


def _class_precisions(pairs: Sequence[Pair], label: int) -> Array | None:
    """The precision of one class at every threshold and recall; None for a class without true boxes."""
    scores, correct, ignored, truths = [np.zeros(0)], [_none(0)], [_none(0)], 0
    for truth, found in pairs:
        mine, theirs = truth.labels == label, np.flatnonzero(found.labels == label)
        truths += int((mine & ~truth.ignored).sum())
        theirs = theirs[np.argsort(-found.scores[theirs], kind="mergesort")][:MOST]
        hits, left_out = _matched(truth.boxes[mine], truth.ignored[mine], found.boxes[theirs])
        scores.append(found.scores[theirs].astype(float))
        correct.append(hits)
        ignored.append(left_out)
    if not truths:
        return None
    order = np.argsort(-np.concatenate(scores), kind="mergesort")
    hit, counted = np.concatenate(correct, axis=1)[:, order], ~np.concatenate(ignored, axis=1)[:, order]
    right = np.cumsum(hit & counted, axis=1).astype(float)
    wrong = np.cumsum(~hit & counted, axis=1).astype(float)
    table = np.zeros((len(right), len(RECALLS)))
    for row, tp, fp in zip(table, right, wrong, strict=True):
        precision = tp / (tp + fp + np.spacing(1))
        best_after = np.maximum.accumulate(precision[::-1])[::-1]
        places = np.searchsorted(tp / truths, RECALLS, side="left")
        reached = places < len(best_after)
        row[reached] = best_after[places[reached]]
    return table


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
    own, other = ((boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (found, truth))
    either = np.where(crowd, own[:, None], own[:, None] + other - both)
    result: Array = np.divide(both, either, out=np.zeros_like(both), where=either > 0)
    return result


def error_kinds(pairs: Sequence[Pair], least: float = LEAST) -> dict[str, int]:
    """Found boxes of at least this score by what they are (Hoiem et al. 2012), and how many objects were missed.

    A box is right if its IoU with a free object of its class is at least .5. Otherwise it is there twice, of another
    class, in the wrong place (IoU of .1 or more with an object of its class), or on the background. A box that only
    fits an object that is left out of scores is left out too.
    """
    counts = dict.fromkeys(("right", "twice", "another class", "wrong place", "background", MISSED), 0)
    for truth, found in pairs:
        free = ~truth.ignored
        chosen = np.flatnonzero(found.scores >= least)
        for number in chosen[np.argsort(-found.scores[chosen], kind="stable")]:
            own = overlap(found.boxes[number : number + 1], truth.boxes, truth.ignored)[0]
            kind, place = _kind(own, truth, int(found.labels[number]), free)
            if kind == IGNORED:
                continue
            counts[kind] += 1
            if kind == "right":
                free[place] = False
        counts[MISSED] += int(free.sum())
    return counts


def _kind(own: NDArray[np.float64], truth: TrueBoxes, label: int, free: NDArray[np.bool_]) -> tuple[str, int]:
    """What a found box is, by its overlaps with the true ones, and the true box it overlaps most among those."""
    same, counted = truth.labels == label, ~truth.ignored
    for kind, allowed, needed in (
        ("right", same & free, RIGHT),
        (IGNORED, same & truth.ignored, RIGHT),
        ("twice", same & counted, RIGHT),
        ("another class", ~same & counted, RIGHT),
        ("wrong place", same & counted, NEAR),
    ):
        overlaps = np.where(allowed, own, 0.0)
        if len(own) and overlaps.max() >= needed:
            return kind, int(overlaps.argmax())
    return "background", -1
