"""Attention for the page: recorded once, kept small as bytes, and sent in the pieces that are asked for."""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from regard.errors import UsageError
from regard.inference.attending import SIDES, kind_of
from regard.inference.pipelines import Translator
from regard.look.page import quantise
from regard.look.sight import Panel, Sight
from regard.look.views import forced_sight, translation_sight

ALIGNMENT = "alignment"
KEPT = 512 * 2**20  # bytes of recorded weights
LARGEST = 4 * 2**20  # bytes of weights in one answer
MOST_SCORES = 64 * 4096  # scores in one answer
WORDS = ("target_words", "source_words")  # whose queries and keys the alignment has


@dataclass(frozen=True)
class Question:
    """What to look at: a text, and the translation the model is made to say, if not its own."""

    model: str
    text: str
    to: str
    target: str = ""

    def sight(self, translator: Translator) -> Sight:
        """Record every layer and head."""
        if self.target:
            return forced_sight(translator, self.text, self.target, to=self.to)
        return translation_sight(translator, translator.translate(self.text, to=self.to))


@dataclass(frozen=True)
class Wanted:
    """Which pieces of a recording: layers, heads and rows (None is all); `side` shrinks maps for small pictures."""

    layers: Sequence[str]
    heads: Sequence[int] | None = None
    rows: tuple[int, int] | None = None
    side: int = 0


class Sights:
    """The recordings looked at last, weights as bytes; used by the computing thread alone."""

    def __init__(self, limit: int = KEPT) -> None:
        self.limit = limit
        self._kept: OrderedDict[Question, Sight] = OrderedDict()

    def look(self, question: Question, translator: Translator) -> Sight:
        """The recording of a question, made now if it is not among those kept."""
        if question not in self._kept:
            self._kept[question] = _small(question.sight(translator))
            while len(self._kept) > 1 and sum(map(_size, self._kept.values())) > self.limit:
                self._kept.popitem(last=False)
        self._kept.move_to_end(question)
        return self._kept[question]


def describe(sight: Sight) -> dict[str, Any]:
    """Everything about a recording but the weights."""
    sides: dict[str, list[str]] = {name: [] for pair in (*SIDES.values(), WORDS) for name in pair}
    for panel, (queries, keys) in _panels(sight):
        sides[queries], sides[keys] = list(panel.queries), list(panel.keys)
    listed = [
        {"name": name_of(panel, sight), "kind": _kind(panel, sight), "heads": panel.heads, "queries": q, "keys": k}
        for panel, (q, k) in _panels(sight)
    ]
    return {
        "model": sight.model,
        "title": sight.title,
        "translation": sight.meta.get("translation", ""),
        "meta": sight.meta,
        "texts": sides,
        "panels": [each for each in listed if each["kind"] != ALIGNMENT],
        "alignment": next((each for each in listed if each["kind"] == ALIGNMENT), None),
    }


def pieces(sight: Sight, wanted: Wanted) -> list[dict[str, Any]]:
    """The maps asked for, as base64 of bytes; refused in words when they are too many for one answer."""
    found, size = [], 0
    for name in wanted.layers:
        panel = find_panel(sight, name)
        for head in _heads(panel, wanted.heads):
            first, last = _rows(panel, wanted.rows)
            small = shrink(panel.weights[head, first:last], wanted.side)
            size += small.size
            if size > LARGEST:
                raise UsageError("this is too much for one answer; ask for fewer layers, heads or rows at a time")
            found.append({"name": name, "head": head, "rows": [first, last], **encoded(small)})
    return found


def score_pieces(question: Question, sight: Sight, translator: Translator, wanted: Wanted) -> list[dict[str, Any]]:
    """Scores before the softmax, as numbers; null where a query may not look."""
    found, count = [], 0
    for name in wanted.layers:
        if name == ALIGNMENT:
            raise UsageError("the words' alignment is made of weights and has no scores; ask for a layer")
        panel = find_panel(sight, name)
        first, last = _rows(panel, wanted.rows)
        heads = _heads(panel, wanted.heads)
        count += len(heads) * (last - first) * len(panel.keys)
        if count > MOST_SCORES:
            raise UsageError("these are too many scores for one answer; ask for fewer layers, heads or rows at a time")
        (seen,) = translator.passes(
            [question.text], [question.target or sight.meta["translation"]],
            to=question.to, layers=name, scores=True,
        )  # fmt: skip
        for head in heads:
            scores = seen.weights[name][head, first:last].astype(np.float64).round(4)
            values = [
                [score if panel.kind != "causal" or key <= row else None for key, score in enumerate(keys)]
                for row, keys in enumerate(scores.tolist(), start=first)
            ]
            found.append({"name": name, "head": head, "rows": [first, last], "shape": scores.shape, "values": values})
    return found


def encoded(weights: np.ndarray) -> dict[str, Any]:
    """Quantised weights as JSON carries them."""
    return {"shape": weights.shape, "data": base64.b64encode(weights.tobytes()).decode()}


def shrink(weights: np.ndarray, side: int) -> np.ndarray:
    """A map of at most side x side: every cell is the heaviest of its block, so that no line disappears."""
    if not side or max(weights.shape, default=0) <= side:
        return np.ascontiguousarray(weights)
    for axis, length in enumerate(weights.shape):
        starts = np.linspace(0, length, min(side, length), endpoint=False).astype(int)
        weights = np.maximum.reduceat(weights, starts, axis=axis)
    return weights


def find_panel(sight: Sight, name: str) -> Panel:
    """The layer of that name, or the words' alignment."""
    for panel, _ in _panels(sight):
        if name_of(panel, sight) == name:
            return panel
    known = ", ".join(name_of(panel, sight) for panel, _ in _panels(sight))
    raise UsageError(f"there is no layer {name!r}; there are: {known}")


def name_of(panel: Panel, sight: Sight) -> str:
    return ALIGNMENT if panel is sight.alignment else panel.name


def _kind(panel: Panel, sight: Sight) -> str:
    return ALIGNMENT if panel is sight.alignment else panel.kind


def _panels(sight: Sight) -> Iterator[tuple[Panel, tuple[str, str]]]:
    """Every panel, with the names of the texts its queries and keys are."""
    for panel in sight.panels:
        yield panel, SIDES[kind_of(panel.name)]
    if sight.alignment is not None:
        yield sight.alignment, WORDS


def _heads(panel: Panel, heads: Sequence[int] | None) -> Sequence[int]:
    for head in heads or ():
        panel.head(head)  # refuses what is not there
    return range(panel.heads) if heads is None else heads


def _rows(panel: Panel, rows: tuple[int, int] | None) -> tuple[int, int]:
    first, last = rows or (0, len(panel.queries))
    if not 0 <= first <= last <= len(panel.queries):
        raise UsageError(f"rows are {first} to {last}; {panel.name} has rows 0 to {len(panel.queries)}")
    return first, last


def _small(sight: Sight) -> Sight:
    bytes_of = lambda panel: replace(panel, weights=quantise(panel.weights))  # noqa: E731
    alignment = bytes_of(sight.alignment) if sight.alignment else None
    return replace(sight, panels=[bytes_of(panel) for panel in sight.panels], alignment=alignment)


def _size(sight: Sight) -> int:
    return sum(panel.weights.nbytes for panel in sight.panels)
