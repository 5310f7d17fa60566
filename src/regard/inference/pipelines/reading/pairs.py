"""Reading pairs of texts: translators and models that answer prompts, by the loss of every target token."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn

from regard.data.batch import Batch, collate
from regard.data.formats.pairs import Pair, read_pairs
from regard.data.synthetic.phrasebook import phrases
from regard.data.text.prompts import PROMPTS, prompts, read_prompts
from regard.errors import UsageError
from regard.inference.decoding.search import search
from regard.inference.decoding.settings import SearchSettings
from regard.inference.decoding.start import from_source
from regard.inference.pipelines.language_models import NO_TOKEN, TextToText
from regard.inference.pipelines.reading.base import (
    PHRASEBOOK,
    PREFIX,
    Example,
    Reader,
    Source,
    TokenUnits,
    goes_by_steps,
    side_of,
    step_logits,
    summed_loss,
)
from regard.inference.pipelines.translator import Translator

WORD = 3  # tokens of a word of built-in data, at most


class SourceReader(Reader[Batch]):
    """A model that reads tokens and writes others. Places of its encoder belong to what it reads."""

    columns: ClassVar = {"source": "<i4", "target": "<i4"}

    def __init__(self, pipeline: Translator | TextToText, model: nn.Module, settings: SearchSettings) -> None:
        self.decoding, self.model, self.settings, self.device = pipeline, model, settings, pipeline.device
        self.by_steps = goes_by_steps(model)

    @abstractmethod
    def pairs(self, source: Source) -> Iterator[Pair]:
        """The texts of some data."""

    @abstractmethod
    def source_ids(self, text: str, to: str) -> list[int]:
        """The tokens of a text that is read, in a language or for a task."""

    @abstractmethod
    def target_ids(self, text: str) -> list[int]:
        """The tokens of an answer, with its end."""

    @abstractmethod
    def pieces(self, ids: Sequence[int], side: str) -> list[str]:
        """Tokens as they are shown."""

    def examples(self, source: Source) -> Iterator[Example]:
        for pair in islice(self.pairs(source), source.count):
            ids, answer = self.source_ids(pair.source, pair.to), self.target_ids(pair.target)
            if len(ids) <= source.block and len(answer) <= source.block:
                yield np.array(ids, dtype=np.int32), np.array(answer, dtype=np.int32)

    def answered(self, text: str, to: str) -> Example:
        """A text with the model's own answer."""
        ids = np.array(self.source_ids(text, to), dtype=np.int32)
        end = self.decoding.vocabulary.end
        return ids, np.array([*self.said(ids), *([] if end == NO_TOKEN else [end])], dtype=np.int32)

    def batch(self, examples: Sequence[Example]) -> Batch:
        vocabulary = self.decoding.vocabulary
        sources, targets = zip(*examples, strict=True)
        return collate(sources, targets, pad=vocabulary.pad, start=vocabulary.start).to(self.device)

    def run(self, batch: Batch) -> object:
        return self._logits(batch, factored=True)

    def loss(self, batch: Batch) -> tuple[float, int]:
        return summed_loss(self._logits(batch), batch.labels, batch.labels_mask)

    def real(self, batch: Batch, place: str) -> Bool[Tensor, "B T"]:
        return batch.source_mask if side_of(place) == "source" else batch.labels_mask

    def units(self, example: Example, place: str) -> TokenUnits:
        source, target = (ids.tolist() for ids in example)
        side = side_of(place)
        shown = source if side == "source" else [self.decoding.vocabulary.start, *target[:-1]]
        if place.startswith("encoder") and getattr(self.model.config, "reverse_source", False):
            shown = shown[::-1]  # some recurrent encoders read a sentence from its end
        return TokenUnits(self.pieces(shown, side))

    def output_names(self) -> Callable[[int], str]:
        return lambda number: self.pieces([number], "target")[0]

    def said(self, ids: np.ndarray) -> list[int]:
        """The tokens of the model's answer, without its end."""
        source = torch.tensor(ids[None], dtype=torch.long, device=self.device)
        vocabulary, decoder, mask = self.decoding.vocabulary, self.decoding.decoder, torch.ones_like(source).bool()
        start = from_source(decoder, source, mask, self.settings, vocabulary.start)
        return list(search(decoder, start, self.settings, vocabulary)[0][0].tokens)

    def _logits(self, batch: Batch, *, factored: bool = False) -> object:
        if self.by_steps:
            model: nn.Module = self.model
            return step_logits(model, model.start(batch.source, batch.source_mask), batch.inputs)  # type: ignore[operator]
        return self.model(batch.source, batch.source_mask, batch.inputs, factored=factored)


class PairReader(SourceReader):
    """A translator that reads a sentence and its translation."""

    built_in: ClassVar = (PHRASEBOOK,)

    def __init__(self, pipeline: Translator) -> None:
        if len(pipeline.models) > 1:
            raise UsageError("an ensemble has a place of its own in each of its models; give one translator")
        super().__init__(pipeline, pipeline.models[0], pipeline.settings)
        self.tokenizer = pipeline.tokenizer

    def pairs(self, source: Source) -> Iterator[Pair]:
        languages = [source.to] if source.to else list(self.tokenizer.target_languages)
        if source.path == PHRASEBOOK:
            each, longest = -(-source.count // len(languages)), source.block // WORD
            for to in languages:
                yield from phrases(to, part=source.part, count=each, seed=source.seed, max_words=longest)
            return
        if len(languages) > 1:
            raise UsageError(f"this model translates into {', '.join(languages)}; say which with data.to")
        for pair in read_pairs(source.path, self.tokenizer.source_language, languages[0]):
            yield Pair(pair.source, pair.target, to=languages[0])

    def source_ids(self, text: str, to: str) -> list[int]:
        return self.tokenizer.source_ids([text], to)[0]

    def target_ids(self, text: str) -> list[int]:
        return self.tokenizer.target_ids([text])[0]

    def pieces(self, ids: Sequence[int], side: str) -> list[str]:
        return (self.tokenizer.source if side == "source" else self.tokenizer.target).pieces(ids)

    def given(self, text: str) -> Example:
        """A text with the model's own translation into its first language."""
        return self.answered(text, self.tokenizer.target_languages[0])

    def answer(self, example: Example, position: int) -> str:
        """The translation of the whole sentence."""
        return self.tokenizer.target.decode(self.said(example[0]))


class PromptReader(SourceReader):
    """A model that reads a prompt and its answer: those of a table of two columns, or built-in ones."""

    built_in: ClassVar = tuple(PREFIX + kind for kind in PROMPTS)

    def __init__(self, pipeline: TextToText) -> None:
        super().__init__(pipeline, pipeline.model, pipeline.generation_settings())
        self.pipeline = pipeline

    def pairs(self, source: Source) -> Iterator[Pair]:
        if source.path.startswith(PREFIX):
            kind, longest = source.path.removeprefix(PREFIX), source.block // WORD
            return prompts(kind, part=source.part, count=source.count, seed=source.seed, max_words=longest)
        return read_prompts(source.path, prefix="")

    def source_ids(self, text: str, to: str) -> list[int]:
        return self.pipeline.read(text)

    def target_ids(self, text: str) -> list[int]:
        return self.pipeline.read(text)

    def pieces(self, ids: Sequence[int], side: str) -> list[str]:
        return self.pipeline.tokenizer.running(ids)

    def given(self, text: str) -> Example:
        """A prompt with the model's own answer."""
        return self.answered(text, "")

    def answer(self, example: Example, position: int) -> str:
        """The answer to the whole prompt."""
        return self.pipeline.tokenizer.decode(self.said(example[0])).strip()
