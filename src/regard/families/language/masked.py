"""Masked language modelling with next-sentence prediction (Devlin et al. 2019), from plain documents."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from regard.data.batch import TextBatch
from regard.data.formats.plain_text import Line
from regard.data.loader import Loader, Rows
from regard.data.text.masking import MaskedTexts, Masking, pieces_of, segments
from regard.data.text.pair_loader import plan_batches
from regard.data.text.token_blocks import EncodedLine, TokenStore, split_rows
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import ConfigError, DataError
from regard.families.language.bert import BertConfig, BertOutput
from regard.families.language.prepare import TextPreparation, chunks
from regard.families.language.recipe import MaskedRecipe, MaskedSection
from regard.training.initial_model import build_model
from regard.training.losses import Loss, cross_entropy
from regard.training.safeguards import Poll
from regard.training.task import Forward, Values, loader_options
from regard.training.text_task import TextTask, no_validation

VALIDATION_SEED = 0  # of the masks of every validation, the same for every run


class MaskedTask(TextTask[TextBatch]):
    """Documents. The model predicts masked words, and whether two segments follow each other."""

    recipe: MaskedRecipe

    @classmethod
    def prepare(cls, recipe: MaskedRecipe, folder: Path, poll: Poll) -> None:
        """Learn the vocabulary and encode the texts."""
        _preparation(recipe).prepare(folder, poll)

    def __init__(self, recipe: MaskedRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        data, training = recipe.data, recipe.training
        self.capacity = _capacity(data)
        self.corpus = _preparation(recipe).open(folder)
        self.tokenizer, self.summary = self.corpus.tokenizer, f"{self.corpus.summary}; from {data.train}"
        self.masking = Masking(self.tokenizer, data.share, data.whole_words)
        if training.validate_every and not len(self.corpus.valid.tokens):
            raise no_validation()
        self.train = self._texts(self.corpus.train, recipe.seed, "data.train")
        self.loader = Loader(self._plan, self.train, **loader_options(training, device))

    def build(self) -> nn.Module:
        """A model with the heads that the task needs."""
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
        return self._losses(model(batch.inputs, batch.mask, batch.segments, factored=self.factored), batch)

    def _losses(self, output: BertOutput, batch: TextBatch) -> Loss:
        assert output.logits is not None
        total = cross_entropy(output.logits, batch.labels, batch.labels_mask)
        masked = batch.labels_mask.sum()
        if batch.follows is not None:
            assert output.next_sentence is not None
            total = total + masked * functional.cross_entropy(output.next_sentence.float(), batch.follows)
        return Loss(total, masked)

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """Both losses together, perplexity and accuracy of masked words, and the accuracy of next sentences."""
        return self._measured(model, self._texts(self.corpus.valid, VALIDATION_SEED, "data.valid"), poll)

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """The same over the test text; empty if the recipe has none."""
        if not len(self.corpus.test.tokens):
            return {}
        return self._measured(model, self._texts(self.corpus.test, VALIDATION_SEED, "data.test"), poll)

    @torch.inference_mode()
    def _measured(self, model: nn.Module, texts: MaskedTexts, poll: Poll) -> Values:
        sums = torch.zeros(5, dtype=torch.float64)  # masked words: loss, right, all; next sentences: loss, right
        for rows in split_rows(np.arange(len(texts.parts)), self._rows()):
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

    def _texts(self, store: TokenStore, seed: int, where: str) -> MaskedTexts:
        pairs = self.recipe.data.next_sentence
        parts = segments(store, self.capacity)
        if pairs and (len(store.documents) < 3 or all(part.end - part.begin == 1 for part in parts)):
            raise DataError(
                f"{where}: next sentences need several documents of several lines each; separate documents as "
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

    def _rows(self) -> int:
        return max(1, self.recipe.training.batch_tokens // self.recipe.data.block)


def _capacity(data: MaskedSection) -> int:
    """Tokens of a block that are text; the others are [CLS] and [SEP]."""
    return data.block - (3 if data.next_sentence else 2)


def _preparation(recipe: MaskedRecipe) -> TextPreparation:
    data = recipe.data
    longest = _capacity(data) // 2 if data.next_sentence else _capacity(data)
    return TextPreparation(data, recipe.model, recipe.tokenizer, "enclosed", LineEncoder(longest))


@dataclass(frozen=True)
class LineEncoder:
    """Encodes lines as tokens; a line longer than a segment is split into several."""

    longest: int

    def __call__(self, tokenizer: TextTokenizer, lines: Iterable[Line]) -> Iterator[EncodedLine]:
        for some in chunks(lines):
            cut = tokenizer.library.encode_batch_fast([line.text for line in some], add_special_tokens=False)
            for line, encoding in zip(some, cut, strict=True):
                for number, ids in enumerate(pieces_of(encoding.ids, self.longest)):
                    yield EncodedLine(ids, line.first and number == 0)
