"""What a run optimises: groups of parameters with their optimisers and learning rates, and a mean of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.training.distributed import local
from regard.training.recipe.sections import TrainingSection
from regard.training.task import Task

Schedule = Callable[[int], float]


def noam(step: int, *, lr: float, warmup: int) -> float:
    """Linear warm-up to `lr`, then lr·√(warmup/step) (Vaswani 2017, eq. 3, scaled so that its peak is `lr`)."""
    warmup = max(warmup, 1)
    return lr * min(step / warmup, math.sqrt(warmup / step))


def cosine(step: int, *, lr: float, warmup: int, steps: int) -> float:
    """Linear warm-up to `lr`, then half a cosine down to zero at `steps` (Loshchilov 2017)."""
    if step < warmup:
        return lr * step / warmup
    progress = min((step - warmup) / max(steps - warmup, 1), 1.0)
    return lr * 0.5 * (1.0 + math.cos(math.pi * progress))


def constant(step: int, *, lr: float, warmup: int) -> float:
    """Linear warm-up to `lr`, then constant."""
    return lr * min(step / max(warmup, 1), 1.0)


def schedule(name: str, *, lr: float, warmup: int, steps: int) -> Schedule:
    """The learning rate at each step, counted from 1."""
    if name == "noam":
        return lambda step: noam(step, lr=lr, warmup=warmup)
    if name == "cosine":
        return lambda step: cosine(step, lr=lr, warmup=warmup, steps=steps)
    return lambda step: constant(step, lr=lr, warmup=warmup)


def adamw(
    parameters: Iterable[nn.Parameter],
    *,
    betas: tuple[float, float],
    weight_decay: float,
    capturable: bool = False,
) -> torch.optim.AdamW:
    """AdamW in one fused kernel, without weight decay for vectors (biases, gains of norms). A CUDA graph needs
    `capturable`."""
    trained = [p for p in parameters if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    filled = [group for group in groups if group["params"]]
    return torch.optim.AdamW(filled, lr=0.0, betas=betas, eps=1e-9, fused=True, capturable=capturable)


def guarded_step(optimizer: torch.optim.Optimizer, lr: float | Tensor, bad: Tensor) -> None:
    """Step at `lr`, or leave weights and moments unchanged if `bad` is 1. The device decides, so there is no sync."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.found_inf = bad  # type: ignore[attr-defined]  # the flag that torch's GradScaler passes to fused kernels
    optimizer.step()


def ema_decay(step: int, decay: float) -> float:
    """The decay used at `step`: smaller at first, so that random initial weights soon drop out of the average."""
    return min(decay, (1 + step) / (10 + step))


@torch.no_grad()
def ema_update(shadow: Sequence[Tensor], weights: Sequence[Tensor], step: int, decay: float) -> None:
    """shadow ← d·shadow + (1-d)·weights, in place."""
    torch._foreach_lerp_(list(shadow), list(weights), 1.0 - ema_decay(step, decay))


def mean_weights(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The element-wise mean of several checkpoints; tensors of integers come from the last checkpoint."""
    mean: dict[str, Tensor] = {}
    for name, last in states[-1].items():
        if last.is_floating_point():
            total = sum((state[name].double() for state in states[:-1]), last.double())
            mean[name] = (total / len(states)).to(last.dtype)
        else:
            mean[name] = last
    return mean


def averaged_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of which a moving average is kept: parameters, and the running statistics of batch norms."""
    norms = [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]
    statistics = {
        name: buffer
        for name, buffer in model.named_buffers()
        if name.rpartition(".")[0] in norms and buffer.is_floating_point()
    }
    return {**dict(model.named_parameters()), **statistics}


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
