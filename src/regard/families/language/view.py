"""Inspections of models that read texts: translators, encoders, language models and T5."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from regard.attention.record import attention_names
from regard.errors import UsageError, with_article
from regard.families.language.encoder import TextEncoder
from regard.families.language.generator import Completion, TextGenerator
from regard.families.language.language_models import TextToText
from regard.families.translation.translation import Translation
from regard.families.translation.translator import Translator
from regard.look.forced_pass import SIDES, kind_of, require_attention
from regard.look.inspection import WORDS, Inspection, Layer, Recorded
from regard.look.logit_lens import LogitLens, lens_of
from regard.look.neurons import record_neurons
from regard.look.panels import Tokens
from regard.look.predictions import TOP, TokenPrediction

TextModel = Translator | TextEncoder | TextGenerator  # the pipelines that can be inspected with a text
LENS_TOP = 5  # tokens of every layer and place
SAMPLING = ("temperature", "top_k", "top_p", "min_p")  # the settings that shape the distribution tokens are drawn from


class TextInspection(Inspection):
    """An inspection whose axes are the tokens of texts."""

    def __init__(self, name: str, model: nn.Module, title: str, texts: dict[str, list[str]], said: str = ""):
        require_attention(model, name)
        axes = {side: Tokens(tokens) for side, tokens in texts.items()}
        super().__init__(name, title, axes, {each: _layer(model, each) for each in attention_names(model)}, said)
        self.model = model

    @abstractmethod
    def run(self) -> object:
        """One whole pass of the model over the input, to its logits."""

    @abstractmethod
    def names(self, ids: Sequence[int]) -> list[str]:
        """Tokens that the model predicts, as they are shown."""

    @property
    def lens_axis(self) -> str:
        """The name of the axis at whose places every layer predicts."""
        return self.prediction_axis or ("target" if "target" in self.axes else "source")

    def logit_lens(self, top: int = LENS_TOP) -> LogitLens:
        """What every layer would have said, at every place."""
        return lens_of(self.model, self.run, self.axes[self.lens_axis].labels(), self.names, top)

    def says(self) -> str:
        """The answer in a few words: the text that was written, or what is predicted for hidden or last tokens."""
        if self.said or not self.prediction_axis:
            return self.said
        found = [each for each in self.predict(top=1) if each.choices]
        best = [each.choices[0] for each in (found if self.prediction_axis == "source" else found[-1:])]
        return ", ".join(f"{each.token.strip() or each.token!r} {each.probability:.1%}" for each in best)

    def record_with_neurons(self, layers: Sequence[str]) -> Recorded:
        with record_neurons(self.model, layers) as neurons:
            recorded = self.record(layers)
        return replace(recorded, neurons=neurons)


class TranslationInspection(TextInspection):
    """A sentence and its translation: the model's own as token ids, or a given one as a text."""

    def __init__(self, translator: Translator, source: str, answer: str | Sequence[int], *, to: str, said: str):
        tokenizer, target = translator.tokenizer, translator.tokenizer.target
        ids = target.encode([answer])[0] if isinstance(answer, str) else list(answer)
        texts = {
            "source": tokenizer.source.pieces(tokenizer.source_ids([source], to)[0]),
            "target": target.pieces([target.start, *ids]),  # the decoder's input at each step
        }
        texts |= dict(zip(WORDS, (said.split(), source.split()), strict=True))
        super().__init__(translator.name, translator.models[0], source, texts, said)
        self.translator, self.answer, self.to, self.meta = translator, answer, to, {"translation": said}
        if translator.alignment is not None and said:
            self.alignment_layer = translator.alignment.layer

    def run(self) -> object:
        target = self.translator.tokenizer.target
        ids = target.encode([self.answer])[0] if isinstance(self.answer, str) else self.answer
        return self.translator.log_probabilities(self.title, ids, to=self.to)

    def names(self, ids: Sequence[int]) -> list[str]:
        return self.translator.tokenizer.target.pieces(list(ids))

    def record(self, layers: Sequence[str], *, scores: bool = False) -> Recorded:
        (seen,) = self.translator.passes([self.title], [self.answer], to=self.to, layers=layers, scores=scores)
        aligned = not scores and self.alignment_layer in seen.weights
        return Recorded(seen.weights, seen.words(self.translator.aligning()) if aligned else None)


class EncoderInspection(TextInspection):
    """A text or a pair read by an encoder, which predicts hidden words, written [MASK], if it was trained to."""

    def __init__(self, encoder: TextEncoder, text: str, pair: str = ""):
        self.encoder, self.text, self.pair = encoder, text, pair or None
        self.marked = encoder.hides_words(text, pair)
        tokens = encoder.pieces(text, self.pair, marked=self.marked)
        super().__init__(encoder.name, encoder.model, f"{text} · {pair}" if pair else text, {"source": tokens})

    def run(self) -> object:
        return self.encoder.read_once(self.text, self.pair, marked=self.marked)

    def names(self, ids: Sequence[int]) -> list[str]:
        return self.encoder.tokenizer.pieces(list(ids))

    def record(self, layers: Sequence[str], *, scores: bool = False) -> Recorded:
        seen = self.encoder.attention(self.text, self.pair, layers=layers, marked=self.marked, scores=scores)
        return Recorded(seen.weights)

    @property
    def prediction_axis(self) -> str:
        return "source" if self.marked and self.encoder.model.masked is not None else ""

    def predict(
        self, places: tuple[int, int] | None = None, *, top: int = TOP, **sampling: Any
    ) -> list[TokenPrediction]:
        if sampling:
            raise UsageError("hidden words are predicted, not drawn; leave out temperature, top_k, top_p and min_p")
        if not self.places:
            return []
        first, last = places or (0, self.places)
        return [
            each for each in self.encoder.predict_tokens(self.text, self.pair, top=top) if first <= each.place < last
        ]


class GenerationInspection(TextInspection):
    """A prompt and what a model generated for it; `sampling` are the settings that its tokens were drawn by."""

    def __init__(
        self,
        writer: TextGenerator,
        prompt: str,
        ids: Sequence[int],
        *,
        said: str,
        ended: bool,
        sampling: dict[str, Any],
    ):
        self.writer, self.prompt_ids, self.ids, self.ended = writer, writer.read(prompt), list(ids), ended
        self.sampling: dict[str, Any] = {key: value for key, value in sampling.items() if key in SAMPLING}
        source, target = writer.forced_inputs(self.prompt_ids, self.ids)
        shown = {"source": writer.tokenizer.shown(source), "target": writer.tokenizer.shown(target[: writer.context])}
        super().__init__(writer.name, writer.model, prompt, shown, said)
        self.meta = {"answer": said} if said else {}

    def run(self) -> object:
        source, target = self.writer.forced_inputs(self.prompt_ids, self.ids)
        return self.writer.forced_logits(source, target[: self.writer.context])

    def names(self, ids: Sequence[int]) -> list[str]:
        return self.writer.tokenizer.shown(list(ids))

    def record(self, layers: Sequence[str], *, scores: bool = False) -> Recorded:
        return Recorded(self.writer.attention(self.prompt_ids, self.ids, layers, scores=scores).weights)

    @property
    def prediction_axis(self) -> str:
        return "target"

    def predict(
        self, places: tuple[int, int] | None = None, *, top: int = TOP, **sampling: Any
    ) -> list[TokenPrediction]:
        how = sampling or self.sampling
        settings = self.writer.generation_settings(max_tokens=1, beam=1, **how)
        return self.writer.predict_tokens(
            self.prompt_ids, self.ids, places=places, top=top, ended=self.ended, settings=settings
        )


def inspect_text(
    model: object, text: str, *, pair: str = "", to: str = "", target: str = "", **generation: Any
) -> TextInspection:
    """The inspection of a model with a text.

    `to` and `target` are for translators, `pair` for encoders, `generation` (options of `TextGenerator.generate`) for
    models that generate text. Without `max_tokens` a language model only reads its text, while a T5 answers it unless
    `target` gives the answer.
    """
    given: dict[str, Any] = {"a second text": pair, "a target language": to, "a given answer": target, **generation}
    match model:
        case Translator():
            _refuse(model, given, "a second text", *generation)
            return inspect_translator(model, text, to=to, target=target)
        case TextEncoder():
            _refuse(model, given, "a target language", "a given answer", *generation)
            if not text.strip():
                raise UsageError("there is nothing to look at: the text is empty")
            return EncoderInspection(model, text, pair)
        case TextGenerator():
            answers = isinstance(model, TextToText)
            _refuse(model, given, "a second text", "a target language", *([] if answers else ["a given answer"]))
            return inspect_writer(model, text, target=target, **generation)
        case _:
            raise UsageError(f"{getattr(model, 'name', '') or 'this model'} has no attention to look at with a text")


def inspect_translator(translator: Translator, text: str, *, to: str = "", target: str = "") -> TextInspection:
    """One sentence with the model's own translation, or with a given one."""
    if target:
        return TranslationInspection(translator, text, target, to=translator.target_language(to), said=target)
    return inspect_translation(translator, translator.translate(text, to=to))


def inspect_translation(translator: Translator, answer: Translation) -> TextInspection:
    """A finished translation of one sentence."""
    if not answer.parts:
        raise UsageError("there is nothing to look at: the text is empty")
    if len(answer.parts) > 1:
        raise UsageError(
            f"the text is too long to look at as a whole: it was translated as {len(answer.parts)} sentences; "
            "look at one of them"
        )
    ((source, ids),) = answer.parts
    inspection = TranslationInspection(translator, source, ids, to=answer.to, said=answer.text)
    inspection.meta["score"] = f"{answer.score:.4f}"
    return inspection


def inspect_writer(writer: TextGenerator, prompt: str, *, target: str = "", **generation: Any) -> TextInspection:
    """A prompt with what the model generates for it, or with a given answer."""
    if target:
        ids = [token for token in writer.read(target) if token not in writer.ends]
        return GenerationInspection(writer, prompt, ids, said=target, ended=True, sampling=generation)
    if not generation.get("max_tokens", isinstance(writer, TextToText)):
        if unused := generation.keys() - {*SAMPLING, *(("max_tokens", "seed") if "max_tokens" in generation else ())}:
            raise UsageError(f"nothing is written, so {', '.join(sorted(unused))} has no use; give max_tokens")
        return GenerationInspection(writer, prompt, [], said="", ended=False, sampling=generation)
    return inspect_completion(writer, writer.generate(prompt, **generation), generation)


def inspect_completion(writer: TextGenerator, answer: Completion, generation: dict[str, Any]) -> TextInspection:
    """A finished completion that was made with the settings `generation`."""
    ended = answer.reason == "stop" and not {*answer.ids[-1:]} & {*writer.ends}  # the answer may have its end token
    inspection = GenerationInspection(
        writer, answer.prompt, answer.ids, said=answer.text, ended=ended, sampling=generation
    )
    inspection.meta["score"] = f"{answer.score:.4f}"
    return inspection


def _layer(model: nn.Module, name: str) -> Layer:
    kind = kind_of(name)
    return Layer(name, kind, getattr(model.get_submodule(name), "heads", 1), *SIDES[kind])


def _refuse(model: TextModel, given: dict[str, Any], *names: str) -> None:
    """Refuse options that this kind of model does not take."""
    for name in names:
        if given[name] not in ("", None):
            who = f"{model.name or 'this model'} is {with_article(type(model).__name__)}"
            raise UsageError(f"{who} and takes no {name.removeprefix('a ')}")
