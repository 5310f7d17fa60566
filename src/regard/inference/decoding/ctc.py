"""Texts from labels of frames (CTC; Graves et al. 2006): greedy, prefix beam search, and the frames of known labels.

A path labels every frame with a token or the blank. It stands for the labels that remain when repeated labels are taken
once and blanks are left out. The probability of labels is the sum over all their paths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from regard.errors import UsageError

LEAST = 1e-6  # labels of a frame below this probability are not tried in a beam search


class Labelling(NamedTuple):
    """Labels without blanks, and the logarithm of their probability: of all paths, or of one if it is greedy."""

    labels: list[int]
    score: float


class Span(NamedTuple):
    """The frames of a label on the most probable path: from `first` up to `last`, which is excluded."""

    label: int
    first: int
    last: int
    score: float  # mean log-probability of the label in its frames


def collapse(path: Sequence[int], blank: int) -> list[int]:
    """The labels that a path stands for."""
    return [label for place, label in enumerate(path) if label != blank and (not place or label != path[place - 1])]


def needed_frames(labels: Sequence[int]) -> int:
    """The fewest frames that these labels fit into: one each, and a blank between equal neighbours."""
    return len(labels) + sum(one == other for one, other in pairwise(labels))


def greedy(frames: Float[np.ndarray, "T V"], blank: int) -> Labelling:
    """The labels of the most probable path."""
    best = frames.argmax(axis=-1)
    return Labelling(collapse(best.tolist(), blank), float(frames.max(axis=-1).sum()))


@dataclass
class _Prefix:
    """The probability of a prefix over all paths that end with a blank, and over those that end with its last label."""

    blank: float = -math.inf
    label: float = -math.inf

    @property
    def total(self) -> float:
        return _add(self.blank, self.label)


def beam_search(frames: Float[np.ndarray, "T V"], blank: int, width: int, count: int = 1) -> list[Labelling]:
    """The most probable labels, best first, each summed over the paths whose prefixes stay among the `width` best.

    `frames` are log-probabilities.
    """
    beam: dict[tuple[int, ...], _Prefix] = {(): _Prefix(blank=0.0)}
    for row in frames:
        grown: dict[tuple[int, ...], _Prefix] = {}
        tried = [label for label in np.flatnonzero(row > math.log(LEAST)).tolist() if label != blank]
        for prefix, so_far in beam.items():
            same = grown.setdefault(prefix, _Prefix())
            same.blank = _add(same.blank, so_far.total + float(row[blank]))
            if prefix:
                same.label = _add(same.label, so_far.label + float(row[prefix[-1]]))
            for label in tried:
                longer = grown.setdefault((*prefix, label), _Prefix())
                # A repeated label begins anew only after a blank.
                before = so_far.blank if prefix and label == prefix[-1] else so_far.total
                longer.label = _add(longer.label, before + float(row[label]))
        ranked = sorted(grown.items(), key=lambda item: (-item[1].total, item[0]))
        beam = dict(ranked[:width])
    return [Labelling(list(prefix), found.total) for prefix, found in list(beam.items())[:count]]


def _add(first: float, second: float) -> float:
    """log(exp(first) + exp(second))."""
    low, high = sorted((first, second))
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def align(frames: Float[np.ndarray, "T V"], labels: Sequence[int], blank: int) -> list[Span]:
    """The frames of every label on the most probable path of these labels (Viterbi)."""
    if needed_frames(labels) > len(frames):
        raise UsageError(f"{len(labels)} labels need {needed_frames(labels)} frames, but there are {len(frames)}")
    if not labels:
        return []
    states = [blank, *(each for label in labels for each in (label, blank))]
    best = np.full(len(states), -math.inf)
    best[:2] = frames[0, states[:2]]
    came = np.zeros((len(frames), len(states)), dtype=np.int64)  # states back: 0, 1 or 2
    skips = np.array([at > 1 and label not in (blank, states[at - 2]) for at, label in enumerate(states)])
    for time in range(1, len(frames)):
        one, two = np.full_like(best, -math.inf), np.full_like(best, -math.inf)
        one[1:], two[2:] = best[:-1], best[:-2]
        options = np.stack([best, one, np.where(skips, two, -math.inf)])
        came[time] = options.argmax(axis=0)
        best = options.max(axis=0) + frames[time, states]
    at = len(states) - 1 if best[-1] >= best[-2] else len(states) - 2
    path = [at]
    for time in range(len(frames) - 1, 0, -1):
        at -= int(came[time, at])
        path.append(at)
    places = np.array(path[::-1])
    return [_span(frames, label, np.flatnonzero(places == 2 * number + 1)) for number, label in enumerate(labels)]


def _span(frames: Float[np.ndarray, "T V"], label: int, where: Int[np.ndarray, N]) -> Span:
    return Span(label, int(where[0]), int(where[-1]) + 1, float(frames[where, label].mean()))


def scores(
    frames: Float[Tensor, "T B V"], lengths: Sequence[int], labels: Sequence[Sequence[int]], blank: int
) -> list[float]:
    """The log-probability of the labels of each recording, over all paths; `frames` are log-probabilities."""
    targets = torch.tensor([label for row in labels for label in row], dtype=torch.long)
    sizes = torch.tensor([len(row) for row in labels])
    loss = functional.ctc_loss(frames.cpu(), targets, torch.tensor(list(lengths)), sizes, blank=blank, reduction="none")
    return (-loss).tolist()
