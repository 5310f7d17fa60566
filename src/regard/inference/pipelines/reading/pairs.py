"""Reading sentence pairs: translators, by the loss of every target token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional

from regard.data.batch import Batch, collate
from regard.data.formats.pairs import Pair, read_pairs
from regard.data.synthetic.phrasebook import phrases
from regard.errors import UsageError
from regard.inference.decoding.search import search
from regard.inference.decoding.start import from_source
from regard.inference.pipelines.reading.base import PHRASEBOOK, Example, Reader, Source, TokenUnits, side_of
from regard.inference.pipelines.translator import Translator


class PairReader(Reader[Batch]):
    """A translator that reads a sentence and its translation. Places of its encoder belong to the sentence."""

    columns: ClassVar = {"source": "<i4", "target": "<i4"}

    def __init__(self, pipeline: Translator) -> None:
        if len(pipeline.models) > 1:
            raise UsageError("an ensemble has a place of its own in each of its models; give one translator")
        self.pipeline, self.model, self.device = pipeline, pipeline.models[0], pipeline.device
        self.tokenizer = pipeline.tokenizer

    def examples(self, source: Source) -> Iterator[Example]:
        for pair in islice(self._pairs(source), source.count):
            ids, answer = self.tokenizer.source_ids([pair.source], pair.to)[0], self.tokenizer.target_ids([pair.target])
            if len(ids) <= source.block and len(answer[0]) <= source.block:
                yield np.array(ids, dtype=np.int32), np.array(answer[0], dtype=np.int32)

    def given(self, text: str) -> Example:
        """A text with the model's own translation into its first language."""
        to = self.tokenizer.target_languages[0]
        ids = np.array(self.tokenizer.source_ids([text], to)[0], dtype=np.int32)
        answer = [*self._translated(ids), self.tokenizer.target.end]
        return ids, np.array(answer, dtype=np.int32)

    def batch(self, examples: Sequence[Example]) -> Batch:
        target = self.tokenizer.target
        sources, targets = zip(*examples, strict=True)
        return collate(sources, targets, pad=target.pad, start=target.start).to(self.device)

    def run(self, batch: Batch) -> object:
        return self.model(batch.source, batch.source_mask, batch.inputs, factored=True)

    def loss(self, batch: Batch) -> tuple[float, int]:
        logits = self.model(batch.source, batch.source_mask, batch.inputs)
        counted = batch.labels_mask
        total = functional.cross_entropy(logits[counted].float(), batch.labels[counted], reduction="sum")
        return float(total), int(counted.sum())

    def real(self, batch: Batch, place: str) -> Bool[Tensor, "B T"]:
        return batch.source_mask if side_of(place) == "source" else batch.labels_mask

    def units(self, example: Example, place: str) -> TokenUnits:
        source, target = (ids.tolist() for ids in example)
        if side_of(place) == "source":
            return TokenUnits(self.tokenizer.source.pieces(source))
        return TokenUnits(self.tokenizer.target.pieces([self.tokenizer.target.start, *target[:-1]]))

    def answer(self, example: Example, position: int) -> str:
        """The translation of the whole sentence."""
        return self.tokenizer.target.decode(self._translated(example[0]))

    def output_names(self) -> Callable[[int], str]:
        return lambda number: self.tokenizer.target.pieces([number])[0]

    def _pairs(self, source: Source) -> Iterator[Pair]:
        languages = [source.to] if source.to else list(self.tokenizer.target_languages)
        if source.path == PHRASEBOOK:
            each = -(-source.count // len(languages))
            for to in languages:
                yield from phrases(to, part=source.part, count=each, seed=source.seed, max_words=source.block // 3)
            return
        if len(languages) > 1:
            raise UsageError(f"this model translates into {', '.join(languages)}; say which with data.to")
        for pair in read_pairs(source.path, self.tokenizer.source_language, languages[0]):
            yield Pair(pair.source, pair.target, to=languages[0])

    def _translated(self, ids: np.ndarray) -> list[int]:
        source = torch.tensor(ids[None], dtype=torch.long, device=self.device)
        settings, vocabulary, decoder = self.pipeline.settings, self.pipeline.vocabulary, self.pipeline.decoder
        start = from_source(decoder, source, torch.ones_like(source, dtype=torch.bool), settings, vocabulary.start)
        return list(search(decoder, start, settings, vocabulary)[0][0].tokens)
