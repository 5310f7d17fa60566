"""Span corruption (Raffel et al. 2020): spans are cut out of a plain text, and the model writes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from regard.data.batch import Batch, collate
from regard.data.loader import Loader, Place, Rows
from regard.data.text.token_blocks import TokenStore, block_starts, plan_blocks, split_rows
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import CheckpointError
from regard.families.language.data import CorpusRecipe, Encode
from regard.families.language.modelling import encode_lines
from regard.families.language.recipe import SpansRecipe
from regard.families.language.task import CorpusTask
from regard.training.losses import cross_entropy
from regard.training.safeguards import Poll
from regard.training.task import Values, loader_options
from regard.training.text_task import TextToTextTask

Row = NDArray[np.int64]


def sentinels(tokenizer: TextTokenizer) -> list[int]:
    """The ids of `<extra_id_0>`, `<extra_id_1>`, … of a tokenizer."""
    found: list[int] = []
    while (number := tokenizer.library.token_to_id(f"<extra_id_{len(found)}>")) is not None:
        found.append(number)
    if not found:
        raise CheckpointError("this tokenizer has no sentinels (<extra_id_0>, …), which span corruption needs")
    return found


def corrupted(
    ids: Row, marks: Sequence[int], rng: np.random.Generator, *, density: float = 0.15, mean: float = 3.0
) -> tuple[Row, Row]:
    """Source and target of a text of at least two tokens, with the sentinels `marks`."""
    noise = int(np.clip(round(density * len(ids)), 1, len(ids) - 1))
    spans = int(np.clip(round(noise / mean), 1, min(noise, len(ids) - noise, len(marks))))
    kept, cut = _parts(len(ids) - noise, spans, rng), _parts(noise, spans, rng)
    source: list[int] = []
    target: list[int] = []
    place = 0
    for mark, left, gone in zip(marks, kept, cut, strict=False):
        source += [*ids[place : place + left].tolist(), mark]
        target += [mark, *ids[place + left : place + left + gone].tolist()]
        place += left + gone
    return np.array(source), np.array(target)


def restored(source: Sequence[int], target: Sequence[int], marks: Sequence[int]) -> list[int]:
    """The original text: the inverse of `corrupted`."""
    spans: dict[int, list[int]] = {}
    for token in target:
        if token in marks:
            spans[token] = last = []
        else:
            last.append(token)
    return [each for token in source for each in (spans.get(token, []) if token in marks else [token])]


def _parts(total: int, count: int, rng: np.random.Generator) -> list[int]:
    """A number as a random sum of `count` numbers of at least 1; all such sums are equally probable."""
    cuts = np.sort(rng.choice(total - 1, count - 1, replace=False)) + 1
    sizes: list[int] = np.diff(np.concatenate([[0], cuts, [total]])).astype(int).tolist()
    return sizes


@dataclass(frozen=True)
class SpanTexts:
    """Makes batches of corrupted blocks. Each is a function of (seed, epoch, where the block begins)."""

    store: TokenStore
    tokenizer: TextTokenizer
    marks: Sequence[int]
    block: int
    density: float
    mean: float
    seed: int

    def __call__(self, rows: Rows, place: Place = (0, 0)) -> Batch:
        made = [self._example(row, place[0]) for row in rows.tolist()]
        sources, targets = zip(*made, strict=True)
        return collate(sources, targets, pad=self.tokenizer.pad, start=self.tokenizer.pad)

    def _example(self, row: int, epoch: int) -> tuple[Any, Any]:
        rng = np.random.default_rng([self.seed, epoch, row + self.block])
        ids = self.store.tokens[max(row, 0) : row + self.block].astype(np.int64)
        source, target = corrupted(ids, self.marks, rng, density=self.density, mean=self.mean)
        end = [] if self.tokenizer.end is None else [self.tokenizer.end]
        return [*source.tolist(), *end], [*target.tolist(), *end]


class SpanCorruptionTask(CorpusTask[Batch], TextToTextTask):
    """Plain text in blocks. Spans are cut out of each block, and the model restores them."""

    recipe: SpansRecipe
    style = "terminated"

    @classmethod
    def encoder(cls, recipe: CorpusRecipe) -> Encode:
        """Whole lines."""
        return encode_lines

    def __init__(self, recipe: SpansRecipe, folder: Path, device: torch.device) -> None:
        super().__init__(recipe, folder, device)
        self.data, texts = recipe.data, self._texts(self.corpus.train, recipe.seed)
        self.loader = Loader(self._plan, texts, **loader_options(recipe.training, device))

    @torch.inference_mode()
    def measured(self, model: nn.Module, store: TokenStore, poll: Poll) -> Values:
        """Loss and perplexity of the spans."""
        texts, total, tokens = self._texts(store, seed=0), 0.0, 0
        starts = self._usable(block_starts(len(store.tokens) + 1, self.data.block), len(store.tokens))
        for rows in split_rows(starts, max(1, self.recipe.training.batch_tokens // self.data.block)):
            poll()
            batch = texts(rows).to(self.device)
            logits = model(batch.source, batch.source_mask, batch.inputs, factored=self.factored)
            total += cross_entropy(logits, batch.labels, batch.labels_mask).item()
            tokens += batch.tokens
        return {"loss": total / tokens, "perplexity": math.exp(min(total / tokens, 100.0))}

    def _texts(self, store: TokenStore, seed: int) -> SpanTexts:
        data, marks = self.recipe.data, sentinels(self.tokenizer)
        return SpanTexts(store, self.tokenizer, marks, data.block, data.density, data.span, seed)

    def _plan(self, epoch: int) -> list[Rows]:
        tokens, training = len(self.corpus.train.tokens), self.recipe.training
        plan = plan_blocks(
            tokens + 1, self.data.block, batch_tokens=training.batch_tokens, seed=self.recipe.seed, epoch=epoch
        )
        usable = (self._usable(rows, tokens) for rows in plan)
        return [rows for rows in usable if len(rows)]

    def _usable(self, starts: Rows, tokens: int) -> Rows:
        """The blocks of at least two tokens; nothing can be cut out of one token."""
        return starts[np.minimum(starts + self.data.block, tokens) - np.maximum(starts, 0) >= 2]
