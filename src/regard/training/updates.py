"""One update of the weights: losses phase by phase, gradients, and the steps of the optimisers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from regard.data.batch import TensorBatch
from regard.device import multiplies_bf16
from regard.training.cuda_graphs import CapturedUpdate, CudaGraphs, StepWindow, Work
from regard.training.distributed import Engine, Ranks, full
from regard.training.losses import Loss
from regard.training.optim import Optimisation, guarded_step
from regard.training.recipe.base import Recipe
from regard.training.run_state import Progress, seed_draws
from regard.training.task import Task

B = TypeVar("B", bound=TensorBatch)


def can_be_captured(recipe: Recipe, task: Task[B], device: torch.device, ranks: Ranks) -> bool:
    """Whether updates can be CUDA graphs: on one GPU, one batch per update, and batches of few shapes."""
    settings = recipe.training
    alike = task.capturable and not task.updates and settings.shapes_recur and settings.accumulate == 1
    return settings.graphs and alike and device.type == "cuda" and ranks.count == 1


class Updates(Generic[B]):
    """The updates of a run. Every update ends in its window, which counts the losses and the steps that are bad."""

    def __init__(
        self,
        recipe: Recipe,
        task: Task[B],
        engine: Engine,
        optimisation: Optimisation,
        progress: Progress,
        window: StepWindow[B],
        ranks: Ranks,
    ) -> None:
        self.task, self.engine, self.optimisation, self.ranks = task, engine, optimisation, ranks
        self.progress, self.window = progress, window
        self.seed, self.clip, self.device = recipe.seed, recipe.training.clip or math.inf, window.sums.device
        self.bf16 = recipe.training.half and multiplies_bf16(self.device)
        self.captured: CapturedUpdate[B] | None = None
        self.last = torch.zeros(2, device=self.device)  # loss and norm of the gradients, of an update that is captured
        if can_be_captured(recipe, task, self.device, ranks):
            self.captured = CapturedUpdate(
                lambda batch, tokens: self.update([batch], tokens), self.device, CudaGraphs(self.device), self.measured
            )

    def run(self, batches: Sequence[B], tokens: int) -> None:
        """One update, as a CUDA graph if it can be captured."""
        if self.captured is None:
            self.update(batches, tokens)
            return
        for group, rate in self.optimisation.rates.items():
            rate.fill_(self.rate(group))
        seed_draws(self.seed, self.progress.step, 0, 0)
        (batch,) = batches
        self.captured(batch, tokens)

    def update(self, batches: Sequence[B], tokens: int | Tensor) -> None:
        """The device's part of a step. It depends on the step only through tensors, so that it can be captured."""
        total, bad = torch.zeros(2, device=self.device), self.window.stopped
        if self.task.updates:
            for batch in batches:
                loss = self.task.update(self.engine.model, batch, self.rate("model"))
                total = total + torch.stack([loss.total, loss.tokens.float()])
            self.window.add(total, bad.maximum((~torch.isfinite(total[0])).float()))
            return
        norms = list[Tensor]()
        for group, losses in self.phases(batches):
            summed = self.backward(group, losses, tokens)
            self.ranks.add_up(summed)
            norm = full(nn.utils.clip_grad_norm_(self.optimisation.parameters[group], self.clip))
            bad = bad.maximum((~torch.isfinite(norm + summed[0])).float())
            rate = self.rate(group) if self.captured is None else self.optimisation.rates[group]
            guarded_step(self.optimisation.optimizers[group], rate, bad)
            total = total + summed
            norms.append(norm)
        if self.captured is not None:
            self.last.copy_(torch.stack([total[0], torch.stack(norms).sum()]))
        self.window.add(total, bad)

    def measured(self, work: Work) -> list[float]:
        """The loss and the norm of the gradients of a captured or launched update, which changes nothing: an update
        that is marked as bad leaves the weights, and all else that it writes is restored."""
        window = self.window
        written = [window.sums, window.stopped, *self.engine.model.buffers(), *self.task.carried.values()]
        before = [each.clone() for each in written]
        window.stopped.fill_(1)
        seed_draws(self.seed, self.progress.step, 0, 0)
        work()
        for each, old in zip(written, before, strict=True):
            each.copy_(old)
        seed_draws(self.seed, self.progress.step, 0, 0)  # as it was before: the update itself comes next
        return self.last.tolist()

    def rate(self, group: str) -> float:
        """The learning rate of a group of parameters in this step."""
        return self.task.rate(group) * self.optimisation.lr(self.progress.step)

    def repeat(self, batches: Sequence[B], tokens: int) -> None:
        """Compute the gradients of an update again, without a step."""
        for group, losses in self.phases(batches):
            self.backward(group, losses, tokens)

    def phases(self, batches: Sequence[B]) -> Iterator[tuple[str, Iterator[Loss]]]:
        """Phase by phase, the losses of all batches, computed on demand: only one autograd graph exists at a time."""
        streams = [self.task.phases(self.engine.forward, batch) for batch in batches]
        for phase in itertools.count():
            losses = self._losses(streams, phase)
            first = next(losses, None)
            if first is None:
                return
            yield first[0], (loss for _, loss in itertools.chain([first], losses))

    def _losses(self, streams: Sequence[Iterator[tuple[str, Loss]]], phase: int) -> Iterator[tuple[str, Loss]]:
        """One phase of every batch; the caller runs each loss backward before it takes the next."""
        for number, stream in enumerate(streams):
            place = self.progress.step, phase, number * self.ranks.count + self.ranks.rank
            with self.engine.gradients(complete=number == len(streams) - 1):
                if self.captured is None:  # a captured step is seeded once, before the graph runs
                    seed_draws(self.seed, *place)
                with self.autocast():
                    taken = next(stream, None)
                if taken is not None:
                    yield taken

    def autocast(self) -> torch.autocast:
        """The precision of the recipe, where this device has it."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)

    def backward(self, group: str, losses: Iterator[Loss], tokens: int | Tensor) -> Tensor:
        """Compute the gradients of the mean over all tokens; returns the summed loss and its tokens, on the device."""
        self.optimisation.optimizers[group].zero_grad(set_to_none=True)
        summed = torch.zeros(2, device=self.device)
        for loss in losses:
            (loss.total * self.ranks.count / tokens).backward()  # DDP and FSDP average over ranks
            summed += torch.stack([loss.total.detach(), loss.tokens.float()])
        return summed
