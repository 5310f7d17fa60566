"""What the tasks on plain texts share."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import ClassVar, TypeVar

import torch
from torch import nn

from regard.data.batch import TensorBatch
from regard.data.text.token_blocks import TokenStore
from regard.data.tokenizers.training import Style
from regard.families.language.data import CorpusRecipe, Encode, TextCorpus, prepare
from regard.training.safeguards import Poll
from regard.training.task import Values
from regard.training.text_task import TextTask, no_validation

B = TypeVar("B", bound=TensorBatch)


class CorpusTask(TextTask[B]):
    """A corpus of plain texts, of which a subclass makes batches."""

    style: ClassVar[Style] = "separated"  # of the tokenizer
    recipe: CorpusRecipe

    @classmethod
    @abstractmethod
    def encoder(cls, recipe: CorpusRecipe) -> Encode:
        """What turns lines into tokens."""

    @classmethod
    def prepare(cls, recipe: CorpusRecipe, folder: Path, poll: Poll) -> None:
        """Learn the vocabulary and encode the texts."""
        prepare(recipe, cls.style, cls.encoder(recipe), folder, poll, getattr(recipe.data, "sentinels", 0))

    def __init__(self, recipe: CorpusRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.corpus = TextCorpus.open(folder)
        self.tokenizer, self.summary = self.corpus.tokenizer, f"{self.corpus.summary}; from {recipe.data.train}"
        if recipe.training.validate_every and len(self.corpus.valid.tokens) < 2:
            raise no_validation()

    @abstractmethod
    def measured(self, model: nn.Module, store: TokenStore, poll: Poll) -> Values:
        """The metrics of a model on the texts of a store."""

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """The metrics on the whole validation text."""
        return self.measured(model, self.corpus.valid, poll)

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """The same over the test text; empty if the recipe has none."""
        return self.measured(model, self.corpus.test, poll) if len(self.corpus.test.tokens) > 1 else {}
