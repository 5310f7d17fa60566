"""Language modelling: every next token of a plain text, in packed blocks (Radford et al. 2019) or, for a recurrent
model, in streams that are read side by side, the state going on from block to block: the gradient stops where a block
begins, the memory does not (truncated back-propagation through time, as in Merity et al. 2018)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.data.batch import StreamBatch, TextBatch
from regard.data.formats.plain_text import Line
from regard.data.loader import Loader, Rows
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
from regard.errors import ConfigError, DataError
from regard.models.catalog import MODELS
from regard.models.elmo import Elmo
from regard.models.gpt import GptConfig
from regard.models.lstm import State
from regard.training.losses import Loss, cross_entropy
from regard.training.prepare.texts import TextPreparation, build_model, chunks
from regard.training.recipe.recipes import LanguageRecipe
from regard.training.safeguards import Poll
from regard.training.tasks.supervised import SupervisedTask, loading

B = TypeVar("B")
MEASURED_STREAMS = 10  # that a text is measured in: few, since each begins without a memory


class TextTask(SupervisedTask[B]):
    """What tasks on texts share: the tokenizer beside the weights, and a loss compiled where the model is."""

    recipe: Any
    device: torch.device
    tokenizer: TextTokenizer

    @cached_property
    def cross_entropy(self) -> Callable[..., Tensor]:
        """Over a whole vocabulary a loss takes as long as a small model."""
        compiled = self.recipe.training.compiles(self.device.type) and not self.factored
        return torch.compile(cross_entropy) if compiled else cross_entropy

    @cached_property
    def factored(self) -> bool:
        """Whether the loss takes the factors of logits."""
        return self.recipe.training.factored(self.device.type)

    def save(self, folder: Path) -> None:
        """Put the tokenizer beside the weights."""
        self.tokenizer.save(folder)


class LanguageTask(TextTask[B]):
    """Plain text, every token of which is predicted from those before it."""

    def __init__(self, recipe: LanguageRecipe, folder: Path, device: torch.device, poll: Poll) -> None:
        self.recipe, self.device, data = recipe, device, recipe.data
        preparation = TextPreparation(data, recipe.model, recipe.tokenizer, "separated", encode_lines)
        self.corpus = preparation.corpus(folder, poll)
        self.tokenizer, self.summary = self.corpus.tokenizer, f"{self.corpus.summary}; from {data.train}"
        if recipe.training.validate_every and len(self.corpus.valid.tokens) < 2:
            raise no_validation()
        self.loader = Loader(self._plan, self._maker(self.corpus.train), **loading(recipe.training, device))

    @property
    def rows(self) -> int:
        """Blocks of a batch."""
        return max(1, self.recipe.training.batch_tokens // self.recipe.data.block)

    @abstractmethod
    def _plan(self, epoch: int) -> list[Rows]:
        """The rows of every training batch of an epoch."""

    @abstractmethod
    def _measured_plan(self, tokens: int) -> list[Rows]:
        """The rows of every batch of a text to be measured on."""

    @abstractmethod
    def _maker(self, store: TokenStore) -> Callable[[Rows, tuple[int, int]], B]:
        """What turns rows of a text into a batch."""

    @abstractmethod
    def _total(self, model: Any, batch: B, carried: dict[str, Tensor]) -> Tensor:
        """The summed loss of a batch; what the next one goes on from is found and left in `carried`."""

    def validate(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        """Loss and perplexity over the whole validation text."""
        return self._measured(model, self.corpus.valid, poll)

    def test(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        """The same over the test text; nothing where the recipe has none."""
        return self._measured(model, self.corpus.test, poll) if len(self.corpus.test.tokens) > 1 else {}

    @torch.inference_mode()
    def _measured(self, model: nn.Module, store: TokenStore, poll: Poll) -> dict[str, float]:
        total, tokens = torch.zeros((), device=self.device, dtype=torch.float64), 0
        make, carried = self._maker(store), dict[str, Tensor]()
        for index, rows in enumerate(self._measured_plan(len(store.tokens))):
            poll()
            batch: Any = make(rows, (0, index))
            total += self._total(model, batch.to(self.device), carried)
            tokens += batch.tokens
        loss = total.item() / tokens
        return {"loss": loss, "perplexity": math.exp(min(loss, 100.0))}


class Blocks(LanguageTask[TextBatch]):
    """Packed blocks in random order, each read for itself."""

    def _plan(self, epoch: int) -> list[Rows]:
        tokens, block = len(self.corpus.train.tokens), self.recipe.data.block
        return plan_blocks(
            tokens, block, batch_tokens=self.recipe.training.batch_tokens, seed=self.recipe.seed, epoch=epoch
        )

    def _measured_plan(self, tokens: int) -> list[Rows]:
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

    def loss(self, model: Callable[..., Any], batch: TextBatch) -> Loss:
        """The cross-entropy of every next token; padding comes after the text, where nothing looks."""
        return Loss(self._total(model, batch, {}), batch.labels_mask.sum())

    def _total(self, model: Callable[..., Any], batch: TextBatch, carried: dict[str, Tensor]) -> Tensor:
        return self.cross_entropy(model(batch.inputs, factored=self.factored), batch.labels, batch.labels_mask)


class BothWays(Blocks):
    """Blocks in which every token is predicted twice: from those before it, and from those after it."""

    def build(self) -> nn.Module:
        """A model that knows how the tokenizer's tokens are written."""
        model, tokenizer = build_model(self.recipe.model, self.tokenizer), self.tokenizer
        assert isinstance(model, Elmo)
        model.learn_spelling(tokenizer.pieces(range(tokenizer.size)))
        return model

    def _total(self, model: Callable[..., Any], batch: TextBatch, carried: dict[str, Tensor]) -> Tensor:
        """The mean of the two directions' losses; the block's last label completes its text."""
        text = torch.cat([batch.inputs[:, :1], batch.labels], dim=1)
        output = model(text, functional.pad(batch.mask, (1, 0), value=True), factored=self.factored)
        nothing_after, nothing_before = ((0, 1), (1, 0))  # is foretold at the last and at the first place
        ahead, back = (
            self.cross_entropy(logits, functional.pad(labels, where), functional.pad(batch.mask, where))
            for logits, labels, where in (
                (output.logits, batch.labels, nothing_after), (output.previous, batch.inputs, nothing_before)
            )
        )  # fmt: skip
        return (ahead + back) / 2


class Streams(LanguageTask[StreamBatch]):
    """A recurrent model reads streams of the text side by side; its state goes on from batch to batch."""

    divisible, repeats = False, False  # a batch needs the state after the one before it

    def _plan(self, epoch: int) -> list[Rows]:
        block = self.recipe.data.block
        first = int(np.random.default_rng([self.recipe.seed, epoch]).integers(1, block + 1))
        return plan_streams(len(self.corpus.train.tokens), block, self.rows, first)

    def _measured_plan(self, tokens: int) -> list[Rows]:
        return plan_streams(tokens, self.recipe.data.block, min(self.rows, MEASURED_STREAMS))

    def _maker(self, store: TokenStore) -> NextInStreams:
        return NextInStreams(store)

    def build(self) -> nn.Module:
        """A model that knows the tokenizer's tokens."""
        return build_model(self.recipe.model, self.tokenizer)

    def loss(self, model: Callable[..., Any], batch: StreamBatch) -> Loss:
        """The cross-entropy of every next token, and the model's penalty for every one."""
        return Loss(self._total(model, batch, self.carried), batch.labels_mask.sum())

    def _total(self, model: Any, batch: StreamBatch, carried: dict[str, Tensor]) -> Tensor:
        reading = model.read(batch.inputs, _continued(carried, batch.begins))
        # A step that is not finite is skipped; the memory of it must not spoil the steps that follow.
        carried |= {str(i): layer.detach().nan_to_num(0.0, 0.0, 0.0) for i, layer in enumerate(reading.state)}
        logits = model.factors(reading.outputs) if self.factored else model.predict(reading.outputs)
        total = cross_entropy(logits, batch.labels, batch.labels_mask)
        return total + model.penalty(reading) * batch.labels_mask.sum() if model.training else total


def _continued(carried: dict[str, Tensor], begins: Tensor) -> State | None:
    """The state before a batch: what was carried, but zero where a text begins; a run that goes on with another number
    of streams (training.batch_tokens) begins anew."""
    state = [carried[str(layer)] for layer in range(len(carried))]
    if not state or state[0].shape[2] != len(begins):
        return None
    return [layer.masked_fill(begins[:, None], 0.0) for layer in state]


def language_task(recipe: LanguageRecipe, folder: Path, device: torch.device, poll: Poll) -> Blocks | Streams:
    """The task that presents texts in the order that the recipe's model needs."""
    order = MODELS[recipe.model.name].config.text_order  # type: ignore[attr-defined]  # of models of this task
    return LANGUAGE_TASKS[order](recipe, folder, device, poll)


LANGUAGE_TASKS: dict[str, type[Blocks | Streams]] = {"blocks": Blocks, "streams": Streams, "both_ways": BothWays}


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
