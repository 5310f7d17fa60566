"""The one cache of recorded attention: texts are recorded layer by layer as they are asked for, files at once.

Requests get it in pieces: weights as bytes, scores and predictions as numbers.
"""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from regard.data.tokenizers.unknown_words import UnknownWord
from regard.errors import UsageError
from regard.families.language.view import inspect_completion
from regard.look.inspection import WORDS, Layer, TextInspection, inspect_text
from regard.look.interventions import models_of, without_heads
from regard.look.neurons import Neurons, neurons
from regard.look.page import page_data, quantise
from regard.look.predictions import Unembeds
from regard.look.report import AttentionReport, prediction_to_json

T = TypeVar("T")
ALIGNMENT = "alignment"
MAX_BYTES, MAX_RECORDINGS = 512 * 2**20, 256  # kept in the cache
FLOAT = 4  # bytes of a number
MAX_WEIGHTS_PER_PASS = 32 * 2**20  # enough for all layers of a short text; a long one takes several passes


@dataclass(frozen=True)
class Question:
    """An input of a text model; `generation` are the settings of a model that generates text, as pairs."""

    model: str
    text: str
    to: str = ""
    target: str = ""
    pair: str = ""
    generation: tuple[tuple[str, Any], ...] = ()
    without: tuple[str, ...] = ()  # heads that are switched off, as LAYER:HEAD

    def inspect(self, model: object) -> TextInspection:
        """The inspection of this input; a model that generates text does so now."""
        options = dict(self.generation)
        with self.changed(model):
            return inspect_text(model, self.text, pair=self.pair, to=self.to, target=self.target, **options)

    def changed(self, model: object) -> AbstractContextManager[None]:
        """The model without the heads that are switched off. All models run in one thread, one question at a time."""
        return without_heads(model, self.without) if self.without else nullcontext()


class Recording:
    """The recorded weights of one input as bytes, [heads, queries, keys] for each layer."""

    def __init__(self) -> None:
        self.maps: dict[str, np.ndarray] = {}

    @property
    def nbytes(self) -> int:
        return sum(weights.nbytes for weights in self.maps.values())


class TextRecording(Recording):
    """A text whose axes and layers are known at once, and whose weights are recorded when they are first asked for."""

    def __init__(self, question: Question, model: object, inspection: TextInspection) -> None:
        super().__init__()
        self.question, self.model, self.inspection, self.axes = question, model, inspection, inspection.axes
        self.panels: dict[str, Layer] = dict(inspection.layers)
        if inspection.alignment_layer:
            self.panels[ALIGNMENT] = Layer(ALIGNMENT, "cross", 1, *WORDS)

    def panel(self, name: str) -> Layer:
        """The layer of that name, or the word alignment."""
        if name not in self.panels:
            raise UsageError(f"there is no layer {name!r}; there are: {', '.join(self.panels)}")
        return self.panels[name]

    def size(self, name: str) -> int:
        """The number of weights of a layer."""
        panel = self.panel(name)
        return panel.heads * len(self.axes[panel.queries]) * len(self.axes[panel.keys])

    def weights(self, name: str) -> np.ndarray:
        """The quantised weights of a layer, [heads, queries, keys]."""
        self.panel(name)
        if name not in self.maps:
            self._record(name)
        return self.maps[name]

    def ask(self, work: Callable[[TextInspection], T]) -> T:
        """What work on the inspection gives, without the heads that are switched off."""
        with self.question.changed(self.model):
            return work(self.inspection)

    def scores(self, name: str) -> np.ndarray:
        """The values of a layer before the softmax, [heads, queries, keys]."""
        return self.ask(lambda inspection: inspection.record([name], scores=True)).weights[name]

    def neurons(self, layer: str, head: int, query: int, key: int) -> Neurons:
        """The score of a query and a key, dimension by dimension."""
        self.panel(layer)
        model = models_of(self.model)[0]
        return self.ask(lambda inspection: neurons(model, layer, head, query, key, lambda: inspection.record([layer])))

    def describe(self) -> dict[str, Any]:
        """Everything but the weights and the predictions."""
        alignment, inspection = self.panels.get(ALIGNMENT), self.inspection
        return {
            "model": self.question.model,
            "title": inspection.title,
            "said": inspection.said,
            "meta": inspection.meta,
            "texts": {name: axis.labels() for name, axis in self.axes.items()},
            "axes": {name: axis.kind for name, axis in self.axes.items()},
            "panels": [layer._asdict() for layer in inspection.layers.values()],
            "alignment": alignment and alignment._asdict() | {"kind": ALIGNMENT},
            "places": inspection.places,
            "unknown": self._unknown(),
            "has_lens": isinstance(models_of(self.model)[0], Unembeds),
        }

    def _unknown(self) -> list[dict[str, str | int]]:
        """The words of the text that the model does not know."""
        find: Callable[[str], Sequence[UnknownWord]] = getattr(self.model, "unknown_words", lambda text: [])
        return [each.to_json() for each in find(self.question.text)]

    def _record(self, name: str) -> None:
        """Record a layer, and in the same pass others that will be asked for next, as far as memory allows.

        These are the layers after it, or for the word alignment the first ones, which its pass computes anyway.
        """
        names = [each for each in self.panels if each not in (ALIGNMENT, *self.maps)]
        layer = self.inspection.alignment_layer if name == ALIGNMENT else name
        chosen, total = [layer], self.size(layer)
        for other in names[0 if name == ALIGNMENT else names.index(name) + 1 :]:
            total += self.size(other)
            if total > MAX_WEIGHTS_PER_PASS:
                break
            chosen.append(other)
        recorded = self.ask(lambda inspection: inspection.record(chosen))
        if recorded.alignment is not None:
            self.maps[ALIGNMENT] = quantise(recorded.alignment[None])
        for each, weights in recorded.weights.items():
            self.maps[each] = quantise(weights)


class FileRecording(Recording):
    """A file with all its layers recorded; the report itself, whose weights are four times as large, is not kept.

    Every panel of the description has its `layer`, by which a head of it is switched off: one layer may have several
    panels, such as one for each of two proteins.
    """

    def __init__(self, report: AttentionReport, layers: Sequence[str]) -> None:
        super().__init__()
        self.description = page_data(report)
        for panel in self.description["panels"]:
            fitting = (layer for layer in layers if f"{panel['name']}.".startswith((f"{layer}.", f"{layer} ")))
            panel["layer"] = max(fitting, key=len, default="")
        self.maps = {panel.name: quantise(panel.weights) for panel in report.panels}
        self.neurons = [panel.neurons for panel in report.panels]

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(FLOAT * each.size for each in self.neurons if each is not None)


class AttentionCache:
    """The recordings used last, by question (texts) or id (files). Old ones are dropped when there are too many."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, Recording] = OrderedDict()
        self._lock = Lock()  # texts are looked up by the computing thread, files by the event loop too

    def find(self, key: Hashable) -> Recording | None:
        """The recording with this key, if it is still there; it counts as used now."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def keep(self, key: Hashable, recording: Recording) -> None:
        """Add a recording as the one used last."""
        with self._lock:
            self._kept[key] = recording
            self._kept.move_to_end(key)
            while len(self._kept) > 1 and (len(self._kept) > MAX_RECORDINGS or self.nbytes > MAX_BYTES):
                self._kept.popitem(last=False)

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self._kept.values())

    def text(self, question: Question, model: object) -> TextRecording:
        """The recording of a text, begun now unless it is in the cache and of this very model, not an unloaded one."""
        found = self.find(question)
        if not isinstance(found, TextRecording) or found.model is not model:
            found = TextRecording(question, model, question.inspect(model))
        self.keep(question, found)
        return found

    def keep_completion(self, question: Question, generator: Any, answer: Any) -> None:
        """Add a text that was just generated, so that looking at it does not generate it again."""
        inspection = inspect_completion(generator, answer, dict(question.generation))
        self.keep(question, TextRecording(question, generator, inspection))


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
    if first == last:
        return []
    found = recording.ask(lambda inspection: inspection.predict((first, last), top=top, **sampling))
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
