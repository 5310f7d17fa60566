"""Language modelling: every next token of a plain text.

Most models read packed blocks in random order (Radford et al. 2019). Recurrent models read streams in parallel and
carry their state from batch to batch: gradients stop at the beginning of a batch, the state does not (truncated
back-propagation through time, as in Merity et al. 2018).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.data.batch import StreamBatch, TensorBatch, TextBatch
from regard.data.formats.lines import Line
from regard.data.loader import Loader, Place, Rows
from regard.data.text.token_blocks import (
    EncodedLine,
    NextInStreams,
    NextTokens,
    TokenStore,
    block_starts,
    plan_blocks,
    plan_streams,
    split_rows,
)
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import ConfigError
from regard.families.language.data import CorpusRecipe, CorpusTask, Encode, encoded
from regard.families.language.elmo import Elmo
from regard.families.language.gpt import GptConfig
from regard.families.language.lstm import State
from regard.families.language.recipe import LanguageRecipe, StreamModel
from regard.training.initial_model import build_model
from regard.training.losses import Loss, cross_entropy
from regard.training.safeguards import Poll
from regard.training.task import Forward, Values, loader_options

B = TypeVar("B", bound=TensorBatch)
MEASURED_STREAMS = 10  # streams of a validation text: few, since each begins without a state


class LanguageTask(CorpusTask[B]):
    """Plain text. The model predicts every token from those before it."""

    recipe: LanguageRecipe

    @classmethod
    def encoder(cls, recipe: CorpusRecipe) -> Encode:
        return encode_lines

    @classmethod
    def open(cls, recipe: LanguageRecipe, folder: Path, device: torch.device) -> LanguageTask[Any]:
        """The task that presents texts in the order that the recipe's model needs."""
        return TEXT_ORDERS[recipe.text_order](recipe, folder, device)

    def __init__(self, recipe: LanguageRecipe, folder: Path, device: torch.device) -> None:
        super().__init__(recipe, folder, device)
        self.loader = Loader(self._plan, self._maker(self.corpus.train), **loader_options(recipe.training, device))

    @property
    def rows(self) -> int:
        """Blocks of a batch."""
        return max(1, self.recipe.training.batch_tokens // self.recipe.data.block)

    @abstractmethod
    def _plan(self, epoch: int) -> list[Rows]:
        """The rows of every training batch of an epoch."""

    @abstractmethod
    def _validation_plan(self, tokens: int) -> list[Rows]:
        """The rows of every batch of a validation text."""

    @abstractmethod
    def _maker(self, store: TokenStore) -> Callable[[Rows, Place], B]:
        """A function that turns rows of a text into a batch."""

    @abstractmethod
    def _total(self, model: Any, batch: B, carried: dict[str, Tensor]) -> Tensor:
        """The summed loss of a batch. State that passes from batch to batch is read from and written to `carried`."""

    @torch.inference_mode()
    def measured(self, model: nn.Module, store: TokenStore, poll: Poll) -> Values:
        total, tokens = torch.zeros((), device=self.device, dtype=torch.float64), 0
        make, carried = self._maker(store), dict[str, Tensor]()
        for index, rows in enumerate(self._validation_plan(len(store.tokens))):
            poll()
            batch = make(rows, (0, index))
            total += self._total(model, batch.to(self.device), carried)
            tokens += batch.tokens
        loss = total.item() / tokens
        return {"loss": loss, "perplexity": math.exp(min(loss, 100.0))}


class BlockTask(LanguageTask[TextBatch]):
    """Packed blocks in random order, each read independently."""

    def _plan(self, epoch: int) -> list[Rows]:
        tokens, block = len(self.corpus.train.tokens), self.recipe.data.block
        return plan_blocks(
            tokens, block, batch_tokens=self.recipe.training.batch_tokens, seed=self.recipe.seed, epoch=epoch
        )

    def _validation_plan(self, tokens: int) -> list[Rows]:
        return split_rows(block_starts(tokens, self.recipe.data.block), self.rows)

    def _maker(self, store: TokenStore) -> NextTokens:
        return NextTokens(store, self.recipe.data.block)

    def build(self) -> nn.Module:
        """A model that can read a block."""
        model = build_model(self.recipe.model, self.tokenizer)
        config, block = model.config, self.recipe.data.block
        assert isinstance(config, GptConfig)
        if config.positions == "learned" and block > config.max_length:
            raise ConfigError(f"data.block is {block}, but the model has {config.max_length} positions; raise "
                              "model.max_length or lower data.block")  # fmt: skip
        return model

    def loss(self, model: Forward, batch: TextBatch) -> Loss:
        """The cross-entropy of every next token. Padding follows the text, so no token can attend to it."""
        return Loss(self._total(model, batch, {}), batch.labels_mask.sum())

    def _total(self, model: Forward, batch: TextBatch, carried: dict[str, Tensor]) -> Tensor:
        return self.cross_entropy(model(batch.inputs, factored=self.factored), batch.labels, batch.labels_mask)


class BidirectionalTask(BlockTask):
    """Blocks in which every token is predicted twice: from the tokens before it, and from those after it."""

    def build(self) -> nn.Module:
        """A model that knows how the tokenizer's tokens are spelled."""
        model, tokenizer = build_model(self.recipe.model, self.tokenizer), self.tokenizer
        assert isinstance(model, Elmo)
        model.learn_spelling(tokenizer.pieces(range(tokenizer.size)))
        return model

    def _total(self, model: Forward, batch: TextBatch, carried: dict[str, Tensor]) -> Tensor:
        """The mean loss of the two directions; the last label of a block completes its text."""
        text = torch.cat([batch.inputs[:, :1], batch.labels], dim=1)
        output = model(text, functional.pad(batch.mask, (1, 0), value=True), factored=self.factored)
        no_next, no_previous = ((0, 1), (1, 0))  # the last position has no next token, the first no previous one
        ahead, back = (
            self.cross_entropy(logits, functional.pad(labels, where), functional.pad(batch.mask, where))
            for logits, labels, where in (
                (output.logits, batch.labels, no_next), (output.previous, batch.inputs, no_previous)
            )
        )  # fmt: skip
        return (ahead + back) / 2


class StreamTask(LanguageTask[StreamBatch]):
    """A recurrent model reads streams of the text in parallel; its state is carried from batch to batch."""

    divisible, capturable = False, False  # a batch needs the state after the batch before it

    def _plan(self, epoch: int) -> list[Rows]:
        block = self.recipe.data.block
        first = int(np.random.default_rng([self.recipe.seed, epoch]).integers(1, block + 1))
        return plan_streams(len(self.corpus.train.tokens), block, self.rows, first)

    def _validation_plan(self, tokens: int) -> list[Rows]:
        return plan_streams(tokens, self.recipe.data.block, min(self.rows, MEASURED_STREAMS))

    def _maker(self, store: TokenStore) -> NextInStreams:
        return NextInStreams(store)

    def build(self) -> nn.Module:
        return build_model(self.recipe.model, self.tokenizer)

    def loss(self, model: Forward, batch: StreamBatch) -> Loss:
        """The cross-entropy of every next token, plus the model's penalty per token."""
        assert isinstance(model, StreamModel)
        return Loss(self._total(model, batch, self.carried), batch.labels_mask.sum())

    def _total(self, model: StreamModel, batch: StreamBatch, carried: dict[str, Tensor]) -> Tensor:
        reading = model.read(batch.inputs, _continued(carried, batch.begins))
        # A step that is not finite is skipped; its state must not spoil the steps that follow.
        carried |= {str(i): layer.detach().nan_to_num(0.0, 0.0, 0.0) for i, layer in enumerate(reading.state)}
        logits = model.factors(reading.outputs) if self.factored else model.predict(reading.outputs)
        total = cross_entropy(logits, batch.labels, batch.labels_mask)
        assert isinstance(model, nn.Module)
        return total + model.penalty(reading) * batch.labels_mask.sum() if model.training else total


TEXT_ORDERS: dict[str, type[BlockTask | StreamTask]] = {
    "blocks": BlockTask, "streams": StreamTask, "both_ways": BidirectionalTask,
}  # fmt: skip


def _continued(carried: dict[str, Tensor], begins: Tensor) -> State | None:
    """The state before a batch: what was carried, but zero where a text begins.

    A run that resumes with another number of streams (training.batch_tokens) starts without a state.
    """
    state = [carried[str(layer)] for layer in range(len(carried))]
    if not state or state[0].shape[2] != len(begins):
        return None
    return [layer.masked_fill(begins[:, None], 0.0) for layer in state]


def encode_lines(tokenizer: TextTokenizer, lines: Iterable[Line]) -> Iterator[EncodedLine]:
    """The tokens of lines; an end token stands between two documents."""
    begun = False
    for line, ids in encoded(tokenizer, lines):
        between = [tokenizer.end] if begun and line.first and tokenizer.end is not None else []
        begun = True
        yield EncodedLine([*between, *ids], line.first)
