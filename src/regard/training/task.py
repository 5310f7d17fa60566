"""Tasks define batches, losses and metrics. The loop uses tasks only through the interface in this module.

A task has three stages. `prepare` writes its data to disk once per run, `open` reads them, and the loop then asks for a
model, for batches and for their losses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Self, TypedDict, TypeVar

import torch
from torch import Tensor, nn

from regard.data.batch import TensorBatch
from regard.data.loader import Loader
from regard.training.distributed import Ranks
from regard.training.losses import Loss
from regard.training.recipe.base import Recipe
from regard.training.recipe.sections import TrainingSection
from regard.training.run_state import LoaderPlace
from regard.training.safeguards import Poll

B = TypeVar("B", bound=TensorBatch)
Forward = Callable[..., Any]  # a model as the loop calls it: plain, compiled, or wrapped for several processes
Values = dict[str, float]  # measured metrics by name
Optimizers = Mapping[str, torch.optim.Optimizer]  # by parameter group


WORKERS = 4  # processes that make batches for a GPU
SAMPLES = 8  # outputs kept to be shown


class Sample(TypedDict):
    """A held-out pair and the model's output for its source."""

    source: str
    target: str
    output: str


class Task(ABC, Generic[B]):
    """One kind of training on batches B, which come from one loader.

    A step has one or more phases. Each phase names the parameter group that its loss updates: one group for a
    translator; a critic and then a generator for a GAN. A task that changes its weights many times in a batch has
    `updates` instead.
    """

    divisible = True  # whether several processes may share the batches of a step
    capturable = True  # whether a step does the same work for all batches of a shape, as a CUDA graph needs
    updates = False  # whether the task changes the weights itself (`update`), without gradients and an optimiser
    recipe: Recipe
    device: torch.device
    summary: str  # describes the data, for the log and the model card
    loader: Loader[B]
    shown: Sequence[Sample] = ()  # outputs of the last validation

    @property
    def conclusion(self) -> str:
        """After the test, more to tell people, as Markdown; nothing, unless a task overrides this."""
        return ""

    @classmethod
    @abstractmethod
    def prepare(cls, recipe: Any, folder: Path, poll: Poll) -> None:
        """Write the data of a run into `folder`, unless it exists from before; `poll` may raise to stop."""

    @abstractmethod
    def __init__(self, recipe: Any, folder: Path, device: torch.device) -> None:
        """Read what `prepare` wrote; writes nothing."""

    @classmethod
    def open(cls, recipe: Any, folder: Path, device: torch.device) -> Self:
        """The task on prepared data."""
        return cls(recipe, folder, device)

    @cached_property
    def carried(self) -> dict[str, Tensor]:
        """State that a step passes to the next, saved with the run; none, unless a task overrides this."""
        return {}

    @abstractmethod
    def build(self) -> nn.Module:
        """A new model, or one with the weights that the recipe starts from."""

    def parameters(self, model: nn.Module) -> dict[str, list[nn.Parameter]]:
        """All parameters, in one group."""
        return {"model": list(model.parameters())}

    def rate(self, group: str) -> float:
        """The learning rate of a group, as a multiple of the recipe's."""
        return 1.0

    def batches(self, place: LoaderPlace) -> Iterator[tuple[LoaderPlace, B]]:
        """Endless batches from a place on, each with the place after it."""
        return self.loader.onward(place)

    @abstractmethod
    def phases(self, model: Forward, batch: B) -> Iterator[tuple[str, Loss]]:
        """Phase by phase, the parameter group and the loss that updates it."""

    def after_step(self, step: int, model: nn.Module, batch: B, optimizers: Optimizers) -> None:
        """Nothing, unless a task changes weights in other ways than by gradients; `batch` is the last of the step."""

    def update(self, model: nn.Module, batch: B, rate: float) -> Loss:
        """Change the weights in place, in a task that sets `updates`; the loss is from before."""
        raise NotImplementedError

    @abstractmethod
    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """The metrics of the task on the validation data."""

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """The same on the test data; empty if the recipe has none."""
        return {}

    def samples(self) -> Sequence[Sample]:
        """What the last validation kept to be shown, if it kept any."""
        return self.shown

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the files needed to use the weights beside them, such as a tokenizer."""

    def finish(self, model: nn.Module, folder: Path) -> None:
        """Nothing more is written beside a finished model."""


class SupervisedTask(Task[B]):
    """A task with one loss that updates all weights."""

    def phases(self, model: Forward, batch: B) -> Iterator[tuple[str, Loss]]:
        """One phase."""
        yield "model", self.loss(model, batch)

    @abstractmethod
    def loss(self, model: Forward, batch: B) -> Loss:
        """The loss of a batch, summed."""


class LoaderOptions(TypedDict):
    """Options of a loader, including this process's share of the batches."""

    workers: int
    pin: bool
    rank: int
    world: int


def loader_options(training: TrainingSection, device: torch.device) -> LoaderOptions:
    """The options of a loader in this process."""
    ranks, on_gpu = Ranks.present(), device.type == "cuda"
    workers = (WORKERS if on_gpu else 0) if training.workers is None else training.workers
    return {"workers": workers, "pin": on_gpu, "rank": ranks.rank, "world": ranks.count}
