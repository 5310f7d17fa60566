"""The model of a run: how it is built, which of its tensors are averaged, and what several processes cannot train."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import TrainingError, UsageError
from regard.training.distributed import Ranks
from regard.training.recipe.base import Recipe
from regard.training.task import Task


def build_model(task: Task[Any], device: torch.device) -> nn.Module:
    """The model of a task on its device, in training mode."""
    try:
        return task.build().to(device).train()
    except (RuntimeError, MemoryError) as error:  # on a CPU, torch reports these as plain RuntimeErrors
        if not any(word in str(error) for word in ("memory", "overflow")):
            raise
        raise TrainingError("the model does not fit into memory; `regard plan` says what it needs") from error


def averaged_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of which a moving average is kept: parameters, and the running statistics of batch norms."""
    norms = [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]
    statistics = {
        name: buffer
        for name, buffer in model.named_buffers()
        if name.rpartition(".")[0] in norms and buffer.is_floating_point()
    }
    return {**dict(model.named_parameters()), **statistics}


def refuse_to_divide(recipe: Recipe, task: Task[Any], ranks: Ranks) -> None:
    """Refuse several ranks if they cannot share the batches of a step evenly: steps must not depend on their number."""
    batches = recipe.training.accumulate
    if batches % ranks.count:
        raise UsageError(
            f"training.accumulate is {batches}, but {ranks.count} processes share the batches of a step; set it to "
            f"{ranks.count} or a multiple of it"
        )
    if ranks.count > 1 and not task.divisible:
        raise UsageError(
            f"{recipe.model.name} for task {recipe.task!r} is trained by one process, but torchrun started "
            f"{ranks.count}; start it without torchrun"
        )
