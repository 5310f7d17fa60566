"""The training loop. It handles steps, gradients and checkpoints; the task provides batches and losses."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from regard.checkpoints.models import fill
from regard.data.batch import TensorBatch
from regard.device import find_device
from regard.errors import TrainingError, UsageError
from regard.families.catalog import TASKS
from regard.layers.blocks import keep_half
from regard.search.settings import RECIPE
from regard.training.compiling import compiled
from regard.training.cuda_graphs import StepWindow
from regard.training.distributed import ALONE, Ranks, engine, joined
from regard.training.metrics_log import MetricsLog, NoLog
from regard.training.optim import Optimisation, mean_weights
from regard.training.publishing import publish_model, weights_of
from regard.training.recipe.base import Recipe
from regard.training.reporter import Heartbeat, NoReporter, Reporter, duration, shown
from regard.training.run_checkpoints import RunCheckpoints
from regard.training.run_folder import DATA, claim
from regard.training.run_state import LoaderPlace, seed_everything
from regard.training.safeguards import SignalError, Signals, first_bad_module
from regard.training.task import Task
from regard.training.updates import Updates, can_be_captured

B = TypeVar("B", bound=TensorBatch)
MEASURED_STEP = 100  # the step at whose end compiling and warming up should be over


def train(recipe: Recipe, out: Path, *, resume: bool = False) -> Path:
    """Train by `recipe` into the folder `out`, or continue a run there; the finished model is in `out`."""
    started = time.monotonic()
    recipe = recipe.resolved()
    recipe.refuse_missing()
    device, kind = find_device(recipe.training.device), TASKS[recipe.task].task
    with Signals() as signals, ExitStack() as held:
        with joined(device) as ranks:
            start = ranks.lead(lambda: held.enter_context(claim(out, recipe, resume=resume)))
            seed_everything(recipe.seed)
            torch.set_float32_matmul_precision("high" if recipe.training.precision == "tf32" else "highest")
            ranks.lead(lambda: kind.prepare(recipe, out / DATA, Heartbeat("preparing the data", signals.check)))
            task = ranks.after_first(lambda: kind.open(recipe, out / DATA, device))
            trainer = Trainer(recipe, task, out, device, signals, ranks)
            held.callback(trainer.log.close)
            try:
                trainer.fit(start.begin if ranks.first else _nothing)
            finally:
                trainer.release()
        if ranks.first:
            trainer.finish(started)
    return out


def prepare(recipe: Recipe, out: Path) -> str:
    """Prepare the data of a recipe in `out`, where `train` with `resume` finds them; returns a summary of them."""
    recipe = recipe.resolved()
    recipe.refuse_missing()
    kind = TASKS[recipe.task].task
    with Signals() as signals, claim(out, recipe, resume=(out / RECIPE).exists()) as start:
        kind.prepare(recipe, out / DATA, Heartbeat("preparing the data", signals.check))
        task = kind.open(recipe, out / DATA, torch.device("cpu"))
        start.keep()
        return task.summary


def _nothing() -> None:
    """Do nothing after the first step."""


def build_model(task: Task[Any], device: torch.device) -> nn.Module:
    """The model of a task on its device, in training mode."""
    try:
        return task.build().to(device).train()
    except (RuntimeError, MemoryError) as error:  # on a CPU, torch reports these as plain RuntimeErrors
        if not any(word in str(error) for word in ("memory", "overflow")):
            raise
        raise TrainingError("the model does not fit into memory; `regard plan` says what it needs") from error


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


class Trainer(Generic[B]):
    """One run: a model, its optimisers, and everything that happens between two steps."""

    def __init__(
        self, recipe: Recipe, task: Task[B], out: Path, device: torch.device, signals: Signals, ranks: Ranks = ALONE
    ) -> None:
        self.recipe, self.task, self.out, self.device, self.signals = recipe, task, out, device, signals
        self.settings, self.ranks = recipe.training, ranks
        settings = self.settings
        refuse_to_divide(recipe, task, ranks)
        self.model = build_model(task, device)
        if settings.precision == "bf16-stream":
            keep_half(self.model)
        self.engine = engine(settings.parallel, self.model, ranks, device, compiled=self._compiled, build=task.build)
        self.optimisation = Optimisation(
            settings, task, self.model, device, capturable=can_be_captured(recipe, task, device, ranks)
        )
        self.average = self.optimisation.average
        self.checkpoints = RunCheckpoints(
            out, recipe, task, self.engine, self.optimisation.optimizers, self.average, ranks
        )
        self.progress = self.checkpoints.restore()
        self.signals.trained = self.checkpoints.saved > 0
        self.out_of_time = False
        self.window: StepWindow[B] = StepWindow(self.progress, device, stops=settings.on_nan == "stop")
        self.updates = Updates(recipe, task, self.engine, self.optimisation, self.progress, self.window, ranks)
        self.began = time.monotonic() - self.progress.seconds
        self.first, self.measured_at = (self.progress.step, self.progress.tokens), math.nan
        self.log = MetricsLog(out, step=self.progress.step) if ranks.first else NoLog()
        self.reporter = Reporter(settings.steps) if ranks.first else NoReporter()
        if settings.half and not self.updates.bf16:
            self.reporter.say("this CPU has no bf16 arithmetic: training uses fp32, which is far faster here")

    def _compiled(self, model: nn.Module) -> nn.Module:
        """The model, compiled if the recipe says so."""
        if not self.settings.compiles(self.device.type):
            return model
        return compiled(model, lengths_vary=self.settings.lengths_vary)

    def fit(self, begin: Callable[[], None] = _nothing) -> None:
        """Train until the steps, the time or the patience are used up; `begin` is called after the first step."""
        batches, first = self.task.batches(self.progress.loader), True
        with self.reporter:
            self.reporter.say(self.task.summary)
            self._between_steps()
            while not self._done():
                try:
                    taken = self._take(batches)
                except Exception:
                    if self.signals.received is not None:  # Ctrl-C in a terminal also ends the loader's workers
                        self._between_steps()
                    raise
                self.step(*taken)
                if first:
                    self.log.open()
                    begin()
                    first = False
                self._between_steps()
            self.checkpoints.settle()

    def release(self) -> None:
        """Release everything that belongs to the process group: DDP and pending checkpoints must not outlive it."""
        self.checkpoints.close()
        self.engine.forward = self.model

    # One step

    def step(self, batches: Sequence[B], tokens: int) -> None:
        """One update from several batches; their summed losses are divided by the number of tokens in all of them."""
        self.progress.step += 1
        self.progress.tokens += tokens
        step = self.progress.step
        self.window.remember(batches, tokens)
        self.updates.run(batches, tokens)
        self.task.after_step(step, self.model, batches[-1], self.optimisation.optimizers)
        self.optimisation.update_average(step)
        if step == self.first[0] + MEASURED_STEP:
            self.measured_at = time.monotonic()

    def _take(self, batches: Iterator[tuple[LoaderPlace, B]]) -> tuple[list[B], int]:
        """This rank's share of the next batches, on the device, and the number of tokens of all ranks.

        Tokens are counted on the host, so that no step waits for the device.
        """
        began = time.monotonic()
        taken = list(itertools.islice(batches, self.settings.accumulate // self.ranks.count))
        self.window.waited += time.monotonic() - began
        self.progress.loader = taken[-1][0]
        (tokens,) = self.ranks.total(sum(batch.tokens for _, batch in taken))
        return [batch.to(self.device, non_blocking=True) for _, batch in taken], tokens

    # Between two steps

    def _done(self) -> bool:
        step, settings = self.progress.step, self.settings
        out_of_patience = 0 < settings.patience <= self.progress.without_gain
        return step >= settings.steps or out_of_patience or self.out_of_time

    def _due(self, every: int) -> bool:
        return every > 0 and self.progress.step % every == 0

    def _between_steps(self) -> None:
        """Log, validate, save and stop, if due."""
        settings, step = self.settings, self.progress.step
        self.reporter.step(step)
        interrupted = self._agreed()  # checked once per step: a later signal waits for the next step
        if step == 0:
            if interrupted:
                self.signals.check()
            return
        log, validate, save = (
            self._done() or self._due(every)
            for every in (settings.log_every, settings.validate_every, settings.checkpoint_every)
        )
        if log or validate or save or interrupted:
            self._refuse_bad_numbers()
        if log:
            self._log()
        with self.window.pause():
            if validate and settings.validate_every and not interrupted and self.progress.validated < step:
                self._validate()
            if (
                save or interrupted or self._done() or self.progress.best_step == step
            ) and self.checkpoints.saved < step:
                self._save()
        if interrupted:
            self.checkpoints.settle()
            self.signals.check()

    def _agreed(self) -> bool:
        """Whether any rank got a signal. Also notes whether the time is up on any rank: all must do the same."""
        limit = self.settings.time_limit
        late = limit is not None and time.monotonic() - self.began > 60 * limit
        told, late_ranks = self.ranks.total(self.signals.received is not None, late)
        self.out_of_time = late_ranks > 0
        if told:
            self.signals.told()
        return told > 0

    def _log(self) -> None:
        measured = self.window.close(self.progress)
        if measured is None:
            return
        step, seconds_per_step = self.progress.step, measured.pop("seconds_per_step")
        row = {
            "loss": measured["loss"],
            "lr": self.optimisation.lr(step),
            "skipped": self.progress.skipped,
            "tokens": self.progress.tokens,
            "tokens_per_second": measured["tokens_per_second"],
            "seconds": time.monotonic() - self.began,
            "waiting": measured["waiting"],
        }
        self.log.write(step, "train", row)
        self.reporter.train(step, row, (self.settings.steps - step) * seconds_per_step)

    def _refuse_bad_numbers(self) -> None:
        """Under on_nan = "stop": end the run at its first step that was not finite."""
        found = self.window.first_bad()
        if found is None:
            return
        ago, batches, tokens = found
        self.engine.forward = self.model  # a compiled callable would ignore late hooks
        self.checkpoints.settle()
        kept = self.checkpoints.newest()
        wrong = first_bad_module(self.model, lambda: self.updates.repeat(batches, tokens))
        raise TrainingError(
            f"step {self.progress.step - ago + 1}: {wrong}; last good checkpoint: "
            f"{kept or 'none yet'}. Lower training.lr, or set training.on_nan = 'skip', and continue with --resume"
        )

    def _validate(self) -> None:
        try:
            values = self.measure()
        except SignalError:
            self._save()
            self.checkpoints.settle()
            raise
        progress, goal = self.progress, self.recipe.goal
        progress.validated = progress.step
        if goal.better(values[goal.name], progress.best):
            progress.best, progress.best_step, progress.without_gain = values[goal.name], progress.step, 0
        else:
            progress.without_gain += 1
        self.log.write(progress.step, "valid", values)
        mark = "  (best)" if progress.best_step == progress.step else ""
        self.reporter.say(f"step {progress.step}  valid  {shown(values, self.recipe.metrics)}{mark}")
        if samples := self.task.samples():
            self.log.write(progress.step, "samples", {"pairs": samples})
            sample = samples[len(samples) // 2]
            self.reporter.say(f"  {sample['source']} → {sample['output']}")

    def measure(self) -> dict[str, float]:
        """The validation metrics of the weights that would be published now."""
        with self.engine.published(self.average) as model:
            return self.ranks.lead(lambda: self._measured(model))

    def _measured(self, model: nn.Module) -> dict[str, float]:
        model.eval()
        try:
            with self.updates.autocast():
                return self.task.validate(model, Heartbeat("validating", self.signals.check, self.reporter.say))
        finally:
            model.train()

    def _save(self) -> None:
        self.progress.window = self.window.sums.tolist()
        self.progress.seconds = time.monotonic() - self.began
        self.checkpoints.save(self.progress)
        self.signals.trained = True

    # The end

    def finish(self, started: float) -> None:
        """Publish the weights of the best checkpoint, or the mean of the last ones if that is better.

        The first rank does this alone. The weights of a checkpoint are already the moving average.
        """
        settings, progress, goal, model = self.settings, self.progress, self.recipe.goal, self.engine.whole
        best = self.checkpoints.path(progress.best_step or progress.step)
        fill(model, weights_of(best), best)
        values = self.log.last("valid", progress.best_step)
        last = self.checkpoints.last(settings.average)
        if len(last) > 1:
            fill(model, mean_weights([weights_of(each) for each in last]), self.out)
            measured = self._measured(model) if settings.validate_every else {}
            if not measured or goal.better(measured[goal.name], progress.best):
                values = measured
            else:
                fill(model, weights_of(best), best)
            self.log.write(progress.step, "average", measured)
            self.reporter.say(f"mean of the last {len(last)} checkpoints  {shown(measured, self.recipe.metrics)}")
        model.eval()
        with self.updates.autocast():
            tested = self.task.test(model, Heartbeat("testing", self.signals.check, self.reporter.say))
        if tested:
            self.log.write(progress.step, "test", tested)
            if told := shown(tested, self.recipe.metrics):
                self.reporter.say(f"test  {told}")
        if self.task.conclusion:
            self.reporter.say(self.task.conclusion)
        self._tell_speed(started)
        publish_model(self.out, self.recipe, model, self.task, {"valid": values, "test": tested})

    def _tell_speed(self, started: float) -> None:
        """Log and report the speed from the command to the end of the run, all that is not training included."""
        steps, tokens = self.progress.step - self.first[0], self.progress.tokens - self.first[1]
        seconds = time.monotonic() - started
        row = {"seconds": seconds, "tokens_per_second": tokens / seconds}
        text = f"{steps:,} steps in {duration(seconds)} from the start: {row['tokens_per_second']:,.0f} tokens/s"
        if steps >= MEASURED_STEP:
            row[f"seconds_to_step_{MEASURED_STEP}"] = self.measured_at - started
            text += f"; the first {MEASURED_STEP} steps took {duration(self.measured_at - started)}"
        self.log.write(self.progress.step, "run", row)
        self.reporter.say(text)
