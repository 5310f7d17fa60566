"""The only training loop: it knows steps, gradients and checkpoints; what a batch and a loss are is the task's."""

from __future__ import annotations

import itertools
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.checkpoints import complete_checkpoints, newest_complete, write_model
from regard.checkpoints.folder import CHECKPOINTS, TRAIN_STATE
from regard.checkpoints.models import fill
from regard.device import find_device, multiplies_bf16
from regard.errors import TrainingError, UsageError
from regard.layers.blocks import keep_half
from regard.training.checkpoint_writer import Saver
from regard.training.cuda_graphs import CudaGraphs, Repeated
from regard.training.distributed import ALONE, Ranks, engine, full, joined, local
from regard.training.losses import Loss
from regard.training.metrics import MetricsLog, Reporter, Silence, shown
from regard.training.optim import adamw, ema_update, guarded_step, schedule
from regard.training.publishing import RECIPE, better, mean_of, publish_model, weights_of, write_beside
from regard.training.recipe.recipes import AnyRecipe
from regard.training.run_folder import DATA, claim
from regard.training.run_state import (
    Place,
    Progress,
    load_state,
    read_progress,
    save_state,
    seed_draws,
    seed_everything,
)
from regard.training.safeguards import SignalError, Signals, first_bad_module
from regard.training.tasks.translation import TASKS, Task, TrainingBatch


def train(recipe: AnyRecipe, out: Path, *, resume: bool = False) -> Path:
    """Train by `recipe` into the folder `out`, or continue what was begun there; the finished model is in `out`."""
    recipe = recipe.resolved()
    recipe.refuse_missing()
    device = find_device(recipe.training.device)
    with Signals() as signals, ExitStack() as held:
        with joined(device) as ranks:
            start = ranks.lead(lambda: held.enter_context(claim(out, recipe, resume=resume)))
            seed_everything(recipe.seed)
            torch.set_float32_matmul_precision("high" if recipe.training.precision == "tf32" else "highest")
            task = ranks.after_first(lambda: TASKS[recipe.task](recipe, out / DATA, device, signals.check))
            trainer = Trainer(recipe, task, out, device, signals, ranks)
            held.callback(trainer.log.close)
            try:
                trainer.fit(start.begin if ranks.first else _nothing)
            finally:
                trainer.release()
        if ranks.first:
            trainer.finish()
    return out


def prepare(recipe: AnyRecipe, out: Path) -> str:
    """Make the data of a recipe ready in `out`, where `train` with `resume` finds them; returns what they are."""
    recipe = recipe.resolved()
    recipe.refuse_missing()
    with Signals() as signals, claim(out, recipe, resume=(out / RECIPE).exists()) as start:
        task = TASKS[recipe.task](recipe, out / DATA, torch.device("cpu"), signals.check)
        start.keep()
        return task.summary


def _built(task: Task, device: torch.device) -> nn.Module:
    try:
        return task.build().to(device).train()
    except (RuntimeError, MemoryError) as error:  # torch's own errors have no type of their own on a CPU
        if not any(word in str(error) for word in ("memory", "overflow")):
            raise
        raise TrainingError("the model does not fit into memory; `regard plan` says what it needs") from error


def _nothing() -> None:
    """Nobody waits for the first step."""


def _averaged_tensors(model: nn.Module) -> dict[str, Tensor]:
    """What a moving average is taken of: the parameters, and the means and variances that batch norms measure."""
    norms = [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]
    measured = {
        name: buffer
        for name, buffer in model.named_buffers()
        if name.rpartition(".")[0] in norms and buffer.is_floating_point()
    }
    return {**dict(model.named_parameters()), **measured}


def _refuse_to_divide(recipe: AnyRecipe, task: Task, ranks: Ranks) -> None:
    """Several ranks share the batches of a step evenly, so that a step is the same on any number of them."""
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


class Trainer:
    """One run: a model, its optimisers, and everything that happens between two steps."""

    def __init__(
        self, recipe: AnyRecipe, task: Task, out: Path, device: torch.device, signals: Signals, ranks: Ranks = ALONE
    ) -> None:
        self.recipe, self.task, self.out, self.device, self.signals = recipe, task, out, device, signals
        self.settings, self.ranks = recipe.training, ranks
        settings = self.settings
        _refuse_to_divide(recipe, task, ranks)
        self.model = _built(task, device)
        if settings.precision == "bf16-stream":
            keep_half(self.model)
        self.engine = engine(settings.parallel, self.model, ranks, device, compiled=self._compiled, build=task.build)
        self.forward = self.engine.forward
        self.parameters = task.parameters(self.model)
        self.repeated = self._repeated()
        self.rates = {group: torch.zeros((), device=device) for group in self.parameters}  # where a graph reads them
        self.optimizers = {
            group: adamw(
                parameters,
                betas=settings.betas,
                weight_decay=settings.weight_decay,
                capturable=self.repeated is not None,
            )
            for group, parameters in self.parameters.items()
        }
        self.lr = schedule(settings.schedule, lr=settings.lr, warmup=settings.warmup, steps=settings.steps)
        self.trained = _averaged_tensors(self.model)
        self.average = {name: p.detach().clone() for name, p in self.trained.items()} if settings.ema else {}
        self.saver = Saver(ranks)
        self.progress = self._restored()
        self.saved = self.progress.step
        self.signals.trained = self.saved > 0
        self.out_of_time = False
        self.window = torch.tensor(self.progress.window, device=device)
        self.bad_row = torch.tensor([0.0, 0.0, 1.0], device=device)
        self.stopped = torch.zeros((), device=device)  # under on_nan = "stop", 1 from the first bad step on
        self.recent: list[tuple[list[Any], int]] = []  # the steps since numbers were last checked
        self.began = time.monotonic() - self.progress.seconds
        self.lap_began, self.lap_step, self.lap_tokens = time.monotonic(), self.progress.step, self.progress.tokens
        self.waited = 0.0  # seconds in this lap for the loader, which should be ahead of the training
        self.log = MetricsLog(out, step=self.progress.step) if ranks.first else Silence()
        self.reporter = Reporter(settings.steps) if ranks.first else Silence()
        self.bf16 = settings.half and multiplies_bf16(device)
        if settings.half and not self.bf16:
            self.reporter.say("this processor has no bf16 arithmetic: training goes on in fp32, far faster here")

    def _compiled(self, model: nn.Module) -> nn.Module:
        """The model as the recipe wants it called: compiled, or as it is."""
        if not self.settings.compiles(self.device.type):
            return model
        return torch.compile(model, dynamic=self.settings.lengths_vary)  # type: ignore[return-value]

    def _repeated(self) -> Repeated | None:
        """The update as a graph, where it can be one: on one GPU, from one batch at a time, shaped like many others."""
        settings = self.settings
        alike = self.task.repeats and settings.shapes_recur and settings.accumulate == 1
        if not (settings.graphs and alike and self.device.type == "cuda" and self.ranks.count == 1):
            return None
        return Repeated(lambda batch, tokens: self._update([batch], tokens), self.device, CudaGraphs(self.device))

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
                    if self.signals.received is not None:  # a terminal's Ctrl-C ended the loader's workers as well
                        self._between_steps()
                    raise
                self.step(*taken)
                if first:
                    self.log.open()
                    begin()
                    first = False
                self._between_steps()
            self._settle()

    def release(self) -> None:
        """Let go of the other ranks: DDP must not outlive its process group, nor saving reach beyond it."""
        self.saver.close()
        self.forward = self.engine.forward = self.model

    # One step

    def step(self, batches: Sequence[Any], tokens: int) -> None:
        """One update from several batches, whose losses are divided by the number of tokens in all of them."""
        self.progress.step += 1
        self.progress.tokens += tokens
        step = self.progress.step
        if self.settings.on_nan == "stop":
            self.recent.append((list(batches), tokens))
        if self.repeated is None:
            self._update(batches, tokens)
        else:
            for group, rate in self.rates.items():
                rate.fill_(self._rate(group))
            seed_draws(self.recipe.seed, step, 0, 0)
            (batch,) = batches
            self.repeated(batch, tokens)
        if self.average:
            average, weights = local(self.average.values()), local(self.trained.values())
            ema_update(average, weights, step, self.settings.ema)

    def _update(self, batches: Sequence[Any], tokens: int | Tensor) -> None:
        """What the device does in a step: nothing here depends on the step but through tensors."""
        total, bad = torch.zeros(2, device=self.device), self.stopped
        for group, losses in self._phases(batches):
            summed = self._backward(group, losses, tokens)
            self.ranks.add_up(summed)
            norm = full(nn.utils.clip_grad_norm_(self.parameters[group], self.settings.clip or math.inf))
            bad = bad.maximum((~torch.isfinite(norm + summed[0])).float())
            rate = self._rate(group) if self.repeated is None else self.rates[group]
            guarded_step(self.optimizers[group], rate, bad)
            total = total + summed
        if self.settings.on_nan == "stop":  # keeps the weights from before the first bad step until someone looks
            self.stopped.copy_(bad)
        self.window += torch.where(bad > 0, self.bad_row, torch.cat([total, bad[None]]))

    def _rate(self, group: str) -> float:
        """The learning rate of a group of parameters in this step."""
        return self.task.rate(group) * self.lr(self.progress.step)

    def _take(self, batches: Iterator[tuple[Place, TrainingBatch]]) -> tuple[list[Any], int]:
        """This rank's share of the next batches on the device, and how many tokens all ranks have: counted before they
        leave the host."""
        began = time.monotonic()
        taken = list(itertools.islice(batches, self.settings.accumulate // self.ranks.count))
        self.waited += time.monotonic() - began
        self.progress.loader = taken[-1][0]
        (tokens,) = self.ranks.total(sum(batch.tokens for _, batch in taken))
        return [batch.to(self.device, non_blocking=True) for _, batch in taken], tokens

    def _phases(self, batches: Sequence[Any]) -> Iterator[tuple[str, Iterator[Loss]]]:
        """Phase by phase, the losses of all batches, each computed only when asked for: one graph lives at a time."""
        streams = [self.task.phases(self.forward, batch) for batch in batches]
        for phase in itertools.count():
            losses = self._losses(streams, phase)
            first = next(losses, None)
            if first is None:
                return
            yield first[0], (loss for _, loss in itertools.chain([first], losses))

    def _losses(self, streams: Sequence[Iterator[tuple[str, Loss]]], phase: int) -> Iterator[tuple[str, Loss]]:
        """One phase of every batch; whoever takes a loss runs it backward before taking the next."""
        for number, stream in enumerate(streams):
            place = self.progress.step, phase, number * self.ranks.count + self.ranks.rank
            with self.engine.gradients(complete=number == len(streams) - 1):
                if self.repeated is None:  # else once, before the graph, which cannot
                    seed_draws(self.recipe.seed, *place)
                with self._autocast():
                    taken = next(stream, None)
                if taken is not None:
                    yield taken

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)

    def _backward(self, group: str, losses: Iterator[Loss], tokens: int | Tensor) -> Tensor:
        """Gradients of the mean over all tokens; returns the summed loss and its tokens, on the device."""
        self.optimizers[group].zero_grad(set_to_none=True)
        summed = torch.zeros(2, device=self.device)
        for loss in losses:
            (loss.total * self.ranks.count / tokens).backward()  # the engines average over ranks
            summed += torch.stack([loss.total.detach(), loss.tokens.float()])
        return summed

    # Between two steps

    def _done(self) -> bool:
        step, settings = self.progress.step, self.settings
        out_of_patience = 0 < settings.patience <= self.progress.without_gain
        return step >= settings.steps or out_of_patience or self.out_of_time

    def _due(self, every: int) -> bool:
        return every > 0 and self.progress.step % every == 0

    def _between_steps(self) -> None:
        """Log, validate, save and stop, whichever is due."""
        settings, step = self.settings, self.progress.step
        self.reporter.step(step)
        interrupted = self._agreed()  # asked once: a signal that comes later waits for the next step
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
        with self._pause():
            if validate and settings.validate_every and not interrupted and self.progress.validated < step:
                self._validate()
            if (save or interrupted or self._done() or self.progress.best_step == step) and self.saved < step:
                self._save()
        if interrupted:
            self._settle()
            self.signals.check()

    def _agreed(self) -> bool:
        """Whether any rank was told to stop, and whether for any the time is up: all must do the same."""
        limit = self.settings.time_limit
        late = limit is not None and time.monotonic() - self.began > 60 * limit
        told, late_ranks = self.ranks.total(self.signals.received is not None, late)
        self.out_of_time = late_ranks > 0
        if told:
            self.signals.told()
        return told > 0

    def _log(self) -> None:
        loss, tokens, bad = self.window.tolist()
        if tokens == bad == 0:  # resumed right after a log
            return
        if tokens == 0:
            raise TrainingError(
                f"step {self.progress.step}: not one step since the last log was finite; lower training.lr"
            )
        self.window.zero_()
        self.progress.skipped += int(bad)
        step, now = self.progress.step, time.monotonic()
        seconds = max(now - self.lap_began, 1e-9)
        row = {
            "loss": loss / tokens,
            "lr": self.lr(step),
            "skipped": self.progress.skipped,
            "tokens": self.progress.tokens,
            "tokens_per_second": (self.progress.tokens - self.lap_tokens) / seconds,
            "seconds": now - self.began,
            "waiting": self.waited / seconds,
        }
        self.log.write(step, "train", row)
        left = (self.settings.steps - step) * seconds / max(step - self.lap_step, 1)
        self.reporter.train(step, row, left)
        self.lap_began, self.lap_step, self.lap_tokens, self.waited = now, step, self.progress.tokens, 0.0

    def _refuse_bad_numbers(self) -> None:
        """Under on_nan = "stop": end the run at its first step that was not finite. The only read of the device."""
        recent, self.recent = self.recent, []
        if not self.stopped.item():
            return
        bad_steps = int(self.window[2].item())
        batches, tokens = recent[-bad_steps]

        self.forward = self.model  # a compiled callable would ignore late hooks

        def again() -> None:
            for group, losses in self._phases(batches):
                self._backward(group, losses, tokens)

        self._settle()
        kept = newest_complete(self.out)
        raise TrainingError(
            f"step {self.progress.step - bad_steps + 1}: {first_bad_module(self.model, again)}; last good checkpoint: "
            f"{kept or 'none yet'}. Lower training.lr, or set training.on_nan = 'skip', and continue with --resume"
        )

    def _validate(self) -> None:
        try:
            values = self.measure()
        except SignalError:
            self._save()
            self._settle()
            raise
        progress, metric = self.progress, self.settings.metric
        progress.validated = progress.step
        if better(metric, values[metric], progress.best):
            progress.best, progress.best_step, progress.without_gain = values[metric], progress.step, 0
        else:
            progress.without_gain += 1
        self.log.write(progress.step, "valid", values)
        if samples := self.task.samples():
            self.log.write(progress.step, "samples", {"pairs": samples})
        mark = "  (best)" if progress.best_step == progress.step else ""
        self.reporter.say(f"step {progress.step}  valid  {shown(values)}{mark}")

    def measure(self) -> dict[str, float]:
        """The validation metrics of the weights that would be published now."""
        with self.engine.published(self.average) as model:
            return self.ranks.lead(lambda: self._measured(model))

    def _measured(self, model: nn.Module) -> dict[str, float]:
        model.eval()
        try:
            with self._autocast():
                return self.task.validate(model, self.signals.check)
        finally:
            model.train()

    # Checkpoints

    @contextmanager
    def _pause(self) -> Iterator[None]:
        """Time that the speed of training is not charged for."""
        start = time.monotonic()
        yield
        self.lap_began += time.monotonic() - start

    def _restored(self) -> Progress:
        newest = self.ranks.lead(lambda: newest_complete(self.out))
        if newest is None:
            return Progress()
        return load_state(newest / TRAIN_STATE, self.model, self.optimizers, self.average, self.task.carried)

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint of a step is kept."""
        return self.out / CHECKPOINTS / f"step-{step:08d}"

    def _save(self) -> None:
        """Write a checkpoint, or begin to: several ranks go on meanwhile."""
        self.progress.window = self.window.tolist()
        self.progress.seconds = time.monotonic() - self.began
        self.saver.save(self.checkpoint(self.progress.step), self._write, needs=self._checkpoint_bytes())
        self._tidy()
        self.saved = self.progress.step
        self.signals.trained = True

    def _checkpoint_bytes(self) -> int:
        """About as many as a checkpoint has: weights to publish, weights to go on with, two moments, and their mean."""
        weights = sum(parameter.numel() * parameter.element_size() for parameter in self.model.parameters())
        return weights * (5 if self.average else 4)

    def _write(self, folder: Path) -> Future[Any]:
        """Put a checkpoint into a folder: the first rank writes the model, all write the state."""
        with self.engine.published(self.average) as model:
            self.ranks.lead(lambda: self._write_model(folder, model))
        state, carried = folder / TRAIN_STATE, self.task.carried
        group = self.saver.group
        return save_state(state, self.progress, self.model, self.optimizers, self.average, carried, group)

    def _write_model(self, folder: Path, model: nn.Module) -> None:
        write_model(folder, self.recipe.model.name, model)
        self.task.save(folder)
        write_beside(folder, self.recipe, self.out)

    def _settle(self) -> None:
        """Until the checkpoint that was begun is complete."""
        self.saver.settle()
        self._tidy()

    def _tidy(self) -> None:
        """Keep the last checkpoints, and the one that they remember as the best."""
        complete = complete_checkpoints(self.out) if self.ranks.first else []
        for old in complete[self.settings.keep :]:
            if old != self.checkpoint(read_progress(complete[0] / TRAIN_STATE).best_step):
                shutil.rmtree(old)

    def finish(self) -> None:
        """Publish the weights of the best checkpoint, or the mean of the last ones where that is better.

        The first rank does it alone; a checkpoint's weights are the moving average already.
        """
        settings, progress, model = self.settings, self.progress, self.engine.whole
        best = self.checkpoint(progress.best_step or progress.step)
        fill(model, weights_of(best), best)
        values = self.log.last("valid", progress.best_step)
        last = complete_checkpoints(self.out)[: settings.average]
        if len(last) > 1:
            fill(model, mean_of(last), self.out)
            measured = self._measured(model) if settings.validate_every else {}
            if not measured or better(settings.metric, measured[settings.metric], progress.best):
                values = measured
            else:
                fill(model, weights_of(best), best)
            self.log.write(progress.step, "average", measured)
            self.reporter.say(f"mean of the last {len(last)} checkpoints  {shown(measured)}")
        model.eval()
        with self._autocast():
            tested = self.task.test(model, self.signals.check)
        if tested:
            self.log.write(progress.step, "test", tested)
            self.reporter.say(f"test  {shown(tested)}")
        publish_model(self.out, self.recipe, model, self.task, {"valid": values, "test": tested})
