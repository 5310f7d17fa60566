"""Attention for the page: recorded layer by layer as it is asked for, kept small as bytes, sent in pieces."""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.attention.record import attention_names
from regard.errors import UsageError
from regard.inference.attending import SIDES, kind_of
from regard.inference.pipelines import Translator
from regard.look.page import quantise
from regard.look.sight import Sight
from regard.look.views import forced_sight, one_sentence, tokens_of, translation_sight

ALIGNMENT = "alignment"
KEPT = 512 * 2**20  # bytes of recorded weights
AT_ONCE = 32 * 2**20  # weights recorded in one pass: all of a short text, some layers of a long one
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


@dataclass(frozen=True)
class Panel:
    """One attention layer: who looks at whom, each side being the name of a text."""

    name: str
    kind: str
    heads: int
    queries: str
    keys: str


class Recording:
    """A question answered: its texts and layers at once, the weights of a layer when they are first asked for."""

    def __init__(self, question: Question, translator: Translator) -> None:
        self.question, self.translator = question, translator
        self.source, self.answer, self.translation, self.meta = _answer(question, translator)
        self.texts = tokens_of(translator, self.source, self.answer, question.to)
        self.texts |= dict(zip(WORDS, (self.translation.split(), self.source.split()), strict=True))
        self.panels = {name: self._panel(name) for name in attention_names(translator.models[0])}
        if translator.alignment is not None and self.translation:
            self.panels[ALIGNMENT] = Panel(ALIGNMENT, ALIGNMENT, 1, *WORDS)
        self._maps: dict[str, np.ndarray] = {}

    @property
    def nbytes(self) -> int:
        return sum(weights.nbytes for weights in self._maps.values())

    def panel(self, name: str) -> Panel:
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
        return self._pass([name], scores=True).weights[name]

    def describe(self) -> dict[str, Any]:
        """Everything but the weights."""
        listed = {name: vars(panel) for name, panel in self.panels.items()}
        alignment = listed.pop(ALIGNMENT, None)
        return {
            "model": self.question.model,
            "title": self.source,
            "translation": self.translation,
            "meta": self.meta,
            "texts": self.texts,
            "panels": list(listed.values()),
            "alignment": alignment,
        }

    def _record(self, name: str) -> None:
        """Record a layer and, while they are not too many weights, others that will be asked for next: those after it,
        or for the alignment the first ones, which its pass goes through anyway."""
        names = [each for each in self.panels if each not in (ALIGNMENT, *self._maps)]
        settings = self.translator.alignment if name == ALIGNMENT else None
        layer = settings.layer if settings else name
        chosen, total = [layer], self.size(layer)
        for other in names[0 if settings else names.index(name) + 1 :]:
            total += self.size(other)
            if total > AT_ONCE:
                break
            chosen.append(other)
        seen = self._pass(chosen)
        if settings:
            self._maps[ALIGNMENT] = quantise(seen.words(settings)[None])
        for each, weights in seen.weights.items():
            self._maps[each] = quantise(weights)

    def _pass(self, names: Sequence[str], *, scores: bool = False) -> Any:
        return self.translator.passes([self.source], [self.answer], to=self.question.to, layers=names, scores=scores)[0]

    def _panel(self, name: str) -> Panel:
        module = self.translator.models[0].get_submodule(name)
        return Panel(name, kind_of(name), getattr(module, "heads", 1), *SIDES[kind_of(name)])


def _answer(question: Question, translator: Translator) -> tuple[str, str | list[int], str, dict[str, str]]:
    """The source, what the model is made to say for it, that as text, and facts worth showing."""
    if question.target:
        if not attention_names(translator.models[0]):
            raise UsageError(f"{question.model} has no attention to look at")
        return question.text, question.target, question.target, {"translation": question.target}
    said = translator.translate(question.text, to=question.to)
    source, ids = one_sentence(translator, said)
    return source, ids, said.text, {"translation": said.text, "score": f"{said.score:.4f}"}


class Sights:
    """The recordings looked at last; used by the computing thread alone."""

    def __init__(self, limit: int = KEPT) -> None:
        self.limit = limit
        self._kept: OrderedDict[Question, Recording] = OrderedDict()

    def look(self, question: Question, translator: Translator) -> Recording:
        """The recording of a question, begun now if it is not among those kept."""
        kept = self._kept.pop(question, None)
        if kept is None or kept.translator is not translator:  # the model may have left the shelf and come back
            kept = Recording(question, translator)
        self._kept[question] = kept
        while len(self._kept) > 1 and sum(each.nbytes for each in self._kept.values()) > self.limit:
            self._kept.popitem(last=False)
        return kept


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
