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
from regard.data.formats.lines import Line
from regard.data.loader import Loader, Rows
from regard.data.sources import PARTS
from regard.data.text.masking import MaskedTexts, Masking, pieces_of, segments
from regard.data.text.pair_loader import plan_batches
from regard.data.text.token_blocks import EncodedLine, TokenStore, split_rows
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import ConfigError, DataError
from regard.families.language.bert import BertConfig, BertOutput
from regard.families.language.data import CorpusRecipe, Encode, encoded
from regard.families.language.recipe import MaskedRecipe, MaskedSection
from regard.families.language.task import CorpusTask
from regard.training.initial_model import build_model
from regard.training.losses import Loss, cross_entropy
from regard.training.safeguards import Poll
from regard.training.task import Forward, Values, loader_options

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

    @torch.inference_mode()
    def measured(self, model: nn.Module, store: TokenStore, poll: Poll) -> Values:
        """Both losses together, perplexity and accuracy of masked words, and the accuracy of next sentences."""
        texts = self._texts(store, VALIDATION_SEED)
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

    def _rows(self) -> int:
        return max(1, self.recipe.training.batch_tokens // self.recipe.data.block)


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
