"""Predicts the time and memory of a training step, and measures a real one: the loop, task, loader and optimiser.

The prediction multiplies the work that `training_step.py` counts by the times that `machine_limits.py` measures. Rounds
of these measurements alternate with real steps, so that other load on the machine disturbs both equally. The reported
ratio is the median over the rounds. The real steps run in a process of their own.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch

from regard.data.batch import Batch, StreamBatch, TextBatch
from regard.device import find_device
from regard.errors import UsageError
from regard.families.folding.data import FoldBatch
from regard.families.images.recipe import PixelsRecipe
from regard.studies.costs import machine, roofline, training_step
from regard.studies.costs.live_memory import LiveBytes
from regard.studies.costs.machine_limits import WorkTimer
from regard.studies.costs.models import COSTS
from regard.studies.costs.parts import Kind, Piece
from regard.studies.costs.plan import Plan
from regard.training.loop import Trainer
from regard.training.recipe.base import Recipe
from regard.training.recipe.load import open_task
from regard.training.recipe.sections import ExampleTrainingSection
from regard.training.run_state import seed_everything
from regard.training.safeguards import Signals

ROUNDS = 5
CANDIDATES = 8  # batches; the largest of them is used for all steps


@dataclass(frozen=True)
class PredictedStep:
    """The predicted time of a step, by kind of work."""

    seconds: dict[Kind, float]
    token: float | None = None  # lower bound for generating one token, for models that generate text

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


@dataclass(frozen=True)
class MeasuredStep:
    """A step as predicted and as measured; memory in bytes, time in seconds."""

    plan: Plan
    predicted: PredictedStep
    seconds: float
    ratio: float  # predicted time / measured time, median over the rounds
    peak: int  # most bytes of all tensors together
    resident: int  # peak memory of the process, libraries included, before the machine was measured
    others: float  # CPU cores that other processes used during the measurement

    @property
    def memory_ratio(self) -> float:
        return sum(self.plan.memory.values()) / self.peak

    def to_json(self) -> dict[str, Any]:
        return {
            **self.plan.to_json(),
            "step": {"predicted": self.predicted.total, "measured": self.seconds, "ratio": self.ratio},
            "kinds": self.predicted.seconds,
            "peak": {"predicted": sum(self.plan.memory.values()), "measured": self.peak, "ratio": self.memory_ratio},
            "resident": self.resident,
            "others": self.others,
        }


def predict_step(plan: Plan, *, device: str = "cpu", threads: int = 1, rounds: int = ROUNDS) -> PredictedStep:
    """Measure the machine at the sizes of this plan, and add up the time of a step."""
    torch.set_num_threads(threads)
    timer = _timer(plan, find_device(device))
    pieces = training_step.work(plan.costs, plan.batch, plan.training)
    for _ in range(rounds):
        timer.measure(pieces)
    told = _added_up(pieces, {piece: timer.seconds(piece) for piece in pieces}, timer)
    return replace(told, token=_token_bound(plan) if timer.device.type == "cpu" else None)


def measure_step(recipe: Recipe, *, device: str = "cpu", threads: int = 1, rounds: int = ROUNDS) -> MeasuredStep:
    """Train a few steps of a recipe on one batch of its data, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measure_step, recipe, device, threads, rounds).result()


def measured_peak(recipe: Recipe, *, device: str = "cpu") -> tuple[Plan, int]:
    """The plan of a recipe's first steps, and the peak memory of their tensors, measured in this process."""
    with tempfile.TemporaryDirectory() as folder:
        trainer, batches, peak = _trained_twice(recipe, Path(folder), find_device(device))
        trainer.log.close()
        return _plan_of(recipe, trainer, batches[0]), peak


def _measure_step(recipe: Recipe, device_name: str, threads: int, rounds: int) -> MeasuredStep:
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("high" if recipe.training.precision == "tf32" else "highest")
    device = find_device(device_name)
    seed_everything(recipe.seed)
    with tempfile.TemporaryDirectory() as folder:
        trainer, batches, peak = _trained_twice(recipe, Path(folder), device)
        plan, resident = _plan_of(recipe, trainer, batches[0]), _resident_bytes()
        pieces, timer = training_step.work(plan.costs, plan.batch, plan.training), _timer(plan, device)
        predictions, measured = list[PredictedStep](), list[float]()
        begin, busy, own = time.perf_counter(), machine.busy_seconds(), time.process_time()
        for _ in range(rounds):
            timer.measure(pieces)
            predictions.append(_added_up(pieces, timer.rounds[-1], timer))
            _step(trainer, batches)  # warms memory and caches, which the measurements above have replaced
            start = timer.clock()
            _step(trainer, batches)
            measured.append(timer.clock() - start)
        elapsed, used = time.perf_counter() - begin, time.process_time() - own
        trainer.log.close()
    return MeasuredStep(
        plan=plan,
        predicted=_added_up(pieces, {piece: timer.seconds(piece) for piece in pieces}, timer),
        seconds=median(measured),
        ratio=median(each.total / seconds for each, seconds in zip(predictions, measured, strict=True)),
        peak=peak,
        resident=resident,
        others=max(0.0, machine.busy_seconds() - busy - used) / elapsed,
    )


def _trained_twice(recipe: Recipe, folder: Path, device: torch.device) -> tuple[Trainer, list[Any], int]:
    """A trainer after two steps, its batches, and the peak memory. From the second step on, all steps are alike."""
    on_cuda = device.type == "cuda"
    with nullcontext() if on_cuda else LiveBytes() as live:
        task = open_task(recipe, folder / "data", device, lambda: None)
        trainer = Trainer(recipe, task, folder, device, Signals())
        some = [batch for _, batch in islice(task.batches({}), CANDIDATES)]
        largest = max(some, key=_numbers)
        batches = [largest.to(device)] * recipe.training.accumulate
        for _ in range(2):
            _step(trainer, batches)
    peak = torch.cuda.max_memory_allocated(device) if live is None else live.most
    return trainer, batches, peak


def _numbers(batch: Any) -> int:
    return sum(value.numel() for value in vars(batch).values() if isinstance(value, torch.Tensor))


def _step(trainer: Trainer, batches: list[Any]) -> None:
    trainer.step(batches, sum(batch.tokens for batch in batches))
    trainer.window.recent.clear()
    if trainer.device.type == "cuda":
        torch.cuda.synchronize(trainer.device)


def _plan_of(recipe: Recipe, trainer: Trainer, batch: Any) -> Plan:
    """The plan of the built model, for the batch that it read."""
    name, config = recipe.model.name, trainer.model.config
    match batch:
        case Batch():
            rows, (source, target) = len(batch.source), (batch.source.shape[1], batch.inputs.shape[1])
        case TextBatch() | StreamBatch():
            rows, (source, target) = len(batch.inputs), 2 * (batch.inputs.shape[1],)
        case FoldBatch():
            rows, (source, target) = len(batch.rows), (batch.rows.shape[2], batch.rows.shape[1])
        case _ if isinstance(recipe.training, ExampleTrainingSection):
            side = recipe.data.size if isinstance(recipe, PixelsRecipe) else 0
            rows, (source, target) = batch.tokens, (side**2, side**2)
        case _:
            raise UsageError(
                f"a step of task {recipe.task!r} cannot be measured; there is no prediction of its memory and time"
            )
    assert not isinstance(config, torch.nn.Module | torch.Tensor)
    return Plan(name, config, rows, source, target, COSTS[name](config, source, target), recipe.training)


def _timer(plan: Plan, device: torch.device) -> WorkTimer:
    return WorkTimer(device, torch.bfloat16 if plan.training.half else torch.float32)


def _added_up(pieces: dict[Piece, int], each: dict[Piece, float], timer: WorkTimer) -> PredictedStep:
    return PredictedStep(training_step.seconds(pieces, each, overlapping=timer.device.type == "cuda"))


def _token_bound(plan: Plan) -> float | None:
    """The lower bound for one token of a greedy answer: every weight is read once."""
    if not plan.costs.grows:  # `roofline.py` covers only models with a growing cache
        return None
    bound = roofline.decoding(plan.name, plan.config, 1, 1, plan.source_length, plan.target_length)
    return bound.seconds(machine.multiply_rate(), machine.bandwidth(bound.step_bytes)) / plan.target_length


def _resident_bytes() -> int:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most
