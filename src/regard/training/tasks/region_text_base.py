"""What tasks on texts and regions share."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from regard.checkpoints.models import identify
from regard.config import Config
from regard.data.batch import RegionTextBatch
from regard.data.loader import Loader, Rows
from regard.data.vision_language.batches import PairMaker
from regard.data.vision_language.finders import PLACES, FinderConfig
from regard.data.vision_language.store import RegionTexts
from regard.errors import ConfigError, DataError
from regard.inference.pipelines.region_readers import save_finder
from regard.models.vilbert import VilbertOutput
from regard.training.prepare.initial_model import build_two_streams, initial_folder
from regard.training.prepare.region_texts import RegionTextPreparation, TextKind
from regard.training.safeguards import Poll
from regard.training.tasks.base import Forward, SupervisedTask, Values, loader_options
from regard.training.tasks.vision_language_recipe import RegionTextRecipe


class RegionTextTask(SupervisedTask[RegionTextBatch]):
    """Texts and images as regions; the tokenizer and the way regions are found are saved beside the weights."""

    kind: ClassVar[TextKind] = "captions"  # the texts that it learns from
    head: ClassVar[str]  # of the model
    recipe: RegionTextRecipe

    @classmethod
    def prepare(cls, recipe: RegionTextRecipe, folder: Path, poll: Poll) -> None:
        """Find the regions of all images and encode the texts."""
        _preparation(recipe, cls.kind).prepare(folder, poll)

    def __init__(self, recipe: RegionTextRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.corpus = _preparation(recipe, self.kind).open(folder)
        self.tokenizer, self.summary = self.corpus.tokenizer, f"{self.corpus.summary}; from {recipe.data.train}"
        if recipe.training.validate_every and not len(self.corpus.valid):
            raise DataError(
                "there is no text about an image for validation; give data.valid, or switch validation off with "
                "training.validate_every = 0"
            )
        self.loader = Loader(self._plan, self.maker(), **loader_options(recipe.training, device))

    def pairs(self, store: RegionTexts) -> PairMaker:
        """Batches of the texts of a store with their images."""
        return PairMaker(store, self.tokenizer.pad, _longest(self.recipe))

    @abstractmethod
    def maker(self) -> Any:
        """What makes training batches of the numbers of texts."""

    def build(self) -> nn.Module:
        """A model with the head of the task, for regions of the size that was prepared."""
        features, classes = self.corpus.train.features.shape[2], self.corpus.train.classes
        changes: dict[str, Any] = {"head": self.head, **self.head_values}
        if not self.recipe.model.init:
            changes |= {"region_features": features, "region_places": PLACES}
            changes |= {"region_targets": "features"} if classes is None else {"region_classes": classes.shape[2]}
        model = build_two_streams(self.recipe.model, self.recipe.words.init, self.tokenizer, **changes)
        if (known := model.config.region_features) != features:  # type: ignore[union-attr]
            raise ConfigError(
                f"a region has {features} numbers, but the model of model.init reads {known}; set data.regions as there"
            )
        return model

    @property
    def head_values(self) -> dict[str, Any]:
        """Values of the model's configuration that belong to the head."""
        return {}

    @staticmethod
    def output(model: Forward, batch: RegionTextBatch) -> VilbertOutput:
        """The output of the model for a batch."""
        read: VilbertOutput = model(batch.inputs, batch.mask, batch.features.float(), batch.places, batch.region_mask)
        return read

    def in_order(self, store: RegionTexts, texts: Rows | None = None) -> list[Rows]:
        """All texts, or some, in batches."""
        rows = np.arange(len(store)) if texts is None else texts
        return np.array_split(rows, -(-len(rows) // self.recipe.training.batch))

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """The metrics of the task on the validation texts."""
        return self.measured(model, self.corpus.valid, poll)

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """The same on the test texts; empty if the recipe has none."""
        return self.measured(model, self.corpus.test, poll) if len(self.corpus.test) else {}

    @abstractmethod
    def measured(self, model: nn.Module, store: RegionTexts, poll: Poll) -> Values:
        """The metrics of a model on some texts."""

    def save(self, folder: Path) -> None:
        """Write the tokenizer and how regions are found beside the weights."""
        self.tokenizer.save(folder)
        save_finder(self.recipe.data.regions, folder)

    def _plan(self, epoch: int) -> list[Rows]:
        order = np.random.default_rng([self.recipe.seed, epoch]).permutation(len(self.corpus.train))
        batch = min(self.recipe.training.batch, len(order))
        return np.split(order[: len(order) // batch * batch], len(order) // batch)


def _preparation(recipe: RegionTextRecipe, kind: TextKind) -> RegionTextPreparation:
    model = recipe.model
    if model.init and not _same(FinderConfig.load(initial_folder(model.init)), recipe.data.regions):
        raise ConfigError(f"{model.init} was trained with other regions; set [data.regions] as its regions.json says")
    return RegionTextPreparation(
        recipe.data, kind, model.init or recipe.words.init, recipe.tokenizer, _longest(recipe), recipe.seed
    )


def _same(first: FinderConfig, second: FinderConfig) -> bool:
    """Whether regions are found in the same way; a copy of the model that finds them is in another folder."""
    return bool(first.model) == bool(second.model) and first.at(second.model) == second


def _longest(recipe: RegionTextRecipe) -> int:
    """The most tokens of a text."""
    if init := recipe.model.init or recipe.words.init:
        config: Config = identify(initial_folder(init))[1]
    else:
        config = recipe.model.config(source_vocab=8, target_vocab=8, pad=0)
    return min(recipe.data.longest, config.longest)  # type: ignore[attr-defined]
