"""What `regard look` shows of encoders, language models and T5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.errors import UsageError
from regard.families.language.encoder import TextEncoder
from regard.families.language.generator import Completion, TextGenerator
from regard.families.language.language_models import TextToText
from regard.look.inspection import Recorded, TextInspection, refuse_options
from regard.look.predictions import TOP, TokenPrediction

SAMPLING = ("temperature", "top_k", "top_p", "min_p")  # the settings that shape the distribution tokens are drawn from


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


def inspect_encoder(
    encoder: TextEncoder, text: str, *, pair: str = "", to: str = "", target: str = "", **generation: Any
) -> TextInspection:
    """A text, or a pair of texts, as an encoder reads it."""
    refuse_options(encoder, {"a target language": to, "a given answer": target, **generation})
    if not text.strip():
        raise UsageError("there is nothing to look at: the text is empty")
    return EncoderInspection(encoder, text, pair)


def inspect_writer(
    writer: TextGenerator, prompt: str, *, pair: str = "", to: str = "", target: str = "", **generation: Any
) -> TextInspection:
    """A prompt with what the model generates for it, or with a given answer."""
    answers = isinstance(writer, TextToText)
    refused: dict[str, object] = {"a second text": pair, "a target language": to}
    refuse_options(writer, refused if answers else {**refused, "a given answer": target})
    if target:
        ids = [token for token in writer.read(target) if token not in writer.ends]
        return GenerationInspection(writer, prompt, ids, said=target, ended=True, sampling=generation)
    if not generation.get("max_tokens", answers):
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
