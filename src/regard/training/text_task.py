"""What tasks on texts share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from regard.data.batch import Batch, TensorBatch
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import DataError
from regard.training.initial_model import build_model
from regard.training.losses import Loss, cross_entropy
from regard.training.recipe.sections import AnswerTrainingSection
from regard.training.task import Forward, SupervisedTask

B = TypeVar("B", bound=TensorBatch)


class TextTask(SupervisedTask[B]):
    """A task that saves its tokenizer beside the weights, and whose loss is compiled if the model is."""

    tokenizer: TextTokenizer

    @cached_property
    def cross_entropy(self) -> Callable[..., Tensor]:
        """The loss over a vocabulary, compiled if the model is: uncompiled it takes as long as a small model."""
        compiled = self.recipe.training.compiles(self.device.type) and not self.factored
        return torch.compile(cross_entropy) if compiled else cross_entropy

    @cached_property
    def factored(self) -> bool:
        """Whether the loss gets unmultiplied logits."""
        return self.recipe.training.factored(self.device.type)

    def save(self, folder: Path) -> None:
        """Write the tokenizer beside the weights."""
        self.tokenizer.save(folder)


class TextToTextTask(TextTask[Batch]):
    """A model that reads a text and writes another."""

    def build(self) -> nn.Module:
        """A model with the vocabulary of the tokenizer."""
        return build_model(self.recipe.model, self.tokenizer)

    def loss(self, model: Forward, batch: Batch) -> Loss:
        """The cross-entropy of the answers."""
        training = self.recipe.training
        assert isinstance(training, AnswerTrainingSection)
        logits = model(batch.source, batch.source_mask, batch.inputs, batch.labels_mask, factored=self.factored)
        total = self.cross_entropy(logits, batch.labels, batch.labels_mask, training.label_smoothing)
        return Loss(total, batch.labels_mask.sum())


def no_validation() -> DataError:
    """The error of a recipe that validates but has no validation data."""
    return DataError(
        "there is no text for validation; give data.valid, set more aside with data.split, "
        "or switch validation off with training.validate_every = 0"
    )
