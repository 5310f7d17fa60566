"""One input as one model sees it: its tokens and layers at once; weights, scores and expectations when asked for.

A `Scene` is what translators, encoders and writers have in common for whoever looks at them: `regard look` makes a
`Sight` of it, the server sends it in pieces.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import nn

from regard.attention.record import attention_names
from regard.errors import UsageError
from regard.inference.insight.forced_pass import SIDES, Kind, kind_of, require_attention
from regard.inference.insight.predictions import TOP, Foretold
from regard.inference.pipelines.generation import Completion, Writer
from regard.inference.pipelines.generator import TextToText
from regard.inference.pipelines.text_encoder import TextEncoder
from regard.inference.pipelines.translator import Translation, Translator
from regard.look.sight import Panel, Sight

Viewed = Translator | TextEncoder | Writer  # whatever can be looked at with a text
DRAWING = ("temperature", "top_k", "top_p", "min_p")  # what shapes the distribution that tokens are drawn from
WORDS = ("target_words", "source_words")  # whose queries and keys a word alignment has


class Layer(NamedTuple):
    """An attention layer: who looks at whom, each side being the name of one of the scene's texts."""

    name: str
    kind: Kind
    heads: int
    queries: str
    keys: str


@dataclass(frozen=True)
class Seen:
    """What a pass recorded: [heads, queries, keys] of every layer, and the words' alignment if its layer is there."""

    weights: dict[str, Float[np.ndarray, "H Tq Tk"]]
    alignment: Float[np.ndarray, "targets sources"] | None = None


class Scene(ABC):
    """A model and one input. `said` is what the model wrote for it, `meta` are short facts to show beside the title."""

    aligning = ""  # the layer whose attention aligns words; empty if none does

    def __init__(self, name: str, model: nn.Module, title: str, texts: dict[str, list[str]], said: str = ""):
        require_attention(model, name)
        self.name, self.title, self.texts, self.said = name, title, texts, said
        self.layers = {each: _layer(model, each) for each in attention_names(model)}
        self.meta: dict[str, str] = {}

    @abstractmethod
    def record(self, layers: Sequence[str], *, scores: bool = False) -> Seen:
        """Record these layers in one pass; with `scores`, what comes before the softmax."""

    @property
    def foretold_side(self) -> str:
        """The text at whose places something can be foretold; empty if the model foretells nothing here."""
        return ""

    @property
    def places(self) -> int:
        """How many places that text has."""
        return len(self.texts[self.foretold_side]) if self.foretold_side else 0

    def foretell(self, places: tuple[int, int] | None = None, *, top: int = TOP, **drawing: Any) -> list[Foretold]:
        """What the model expects, at all places or from one to before another; `drawing` as tokens would be drawn."""
        return []

    def sight(self, *, top: int = TOP) -> Sight:
        """Every layer and head, the alignment of words, and all that is foretold."""
        seen = self.record(list(self.layers))
        panels = [
            Panel(name, kind, seen.weights[name], self.texts[queries], self.texts[keys])
            for name, kind, _, queries, keys in self.layers.values()
        ]
        words = None
        if seen.alignment is not None:
            targets, sources = (self.texts[side] for side in WORDS)
            words = Panel(self.aligning, "cross", seen.alignment[None], targets, sources)
        tokens = self.texts[self.foretold_side] if self.foretold_side else []
        return Sight(self.title, self.name, panels, words, dict(self.meta), tokens, self.foretell(top=top))


class TranslationScene(Scene):
    """A sentence and its translation: the model's own, as token ids, or one that it is made to say, as a text."""

    def __init__(self, translator: Translator, source: str, answer: str | Sequence[int], *, to: str, said: str):
        tokenizer, target = translator.tokenizer, translator.tokenizer.target
        ids = target.encode([answer])[0] if isinstance(answer, str) else list(answer)
        texts = {
            "source": tokenizer.source.pieces(tokenizer.source_ids([source], to)[0]),
            "target": target.pieces([target.start, *ids]),  # what the decoder is fed at each step
        }
        texts |= dict(zip(WORDS, (said.split(), source.split()), strict=True))
        super().__init__(translator.name, translator.models[0], source, texts, said)
        self.translator, self.answer, self.to, self.meta = translator, answer, to, {"translation": said}
        if translator.alignment is not None and said:
            self.aligning = translator.alignment.layer

    def record(self, layers: Sequence[str], *, scores: bool = False) -> Seen:
        (seen,) = self.translator.passes([self.title], [self.answer], to=self.to, layers=layers, scores=scores)
        aligned = not scores and self.aligning in seen.weights
        return Seen(seen.weights, seen.words(self.translator.aligning()) if aligned else None)


class ReadingScene(Scene):
    """A text or a pair read by an encoder, which guesses hidden words, written [MASK], if it has learned to."""

    def __init__(self, encoder: TextEncoder, text: str, pair: str = ""):
        self.encoder, self.text, self.pair = encoder, text, pair or None
        self.marked = encoder.hides_words(text, pair)
        tokens = encoder.pieces(text, self.pair, marked=self.marked)
        super().__init__(encoder.name, encoder.model, f"{text} · {pair}" if pair else text, {"source": tokens})

    def record(self, layers: Sequence[str], *, scores: bool = False) -> Seen:
        seen = self.encoder.attention(self.text, self.pair, layers=layers, marked=self.marked, scores=scores)
        return Seen(seen.weights)

    @property
    def foretold_side(self) -> str:
        return "source" if self.marked and self.encoder.model.masked is not None else ""

    def foretell(self, places: tuple[int, int] | None = None, *, top: int = TOP, **drawing: Any) -> list[Foretold]:
        if drawing:
            raise UsageError("hidden words are guessed, not drawn; leave out temperature, top_k, top_p and min_p")
        if not self.places:
            return []
        first, last = places or (0, self.places)
        return [each for each in self.encoder.foretell(self.text, self.pair, top=top) if first <= each.place < last]


class WritingScene(Scene):
    """A prompt and what a language model or T5 wrote for it; `drawing` are the settings its tokens were drawn by."""

    def __init__(
        self, writer: Writer, prompt: str, ids: Sequence[int], *, said: str, ended: bool, drawing: dict[str, Any]
    ):
        self.writer, self.prompt_ids, self.ids, self.ended = writer, writer.read(prompt), list(ids), ended
        self.drawing: dict[str, Any] = {key: value for key, value in drawing.items() if key in DRAWING}
        source, target = writer.fed(self.prompt_ids, self.ids)
        shown = {"source": writer.tokenizer.shown(source), "target": writer.tokenizer.shown(target[: writer.context])}
        super().__init__(writer.name, writer.model, prompt, shown, said)
        self.meta = {"answer": said} if said else {}

    def record(self, layers: Sequence[str], *, scores: bool = False) -> Seen:
        return Seen(self.writer.attention(self.prompt_ids, self.ids, layers, scores=scores).weights)

    @property
    def foretold_side(self) -> str:
        return "target"

    def foretell(self, places: tuple[int, int] | None = None, *, top: int = TOP, **drawing: Any) -> list[Foretold]:
        how = drawing or self.drawing
        return self.writer.foretell(self.prompt_ids, self.ids, places=places, top=top, ended=self.ended, **how)


def set_scene(model: object, text: str, *, pair: str = "", to: str = "", target: str = "", **writing: Any) -> Scene:
    """The scene of a model of texts: `to` and `target` are for translators, `pair` for encoders, `writing` for writers.

    `writing` are options of `Writer.generate`; without `max_tokens` a language model only reads its text, while a T5
    answers it, unless it is made to say `target`.
    """
    given: dict[str, Any] = {"a second text": pair, "a target language": to, "a given answer": target, **writing}
    match model:
        case Translator():
            _refuse(model, given, "a second text", *writing)
            return translation_scene(model, text, to=to, target=target)
        case TextEncoder():
            _refuse(model, given, "a target language", "a given answer", *writing)
            if not text.strip():
                raise UsageError("there is nothing to look at: the text is empty")
            return ReadingScene(model, text, pair)
        case Writer():
            answers = isinstance(model, TextToText)
            _refuse(model, given, "a second text", "a target language", *([] if answers else ["a given answer"]))
            return writing_scene(model, text, target=target, **writing)
        case _:
            raise UsageError(f"{getattr(model, 'name', '') or 'this model'} has no attention to look at with a text")


def translation_scene(translator: Translator, text: str, *, to: str = "", target: str = "") -> Scene:
    """One sentence and the model's own translation of it, or the one it is given."""
    if target:
        return TranslationScene(translator, text, target, to=translator.target_language(to), said=target)
    return translated_scene(translator, translator.translate(text, to=to))


def translated_scene(translator: Translator, answer: Translation) -> Scene:
    """A translation that was made; a scene shows one sentence."""
    if not answer.parts:
        raise UsageError("there is nothing to look at: the text is empty")
    if len(answer.parts) > 1:
        raise UsageError(
            f"the text is too long to look at as a whole: it was translated as {len(answer.parts)} sentences; "
            "look at one of them"
        )
    ((source, ids),) = answer.parts
    scene = TranslationScene(translator, source, ids, to=answer.to, said=answer.text)
    scene.meta["score"] = f"{answer.score:.4f}"
    return scene


def writing_scene(writer: Writer, prompt: str, *, target: str = "", **writing: Any) -> Scene:
    """A prompt with what is written for it, or with the answer that is given."""
    if target:
        ids = [token for token in writer.read(target) if token not in writer.ends]
        return WritingScene(writer, prompt, ids, said=target, ended=True, drawing=writing)
    if not writing.get("max_tokens", isinstance(writer, TextToText)):
        if unused := writing.keys() - {*DRAWING, *(("max_tokens", "seed") if "max_tokens" in writing else ())}:
            raise UsageError(f"nothing is written, so {', '.join(sorted(unused))} has no use; give max_tokens")
        return WritingScene(writer, prompt, [], said="", ended=False, drawing=writing)
    return written_scene(writer, writer.generate(prompt, **writing), writing)


def written_scene(writer: Writer, answer: Completion, writing: dict[str, Any]) -> Scene:
    """A text that was written with the settings `writing`."""
    ended = answer.reason == "stop" and not {*answer.ids[-1:]} & {*writer.ends}  # the answer may have its end token
    scene = WritingScene(writer, answer.prompt, answer.ids, said=answer.text, ended=ended, drawing=writing)
    scene.meta["score"] = f"{answer.score:.4f}"
    return scene


def _layer(model: nn.Module, name: str) -> Layer:
    kind = kind_of(name)
    return Layer(name, kind, getattr(model.get_submodule(name), "heads", 1), *SIDES[kind])


def _refuse(model: Viewed, given: dict[str, Any], *names: str) -> None:
    """What a model has no use for is an error."""
    for name in names:
        if given[name] not in ("", None):
            who = f"{model.name or 'this model'} is a {type(model).__name__}"
            raise UsageError(f"{who} and takes no {name.removeprefix('a ')}")
