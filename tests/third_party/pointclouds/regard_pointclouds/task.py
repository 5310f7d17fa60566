"""Learning to tell shapes apart: recipe, loss, metrics, and `regard evaluate`."""

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import PositiveInt
from torch import nn
from torch.nn import functional

from regard.config import Config
from regard.data.loader import Loader
from regard.errors import UsageError
from regard.families.catalog import MODELS
from regard.families.contract import Evaluation, EvaluationOptions
from regard.training.losses import Loss
from regard.training.recipe.base import Recipe
from regard.training.recipe.sections import ACCURACY, LOSS, ExampleTrainingSection, ModelSection
from regard.training.safeguards import Poll
from regard.training.task import Forward, SupervisedTask, Values, loader_options
from regard_pointclouds.data import SHAPES, CloudBatch, DrawnClouds

BUILT_IN = "builtin:clouds"


class CloudsSection(Config):
    """[data]: drawn clouds."""

    train: Literal["builtin:clouds"] = "builtin:clouds"
    count: PositiveInt = 1000
    held_out: PositiveInt = 100
    points: PositiveInt = 32


class CloudTrainingSection(ExampleTrainingSection):
    """[training] of a model of point clouds."""

    metric: str = ACCURACY.name


class CloudsRecipe(Recipe):
    """Everything the training of a model of point clouds depends on."""

    metrics: ClassVar = (LOSS, ACCURACY)

    task: Literal["clouds"]
    model: ModelSection = ModelSection(name="point_transformer")
    data: CloudsSection = CloudsSection()
    training: CloudTrainingSection = CloudTrainingSection()


class CloudTask(SupervisedTask[CloudBatch]):
    """Drawn clouds need no files, so there is nothing to prepare."""

    recipe: CloudsRecipe

    @classmethod
    def prepare(cls, recipe: CloudsRecipe, folder: Path, poll: Poll) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def __init__(self, recipe: CloudsRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device, data = recipe, device, recipe.data
        self.train = DrawnClouds(data.count, data.points, recipe.seed)
        self.valid = DrawnClouds(data.held_out, data.points, recipe.seed + 1)
        self.summary = f"{data.count:,} drawn clouds of {data.points} points"
        self.loader = Loader(self._plan, self.train, **loader_options(recipe.training, device))

    def _plan(self, epoch: int) -> list[Any]:
        order = np.random.default_rng([self.recipe.seed, epoch]).permutation(len(self.train))
        return np.array_split(order, -(-len(order) // self.recipe.training.batch))

    def build(self) -> nn.Module:
        config = self.recipe.model.config(source_vocab=1, target_vocab=1, pad=0)
        return MODELS[self.recipe.model.name].model(config)

    def loss(self, model: Forward, batch: CloudBatch) -> Loss:
        total = functional.cross_entropy(model(batch.points), batch.labels, reduction="sum")
        return Loss(total, torch.full((), batch.tokens, device=self.device))

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        return measure(model, self.valid, self.device)

    def save(self, folder: Path) -> None:
        """Nothing is needed beside the weights."""


@torch.inference_mode()
def measure(model: nn.Module, clouds: DrawnClouds, device: torch.device) -> Values:
    """The loss, and the share of clouds whose shape is recognised."""
    batch = clouds(np.arange(len(clouds))).to(device)
    logits = model(batch.points)
    loss = functional.cross_entropy(logits, batch.labels)
    return {"loss": float(loss), "accuracy": float((logits.argmax(dim=1) == batch.labels).float().mean())}


def evaluate_clouds(pipeline: Any, data: str, options: EvaluationOptions) -> Evaluation:
    """The metrics of training, on clouds of another seed."""
    if data != BUILT_IN:
        raise UsageError(f"{data!r} cannot be read; give {BUILT_IN}, clouds of {', '.join(SHAPES)}")
    found = measure(pipeline.model, DrawnClouds(options.count, 32, 1000 + options.seed), pipeline.device)
    return Evaluation(dict(found))
