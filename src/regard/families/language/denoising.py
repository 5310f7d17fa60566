"""Texts of which a part is hidden, and the model restores it: masked words, or spans that were cut out.

Masked words come with next-sentence prediction (Devlin et al. 2019). Spans (Raffel et al. 2020) are cut out of a plain
text, and the model writes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from regard.data.batch import Batch, TextBatch, collate
from regard.data.formats.lines import Line
from regard.data.loader import Loader, Place, Rows
from regard.data.sources import PARTS
from regard.data.text.masking import MaskedTexts, Masking, pieces_of, segments
from regard.data.text.pair_loader import plan_batches
from regard.data.text.token_blocks import EncodedLine, TokenStore, block_starts, plan_blocks, split_rows
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import CheckpointError, ConfigError, DataError
from regard.families.language.bert import BertConfig
from regard.families.language.data import CorpusRecipe, CorpusTask, Encode, encoded
from regard.families.language.modelling import encode_lines
from regard.families.language.recipe import MaskedRecipe, MaskedSection, SpansRecipe
from regard.training.initial_model import build_model
from regard.training.losses import Loss, cross_entropy
from regard.training.safeguards import Poll
from regard.training.task import Forward, Values, loader_options
from regard.training.text_task import TextToTextTask

VALIDATION_SEED = 0  # of the masks of every validation, the same for every run


class MaskedTask(CorpusTask[TextBatch]):
    """Documents. The model predicts masked words, and whether two segments follow each other."""

    recipe: MaskedRecipe
    style = "enclosed"

    @classmethod
    def encoder(cls, recipe: CorpusRecipe) -> Encode:
        """Lines, of which those longer than a segment are split."""
        assert isinstance(recipe, MaskedRecipe)
        capacity = _capacity(recipe.data)
        return LineEncoder(capacity // 2 if recipe.data.next_sentence else capacity)

    def __init__(self, recipe: MaskedRecipe, folder: Path, device: torch.device) -> None:
        super().__init__(recipe, folder, device)
        data = recipe.data
        self.capacity = _capacity(data)
        self.masking = Masking(self.tokenizer, data.share, data.whole_words)
        self.train = self._texts(self.corpus.train, recipe.seed)
        self.loader = Loader(self._plan, self.train, **loader_options(recipe.training, device))

    def build(self) -> nn.Module:
        head = "pretraining" if self.recipe.data.next_sentence else "masked"
        if self.recipe.model.overrides.get("head", "none") not in ("none", head):
            raise ConfigError(f"model.head comes from the task, which needs {head!r}; leave it out of the recipe")
        model = build_model(self.recipe.model, self.tokenizer, head=head)
        config, block = model.config, self.recipe.data.block
        assert isinstance(config, BertConfig)
        if block > config.longest:
            raise ConfigError(
                f"data.block is {block}, but the model reads {config.longest} tokens; raise model.max_length"
            )
        return model

    def loss(self, model: Forward, batch: TextBatch) -> Loss:
        """The mean cross-entropy of masked words plus that of next sentences, times the number of masked words."""
        output = model(batch.inputs, batch.mask, batch.segments, factored=self.factored)
        total = cross_entropy(output.logits, batch.labels, batch.labels_mask)
        masked = batch.labels_mask.sum()
        if batch.follows is not None:
            total = total + masked * functional.cross_entropy(output.next_sentence.float(), batch.follows)
        return Loss(total, masked)

    @torch.inference_mode()
    def measured(self, model: nn.Module, store: TokenStore, poll: Poll) -> Values:
        """Both losses together, perplexity and accuracy of masked words, and the accuracy of next sentences."""
        texts = self._texts(store, VALIDATION_SEED)
        sums = torch.zeros(5, dtype=torch.float64)  # masked words: loss, right, all; next sentences: loss, right
        at_once = max(1, self.recipe.training.batch_tokens // self.recipe.data.block)
        for rows in split_rows(np.arange(len(texts.parts)), at_once):
            poll()
            batch = texts(rows, (0, 0)).to(self.device)
            output = model(batch.inputs, batch.mask, batch.segments)
            right = (output.logits.argmax(-1) == batch.labels) & batch.labels_mask
            words = cross_entropy(output.logits, batch.labels, batch.labels_mask)
            following = torch.zeros(2)
            if batch.follows is not None:
                wrong = functional.cross_entropy(output.next_sentence.float(), batch.follows, reduction="sum")
                following = torch.stack([wrong, (output.next_sentence.argmax(-1) == batch.follows).sum()])
            sums += torch.tensor([words.item(), right.sum().item(), batch.tokens, *following.tolist()])
        words_loss, words_right, masked, following_loss, following_right = sums.tolist()
        values = {"perplexity": math.exp(min(words_loss / masked, 100.0)), "accuracy": words_right / masked}
        if not texts.pairs:
            return {"loss": words_loss / masked, **values}
        count = len(texts.parts)
        loss = words_loss / masked + following_loss / count
        return {"loss": loss, **values, "next_sentence": following_right / count}

    def _texts(self, store: TokenStore, seed: int) -> MaskedTexts:
        pairs = self.recipe.data.next_sentence
        parts = segments(store, self.capacity)
        if pairs and (len(store.documents) < 3 or all(part.end - part.begin == 1 for part in parts)):
            where = next(part for part in PARTS if getattr(self.corpus, part) is store)
            raise DataError(
                f"data.{where}: next sentences need several documents of several lines each; separate documents as "
                "data.documents says, or set data.next_sentence = false"
            )
        return MaskedTexts(store, self.masking, parts, self.capacity, pairs, seed)

    def _plan(self, epoch: int) -> list[Rows]:
        offsets = self.corpus.train.lines.offsets
        lengths = np.array([min(offsets[part.end] - offsets[part.begin], self.capacity) for part in self.train.parts])
        sizes = np.full_like(lengths, self.recipe.data.block) if self.train.pairs else lengths + 2
        return plan_batches(
            sizes, sizes, batch_tokens=self.recipe.training.batch_tokens, seed=self.recipe.seed, epoch=epoch
        )


def _capacity(data: MaskedSection) -> int:
    """Tokens of a block that are text; the others are [CLS] and [SEP]."""
    return data.block - (3 if data.next_sentence else 2)


@dataclass(frozen=True)
class LineEncoder:
    """Encodes lines as tokens; a line longer than a segment is split into several."""

    longest: int

    def __call__(self, tokenizer: TextTokenizer, lines: Iterable[Line]) -> Iterator[EncodedLine]:
        for line, whole in encoded(tokenizer, lines):
            for number, ids in enumerate(pieces_of(whole, self.longest)):
                yield EncodedLine(ids, line.first and number == 0)


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
    return np.diff(np.concatenate([[0], cuts, [total]])).astype(int).tolist()


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
        return encode_lines

    def __init__(self, recipe: SpansRecipe, folder: Path, device: torch.device) -> None:
        super().__init__(recipe, folder, device)
        self.data, texts = recipe.data, self._texts(self.corpus.train, recipe.seed)
        self.loader = Loader(self._plan, texts, **loader_options(recipe.training, device))

    @torch.inference_mode()
    def measured(self, model: nn.Module, store: TokenStore, poll: Poll) -> Values:
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
