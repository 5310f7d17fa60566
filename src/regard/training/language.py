"""Language modelling: every next token of a plain text, in packed blocks (Radford et al. 2019)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from regard.data.batch import TextBatch
from regard.data.blocks import EncodedLine, NextTokens, block_starts, plan_blocks, split_rows
from regard.data.documents_text import Line
from regard.data.loader import Loader
from regard.data.text_tokenizers import TextTokenizer
from regard.errors import ConfigError, DataError
from regard.models.gpt import GptConfig
from regard.training.guards import Poll
from regard.training.objectives import Loss, cross_entropy
from regard.training.recipe import LanguageRecipe
from regard.training.supervised import SupervisedTask, loading
from regard.training.texts import TextPreparation, build_model, chunks

B = TypeVar("B")


class TextTask(SupervisedTask[B]):
    """What tasks on texts share: the tokenizer beside the weights."""

    tokenizer: TextTokenizer

    def save(self, folder: Path) -> None:
        """Put the tokenizer beside the weights."""
        self.tokenizer.save(folder)


class Language(TextTask[TextBatch]):
    """Plain text, every token of which is predicted from those before it."""

    def __init__(self, recipe: LanguageRecipe, folder: Path, device: torch.device, poll: Poll) -> None:
        self.recipe, self.device = recipe, device
        data, training = recipe.data, recipe.training
        preparation = TextPreparation(data, recipe.model, recipe.tokenizer, "gpt", encode_lines)
        self.corpus = preparation.corpus(folder, poll)
        self.tokenizer, self.summary = self.corpus.tokenizer, f"{self.corpus.summary}; from {data.train}"
        if training.validate_every and len(self.corpus.valid.tokens) < 2:
            raise no_validation()
        self.loader = Loader(self._plan, NextTokens(self.corpus.train, data.block), **loading(training, device))

    def _plan(self, epoch: int) -> list[Any]:
        tokens, training = len(self.corpus.train.tokens), self.recipe.training
        return plan_blocks(
            tokens, self.recipe.data.block, batch_tokens=training.batch_tokens, seed=self.recipe.seed, epoch=epoch
        )

    def build(self) -> nn.Module:
        """A model that can read a block."""
        model = build_model(self.recipe.model, self.tokenizer)
        config, block = model.config, self.recipe.data.block
        assert isinstance(config, GptConfig)
        if config.positions == "learned" and block > config.max_length:
            raise ConfigError(f"data.block is {block}, but the model has {config.max_length} positions; raise "
                              "model.max_length or lower data.block")  # fmt: skip
        return model

    def loss(self, model: Callable[..., Any], batch: TextBatch) -> Loss:
        """The cross-entropy of every next token; padding comes after the text, where nothing looks."""
        total = cross_entropy(model(batch.inputs), batch.labels, batch.labels_mask)
        return Loss(total, batch.labels_mask.sum())

    def validate(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        """Loss and perplexity over the whole validation text."""
        return self._measured(model, NextTokens(self.corpus.valid, self.recipe.data.block), poll)

    def test(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        """The same over the test text; nothing where the recipe has none."""
        if len(self.corpus.test.tokens) < 2:
            return {}
        return self._measured(model, NextTokens(self.corpus.test, self.recipe.data.block), poll)

    @torch.inference_mode()
    def _measured(self, model: nn.Module, blocks: NextTokens, poll: Poll) -> dict[str, float]:
        total, tokens = torch.zeros((), device=self.device, dtype=torch.float64), 0
        starts = block_starts(len(blocks.store.tokens), blocks.block)
        for rows in split_rows(starts, max(1, self.recipe.training.batch_tokens // blocks.block)):
            poll()
            batch = blocks(rows)
            total += self.loss(model, batch.to(self.device)).total
            tokens += batch.tokens
        loss = total.item() / tokens
        return {"loss": loss, "perplexity": math.exp(min(loss, 100.0))}


def encode_lines(tokenizer: TextTokenizer, lines: Iterable[Line]) -> Iterator[EncodedLine]:
    """The tokens of lines; an end token stands between two documents."""
    begun = False
    for some in chunks(lines):
        cut = tokenizer.library.encode_batch_fast([line.text for line in some], add_special_tokens=False)
        for line, encoding in zip(some, cut, strict=True):
            between = [tokenizer.end] if begun and line.first and tokenizer.end is not None else []
            begun = True
            yield EncodedLine([*between, *encoding.ids], line.first)


def no_validation() -> DataError:
    """For a recipe that wants to validate with nothing to validate on."""
    return DataError(
        "there is no text for validation; give data.valid, set more aside with data.split, "
        "or switch validation off with training.validate_every = 0"
    )
