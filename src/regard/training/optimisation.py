"""What a run optimises: groups of parameters with their optimisers and learning rates, and a mean of the weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from regard.training.distributed import local
from regard.training.optim import adamw, ema_update, schedule
from regard.training.recipe.sections import TrainingSection
from regard.training.run_model import averaged_tensors
from regard.training.task import Task


class Optimisation:
    """The optimisers of a model, by group of parameters, and the moving average of its weights.

    A task that updates the weights itself has no optimisers. A CUDA graph needs `capturable`.
    """

    def __init__(
        self, settings: TrainingSection, task: Task[Any], model: nn.Module, device: torch.device, *, capturable: bool
    ) -> None:
        self.parameters = task.parameters(model)
        # Learning rates are tensors, because a captured graph reads them from the device.
        self.rates = {group: torch.zeros((), device=device) for group in self.parameters}
        self.optimizers = {
            group: adamw(
                parameters, betas=settings.betas, weight_decay=settings.weight_decay, capturable=capturable
            )
            for group, parameters in self.parameters.items()
            if not task.updates
        }  # fmt: skip
        self.lr = schedule(settings.schedule, lr=settings.lr, warmup=settings.warmup, steps=settings.steps)
        self._trained, self._decay = averaged_tensors(model), settings.ema
        self.average = {name: p.detach().clone() for name, p in self._trained.items()} if settings.ema else {}

    def update_average(self, step: int) -> None:
        """Let the moving average, if there is one, follow the weights after a step."""
        if self.average:
            ema_update(local(self.average.values()), local(self._trained.values()), step, self._decay)
