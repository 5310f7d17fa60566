"""Attention for the page: recorded layer by layer as it is asked for, kept small as bytes, sent in pieces."""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.errors import UsageError
from regard.inference.insight.predictions import Foretold
from regard.inference.pipelines.generation import Completion, Writer
from regard.inference.pipelines.text_encoder import TextEncoder
from regard.inference.pipelines.translator import Translator
from regard.look.page import quantise
from regard.look.scenes import WORDS, Layer, Scene, set_scene, written_scene
from regard.look.sight import foretold_to_json

ALIGNMENT = "alignment"
KEPT, MOST = 512 * 2**20, 256  # bytes of recorded weights, and recordings
AT_ONCE = 32 * 2**20  # weights recorded in one pass: all of a short text, some layers of a long one
LARGEST = 4 * 2**20  # bytes of weights in one answer
MOST_SCORES = 64 * 4096  # scores in one answer
MOST_CHOICES = 16_384  # tokens foretold in one answer


@dataclass(frozen=True)
class Question:
    """What to look at: a text, perhaps with a second one, and what the model is made to say or how it writes."""

    model: str
    text: str
    to: str = ""
    target: str = ""
    pair: str = ""
    writing: tuple[tuple[str, Any], ...] = ()

    def scene(self, model: object) -> Scene:
        """Read the texts, and let the model write if it does."""
        return set_scene(model, self.text, pair=self.pair, to=self.to, target=self.target, **dict(self.writing))


@dataclass(frozen=True)
class Wanted:
    """Which pieces of a recording: layers, heads and rows (None is all); `side` shrinks maps for small pictures."""

    layers: Sequence[str]
    heads: Sequence[int] | None = None
    rows: tuple[int, int] | None = None
    side: int = 0


class Recording:
    """A question answered: its texts and layers at once, the weights of a layer when they are first asked for."""

    def __init__(self, question: Question, model: object, scene: Scene) -> None:
        self.question, self.model, self.scene, self.texts = question, model, scene, scene.texts
        self.panels: dict[str, Layer] = dict(scene.layers)
        if scene.aligning:
            self.panels[ALIGNMENT] = Layer(ALIGNMENT, "cross", 1, *WORDS)
        self._maps: dict[str, np.ndarray] = {}

    @property
    def nbytes(self) -> int:
        return sum(weights.nbytes for weights in self._maps.values())

    def panel(self, name: str) -> Layer:
        """The layer of that name, or the words' alignment."""
        if name not in self.panels:
            raise UsageError(f"there is no layer {name!r}; there are: {', '.join(self.panels)}")
        return self.panels[name]

    def size(self, name: str) -> int:
        """How many weights a layer has."""
        panel = self.panel(name)
        return panel.heads * len(self.texts[panel.queries]) * len(self.texts[panel.keys])

    def weights(self, name: str) -> np.ndarray:
        """The quantised weights of a layer, [heads, queries, keys]."""
        self.panel(name)
        if name not in self._maps:
            self._record(name)
        return self._maps[name]

    def scores(self, name: str) -> np.ndarray:
        """What the softmax of a layer is made of."""
        return self.scene.record([name], scores=True).weights[name]

    def describe(self) -> dict[str, Any]:
        """Everything but the weights and what is foretold."""
        alignment = self.panels.get(ALIGNMENT)
        return {
            "model": self.question.model,
            "title": self.scene.title,
            "said": self.scene.said,
            "meta": self.scene.meta,
            "texts": self.texts,
            "panels": [layer._asdict() for layer in self.scene.layers.values()],
            "alignment": alignment and alignment._asdict() | {"kind": ALIGNMENT},
            "places": self.scene.places,
            "unknown": self._unknown(),
        }

    def _unknown(self) -> list[dict[str, str | int]]:
        """The words of the text that the model does not know."""
        if not isinstance(self.model, Translator | TextEncoder | Writer):
            return []
        return [each.to_json() for each in self.model.unknown_words(self.question.text)]

    def _record(self, name: str) -> None:
        """Record a layer and, while they are not too many weights, others that will be asked for next: those after it,
        or for the alignment the first ones, which its pass goes through anyway."""
        names = [each for each in self.panels if each not in (ALIGNMENT, *self._maps)]
        layer = self.scene.aligning if name == ALIGNMENT else name
        chosen, total = [layer], self.size(layer)
        for other in names[0 if name == ALIGNMENT else names.index(name) + 1 :]:
            total += self.size(other)
            if total > AT_ONCE:
                break
            chosen.append(other)
        seen = self.scene.record(chosen)
        if seen.alignment is not None:
            self._maps[ALIGNMENT] = quantise(seen.alignment[None])
        for each, weights in seen.weights.items():
            self._maps[each] = quantise(weights)


class Sights:
    """The recordings looked at last; used by the computing thread alone."""

    def __init__(self, limit: int = KEPT) -> None:
        self.limit = limit
        self._kept: OrderedDict[Question, Recording] = OrderedDict()

    def look(self, question: Question, model: object) -> Recording:
        """The recording of a question, begun now if it is not among those kept."""
        kept = self._kept.pop(question, None)
        if kept is None or kept.model is not model:  # the model may have left the registry and come back
            kept = Recording(question, model, question.scene(model))
        return self._keep(kept)

    def keep_written(self, question: Question, writer: Writer, answer: Completion) -> None:
        """A text that was just written is not written again when it is looked at."""
        self._keep(Recording(question, writer, written_scene(writer, answer, dict(question.writing))))

    def _keep(self, recording: Recording) -> Recording:
        self._kept[recording.question] = recording
        while len(self._kept) > 1 and (len(self._kept) > MOST or self.nbytes > self.limit):
            self._kept.popitem(last=False)
        return recording

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self._kept.values())


def pieces(recording: Recording, wanted: Wanted) -> list[dict[str, Any]]:
    """The maps asked for, as base64 of bytes; refused in words when they are too many for one answer."""
    found, size = [], 0
    for name in wanted.layers:
        first, last = _rows(recording, name, wanted.rows)
        for head in _heads(recording, name, wanted.heads):
            small = shrink(recording.weights(name)[head, first:last], wanted.side)
            size += small.size
            if size > LARGEST:
                raise UsageError("this is too much for one answer; ask for fewer layers, heads or rows at a time")
            found.append({"name": name, "head": head, "rows": [first, last], **encoded(small)})
    return found


def score_pieces(recording: Recording, wanted: Wanted) -> list[dict[str, Any]]:
    """Scores before the softmax, as numbers; null where a query may not look."""
    found, count = [], 0
    for name in wanted.layers:
        if name == ALIGNMENT:
            raise UsageError("the words' alignment is made of weights and has no scores; ask for a layer")
        panel, heads = recording.panel(name), _heads(recording, name, wanted.heads)
        first, last = _rows(recording, name, wanted.rows)
        count += len(heads) * (last - first) * len(recording.texts[panel.keys])
        if count > MOST_SCORES:
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


def foretold_pieces(
    recording: Recording, places: tuple[int, int] | None, top: int, drawing: dict[str, Any]
) -> list[dict[str, Any]]:
    """What the model expects at the places asked for, as tokens would be drawn by the settings `drawing`."""
    count = recording.scene.places
    first, last = places or (0, count)
    if not 0 <= first <= last <= count:
        raise UsageError(f"places are {first} to {last}; there are places 0 to {count}")
    if (last - first) * top > MOST_CHOICES:
        raise UsageError("these are too many tokens for one answer; ask for fewer places at a time")
    found: list[Foretold] = recording.scene.foretell((first, last), top=top, **drawing) if first < last else []
    return [foretold_to_json(each) for each in found]


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


def _heads(recording: Recording, name: str, heads: Sequence[int] | None) -> Sequence[int]:
    known = range(recording.panel(name).heads)
    for head in heads or ():
        if head not in known:
            raise UsageError(f"{name} has heads 0 to {len(known) - 1}; head {head} was asked for")
    return known if heads is None else heads


def _rows(recording: Recording, name: str, rows: tuple[int, int] | None) -> tuple[int, int]:
    count = len(recording.texts[recording.panel(name).queries])
    first, last = rows or (0, count)
    if not 0 <= first <= last <= count:
        raise UsageError(f"rows are {first} to {last}; {name} has rows 0 to {count}")
    return first, last
