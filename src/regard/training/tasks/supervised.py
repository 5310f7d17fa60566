"""What tasks share whose batches give one loss that updates all weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from regard.data.loader import Loader
from regard.training.distributed import Ranks
from regard.training.evaluation.translation import Sample
from regard.training.losses import Loss
from regard.training.recipe.sections import LoopSection
from regard.training.run_state import Place

B = TypeVar("B")


class SupervisedTask(ABC, Generic[B]):
    """One loss, one group of parameters, batches from one loader."""

    divisible, repeats = True, True
    loader: Loader[B]

    @cached_property
    def carried(self) -> dict[str, Tensor]:
        """Nothing, unless a task puts something there."""
        return {}

    def parameters(self, model: nn.Module) -> dict[str, list[nn.Parameter]]:
        """All of them, in one group."""
        return {"model": list(model.parameters())}

    def rate(self, group: str) -> float:
        """As the recipe says."""
        return 1.0

    def batches(self, place: Place) -> Iterator[tuple[Place, B]]:
        """Batches for ever from a place on, each with the place after it."""
        return self.loader.onward(place)

    def phases(self, model: Callable[..., Any], batch: B) -> Iterator[tuple[str, Loss]]:
        """One phase."""
        yield "model", self.loss(model, batch)

    @abstractmethod
    def loss(self, model: Callable[..., Any], batch: B) -> Loss:
        """What is to be made small."""

    def samples(self) -> Sequence[Sample]:
        """Nothing to be read."""
        return []

    def finish(self, model: nn.Module, folder: Path) -> None:
        """Nothing more is needed."""


def loading(training: LoopSection, device: torch.device) -> dict[str, Any]:
    """How a loader works, as the recipe says, and which share of the batches is this rank's."""
    ranks = Ranks.present()
    return {"workers": training.workers, "pin": device.type == "cuda", "rank": ranks.rank, "world": ranks.count}
