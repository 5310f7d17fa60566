"""The only training loop: it knows steps, gradients and checkpoints, and leaves to a task what a batch and a loss are."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.checkpoints.folder import CHECKPOINTS, MANIFEST, TRAIN_STATE, complete_checkpoints, newest_complete, publish
from regard.checkpoints.models import fill, load_model, own_tensors, save_model
from regard.errors import TrainingError, UsageError
from regard.training.guards import Interrupted, Signals, claim, first_bad_module
from regard.training.metrics import METRICS, MetricsLog, Reporter
from regard.training.objectives import Loss
from regard.training.optim import adamw, ema_update, guarded_step, mean_weights, schedule
from regard.training.recipe import Recipe, TrainingSection, load_recipe
from regard.training.state import Progress, load_state, save_state, seed_everything
from regard.training.tasks import TASKS, Task

RECIPE = "recipe.toml"
HIGHER_IS_BETTER = {"bleu", "chrf"}


def train(recipe: Recipe, out: Path, *, resume: bool = False) -> Path:
    """Train by `recipe` into the folder `out`, or continue what was begun there; the finished model is in `out`."""
    recipe = recipe.resolved()
    with Signals() as signals, claim(out, resume=resume):
        _settle_recipe(recipe, out)
        seed_everything(recipe.seed)
        device = _device(recipe.training.device)
        task = TASKS[recipe.task](recipe, out / "data", device)
        trainer = Trainer(recipe, task, out, device, signals)
        try:
            trainer.fit()
            trainer.finish()
        finally:
            trainer.log.close()
    return out


class Trainer:
    """One run: a model, its optimisers, and everything that happens between two steps."""

    def __init__(self, recipe: Recipe, task: Task, out: Path, device: torch.device, signals: Signals) -> None:
        self.recipe, self.task, self.out, self.device, self.signals = recipe, task, out, device, signals
        self.settings: TrainingSection = recipe.training
        self.model: nn.Module = task.build().to(device).train()
        self.forward = torch.compile(self.model, dynamic=True) if self.settings.compile else self.model
        self.parameters = task.parameters(self.model)
        self.optimizers = {
            group: adamw(parameters, betas=self.settings.betas, weight_decay=self.settings.weight_decay)
            for group, parameters in self.parameters.items()
        }
        self.lr = schedule(
            self.settings.schedule, lr=self.settings.lr, warmup=self.settings.warmup, steps=self.settings.steps
        )
        trained = dict(self.model.named_parameters()) if self.settings.ema else {}
        self.average = {name: parameter.detach().clone() for name, parameter in trained.items()}
        self.progress = self._restore()
        self.saved = self.progress.step
        self.window = torch.tensor(self.progress.window, device=device)
        self.stopped = torch.zeros((), device=device)  # 1 from the first bad step on, under on_nan = "stop"
        self.recent: list[list[Any]] = []
        self.log = MetricsLog(out, step=self.progress.step)
        self.reporter = Reporter(self.settings.steps)
        self.clock = _Clock(self.progress)

    # --- one step ---------------------------------------------------------------------------------------------------

    def fit(self) -> None:
        """Train until the steps, the time or the patience are used up."""
        batches = self.task.batches(self.progress.loader)
        self.signals.patient = True
        with self.reporter:
            self._look_up()
            while not self._done():
                self.step(self._take(batches))
                self._look_up()

    def step(self, batches: Sequence[Any]) -> None:
        """One update from several batches, whose losses are divided by the number of tokens in all of them."""
        self.progress.step += 1
        lr = self.lr(self.progress.step)
        for group, losses in self._phases(batches):
            total = self._accumulate(group, losses)
            norm = nn.utils.clip_grad_norm_(self.parameters[group], self.settings.clip or float("inf"))
            bad = (~torch.isfinite(norm + total.total)).float()
            if self.settings.on_nan == "stop":  # weights stay as they were before the first bad step, until it is seen
                bad = self.stopped.maximum(bad)
                self.stopped = bad
            guarded_step(self.optimizers[group], lr, bad)
            row = torch.stack([total.total, total.tokens.float(), bad])
            self.window += torch.where(bad > 0, torch.tensor([0.0, 0.0, 1.0], device=self.device), row)
        if self.average:
            ema_update(list(self.average.values()), list(self.model.parameters()), self.progress.step, self.settings.ema)

    def _phases(self, batches: Sequence[Any]) -> Iterator[tuple[str, Iterator[Loss]]]:
        """Phase by phase, the losses of all batches; each is computed only when asked for, so one graph lives at a time."""
        streams = [self.task.phases(self.forward, batch) for batch in batches]
        while (first := self._next(streams[0])) is not None:
            group, loss = first
            others = (self._next(stream) for stream in streams[1:])
            yield group, itertools.chain([loss], (phase[1] for phase in others if phase is not None))

    def _next(self, stream: Iterator[tuple[str, Loss]]) -> tuple[str, Loss] | None:
        with self._autocast():
            return next(stream, None)
