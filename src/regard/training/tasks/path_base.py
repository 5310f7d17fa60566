"""What tasks on paths through houses share."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import nn

from regard.data.batch import TensorBatch
from regard.data.loader import Rows
from regard.data.paths.batches import PathRows
from regard.data.paths.features import FEATURES, LOCATIONS
from regard.data.tokenizers.training import VocabularyConfig
from regard.data.tokenizers.unknown_words import unknown_tokens
from regard.errors import ConfigError
from regard.models.catalog import MODELS
from regard.models.path_lstm import PathLstmConfig
from regard.models.vilbert import VilbertConfig
from regard.training.prepare.initial_model import build_two_streams
from regard.training.prepare.paths import PATH_PARTS, PathPart, PathPreparation
from regard.training.recipe.model_section import ModelSection, WordsSection
from regard.training.recipe.path_sections import PathsSection
from regard.training.recipe.training_sections import ExampleTrainingSection
from regard.training.safeguards import Poll
from regard.training.tasks.text_base import TextTask

B = TypeVar("B", bound=TensorBatch)


class PathRecipe(Protocol):
    """The sections that all recipes of paths have."""

    @property
    def seed(self) -> int: ...
    @property
    def model(self) -> ModelSection: ...
    @property
    def words(self) -> WordsSection: ...
    @property
    def data(self) -> PathsSection: ...
    @property
    def tokenizer(self) -> VocabularyConfig: ...
    @property
    def training(self) -> ExampleTrainingSection: ...


class PathTask(TextTask[B]):
    """Instructions with paths through houses; tokenizer and settings are saved beside the weights."""

    @classmethod
    def prepare(cls, recipe: PathRecipe, folder: Path, poll: Poll) -> None:
        """Read the paths, make the candidates, and learn the vocabulary."""
        _preparation(recipe).prepare(folder, poll)

    def __init__(self, recipe: PathRecipe, folder: Path, device: torch.device) -> None:
        self.device = device
        self.corpus = _preparation(recipe).open(folder)
        self.tokenizer = self.corpus.tokenizer
        found = {part: self.corpus.rows(part) for part in PATH_PARTS}
        self.rows: dict[PathPart, PathRows] = {part: rows for part, (rows, _) in found.items()}
        cut, tokens = sum(count for _, count in found.values()), [t for ids in self.rows["train"].ids for t in ids]
        unknown = unknown_tokens({"text": tokens.count(self.tokenizer.unknown or 0) / max(1, len(tokens))})
        self.summary = (
            f"{self.corpus.summary}; {cut:,} cut to {recipe.data.longest} tokens{unknown}; from {recipe.data.train}"
        )

    def new_model(self, recipe: PathRecipe, head: str) -> nn.Module:
        """A model with a head, as wide as the features of steps."""
        heads = {"head": head} if "head" in MODELS[recipe.model.name].config.model_fields else {}
        model = build_two_streams(
            recipe.model, recipe.words.init, self.tokenizer,
            region_features=FEATURES, region_places=LOCATIONS, **heads,
        )  # fmt: skip
        assert isinstance(model.config, VilbertConfig | PathLstmConfig)
        longest = model.config.longest
        if recipe.data.longest > longest:
            raise ConfigError(f"data.longest is {recipe.data.longest}, but the model reads {longest} tokens; lower it")
        return model

    def save(self, folder: Path) -> None:
        """Write the tokenizer, and how candidates are made, beside the weights."""
        super().save(folder)
        self.corpus.settings.save(folder)


def _preparation(recipe: PathRecipe) -> PathPreparation:
    return PathPreparation(recipe.data, recipe.tokenizer, recipe.model.init or recipe.words.init, recipe.seed)


def shuffled(rows: Rows, batch: int, seed: int, epoch: int) -> list[Rows]:
    """The rows of every batch of an epoch: every row once, in batches whose sizes differ by one at most."""
    order = np.random.default_rng([seed, epoch]).permutation(rows)
    return np.array_split(order, -(-len(order) // batch))


def in_order(count: int, batch: int) -> list[Rows]:
    """All rows in order."""
    return np.array_split(np.arange(count), max(1, -(-count // batch))) if count else []
