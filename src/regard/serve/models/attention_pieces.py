"""Recorded attention in the pieces that requests ask for: weights as bytes, scores and predictions as numbers."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.errors import UsageError
from regard.look.report import prediction_to_json
from regard.serve.models.attention_cache import ALIGNMENT, TextRecording

MAX_WEIGHTS = 4 * 2**20  # bytes of weights in one answer
MAX_SCORES = 64 * 4096  # scores in one answer
MAX_PREDICTIONS = 16_384  # predicted tokens in one answer


@dataclass(frozen=True)
class Selection:
    """The wanted pieces of a recording: layers, heads and rows (None is all); `side` shrinks maps for thumbnails."""

    layers: Sequence[str]
    heads: Sequence[int] | None = None
    rows: tuple[int, int] | None = None
    side: int = 0


def weight_pieces(recording: TextRecording, wanted: Selection) -> list[dict[str, Any]]:
    """The maps asked for, as base64 of bytes; too many for one answer are refused."""
    found, size = [], 0
    for name in wanted.layers:
        first, last = _rows(recording, name, wanted.rows)
        for head in _heads(recording, name, wanted.heads):
            small = shrink(recording.weights(name)[head, first:last], wanted.side)
            size += small.size
            if size > MAX_WEIGHTS:
                raise UsageError("this is too much for one answer; ask for fewer layers, heads or rows at a time")
            found.append({"name": name, "head": head, "rows": [first, last], **encode(small)})
    return found


def score_pieces(recording: TextRecording, wanted: Selection) -> list[dict[str, Any]]:
    """Scores before the softmax, as numbers; null where the causal mask forbids a key."""
    found, count = [], 0
    for name in wanted.layers:
        if name == ALIGNMENT:
            raise UsageError("the word alignment is computed from weights and has no scores; ask for a layer")
        panel, heads = recording.panel(name), _heads(recording, name, wanted.heads)
        first, last = _rows(recording, name, wanted.rows)
        count += len(heads) * (last - first) * len(recording.axes[panel.keys])
        if count > MAX_SCORES:
            raise UsageError("these are too many scores for one answer; ask for fewer layers, heads or rows at a time")
        every = recording.scores(name)
        for head in heads:
            scores = every[head, first:last].astype(np.float64).round(4)
            values = [
                [score if panel.kind != "causal" or key <= row else None for key, score in enumerate(keys)]
                for row, keys in enumerate(scores.tolist(), start=first)
            ]
            found.append({"name": name, "head": head, "rows": [first, last], "shape": scores.shape, "values": values})
    return found


def prediction_pieces(
    recording: TextRecording, places: tuple[int, int] | None, top: int, sampling: dict[str, Any]
) -> list[dict[str, Any]]:
    """The predictions at the places asked for; `sampling` are the settings by which tokens would be drawn."""
    count = recording.inspection.places
    first, last = places or (0, count)
    if not 0 <= first <= last <= count:
        raise UsageError(f"places are {first} to {last}; there are places 0 to {count}")
    if (last - first) * top > MAX_PREDICTIONS:
        raise UsageError("these are too many tokens for one answer; ask for fewer places at a time")
    found = recording.predict((first, last), top, sampling) if first < last else []
    return [prediction_to_json(each) for each in found]


def encode(weights: np.ndarray) -> dict[str, Any]:
    """Quantised weights as JSON carries them."""
    return {"shape": weights.shape, "data": base64.b64encode(weights.tobytes()).decode()}


def shrink(weights: np.ndarray, side: int) -> np.ndarray:
    """A map of at most side x side; every cell is the largest of its block, so that thin lines stay visible."""
    if not side or max(weights.shape, default=0) <= side:
        return np.ascontiguousarray(weights)
    for axis, length in enumerate(weights.shape):
        starts = np.linspace(0, length, min(side, length), endpoint=False).astype(int)
        weights = np.maximum.reduceat(weights, starts, axis=axis)
    return weights


def _heads(recording: TextRecording, name: str, heads: Sequence[int] | None) -> Sequence[int]:
    known = range(recording.panel(name).heads)
    for head in heads or ():
        if head not in known:
            raise UsageError(f"{name} has heads 0 to {len(known) - 1}; head {head} was asked for")
    return known if heads is None else heads


def _rows(recording: TextRecording, name: str, rows: tuple[int, int] | None) -> tuple[int, int]:
    count = len(recording.axes[recording.panel(name).queries])
    first, last = rows or (0, count)
    if not 0 <= first <= last <= count:
        raise UsageError(f"rows are {first} to {last}; {name} has rows 0 to {count}")
    return first, last
