"""The checkpoints of a run: restoring the newest, writing the next, and removing old ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import CheckpointException

from regard.checkpoints import complete_checkpoints, newest_complete, write_model
from regard.checkpoints.folder import CHECKPOINTS, TRAIN_STATE, new_folder
from regard.training.distributed import Engine, Ranks
from regard.training.publishing import write_beside
from regard.training.recipe.base import Recipe
from regard.training.run_state import Progress, load_state, read_progress, save_state
from regard.training.task import Task


class CheckpointWriter:
    """Writes one checkpoint at a time; several ranks keep training while their shards are written and hashed."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self.group = ranks, ranks.side_group()
        self._background = ThreadPoolExecutor(1)
        self._pending: Future[Any] | None = None

    def save(self, folder: Path, write: Callable[[Path], Future[Any]], *, needs: int = 0) -> None:
        """Let all ranks `write` into a temporary folder, which gets its name when all have finished.

        `needs` is the number of bytes that all of them write. The future that `write` returns is done when the shards
        of this rank are written; on the first rank, when those of all ranks are.
        """
        self.settle()
        with ExitStack() as opened:
            written = write(self._ranks.lead(lambda: opened.enter_context(new_folder(folder, needs=needs))))
            if self._ranks.count > 1:
                first = self._ranks.first
                self._pending = self._background.submit(_close, opened.pop_all(), written) if first else written

    def settle(self) -> None:
        """Wait until the pending checkpoint is complete; all ranks fail if it could not be written."""
        pending, self._pending = self._pending, None
        if pending is not None:
            wait([pending])
            self._ranks.lead(pending.result)

    def close(self) -> None:
        """Wait until this rank has done its part of the pending checkpoint; other ranks may have failed."""
        if self._pending is not None:
            wait([self._pending])
        self.group = None


def _close(opened: ExitStack, written: Future[Any]) -> None:
    """Give a checkpoint its name once it is written, or remove its parts if that failed."""
    with opened:
        try:
            written.result()
        except CheckpointException as error:  # torch's own error, which wraps those of the ranks
            raise next(iter(error.failures.values()))[0] from None


class RunCheckpoints:
    """Checkpoints below the run folder `out`. Each is a complete model folder together with the state of the run."""

    def __init__(
        self,
        out: Path,
        recipe: Recipe,
        task: Task[Any],
        engine: Engine,
        optimizers: Mapping[str, torch.optim.Optimizer],
        average: Mapping[str, Tensor],
        ranks: Ranks,
    ) -> None:
        self.out, self.recipe, self.task, self.engine = out, recipe, task, engine
        self.optimizers, self.average, self.ranks = optimizers, average, ranks
        self._writer = CheckpointWriter(ranks)
        self.saved = 0  # the step of the newest checkpoint

    def restore(self) -> Progress:
        """Restore the newest checkpoint, if there is one."""
        newest = self.ranks.lead(self.newest)
        if newest is None:
            return Progress()
        state, model = newest / TRAIN_STATE, self.engine.model
        progress = load_state(state, model, self.optimizers, self.average, self.task.carried)
        self.saved = progress.step
        return progress

    def newest(self) -> Path | None:
        """The newest complete checkpoint."""
        return newest_complete(self.out)

    def last(self, count: int) -> list[Path]:
        """The last `count` complete checkpoints, newest first."""
        return complete_checkpoints(self.out)[:count]

    def path(self, step: int) -> Path:
        """The folder of the checkpoint of a step."""
        return self.out / CHECKPOINTS / f"step-{step:08d}"

    def save(self, progress: Progress) -> None:
        """Write a checkpoint, or begin to: several ranks keep training meanwhile."""
        self._writer.save(self.path(progress.step), lambda folder: self._write(folder, progress), needs=self._bytes())
        self._remove_old()
        self.saved = progress.step

    def settle(self) -> None:
        """Wait until the pending checkpoint is complete."""
        self._writer.settle()
        self._remove_old()

    def close(self) -> None:
        """Finish this rank's part of the pending checkpoint, so that nothing outlives the process group."""
        self._writer.close()

    def _bytes(self) -> int:
        """About the size of a checkpoint: published weights, weights to continue with, two moments, and the average."""
        parameters = self.engine.model.parameters()
        weights = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
        return weights * (5 if self.average else 4)

    def _write(self, folder: Path, progress: Progress) -> Future[Any]:
        """The first rank writes the model, all ranks write the state."""
        with self.engine.published(self.average) as model:
            self.ranks.lead(lambda: self._write_model(folder, model))
        state, carried, group = folder / TRAIN_STATE, self.task.carried, self._writer.group
        return save_state(state, progress, self.engine.model, self.optimizers, self.average, carried, group)

    def _write_model(self, folder: Path, model: nn.Module) -> None:
        write_model(folder, self.recipe.model.name, model)
        self.task.save(folder)
        write_beside(folder, self.recipe, self.out)

    def _remove_old(self) -> None:
        """Keep the last checkpoints, and the one that the newest records as the best."""
        complete = complete_checkpoints(self.out) if self.ranks.first else []
        for old in complete[self.recipe.training.keep :]:
            if old != self.path(read_progress(complete[0] / TRAIN_STATE).best_step):
                shutil.rmtree(old)
