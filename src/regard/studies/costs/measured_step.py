"""The cost of a training step, foretold and then measured: the real loop, task, loader and optimiser in a new process.

The forecast comes from the formulas of `training_step.py` and what `machine_limits.py` measures. Rounds of these
measurements and real steps take turns, so that whatever else the machine does disturbs both alike, and the ratio is the
median over the rounds.
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

from regard.data.batch import Batch, ImageBatch, StreamBatch, TextBatch
from regard.device import find_device
from regard.errors import UsageError
from regard.studies.costs import machine, roofline, training_step
from regard.studies.costs.live_memory import LiveBytes
from regard.studies.costs.machine_limits import Limits
from regard.studies.costs.models import COSTS
from regard.studies.costs.parts import Kind, Piece
from regard.studies.costs.plan import Plan
from regard.training.loop import Trainer
from regard.training.recipe.recipes import AnyRecipe, PixelsRecipe
from regard.training.run_state import seed_everything
from regard.training.safeguards import Signals
from regard.training.tasks.translation import TASKS

ROUNDS = 5
CANDIDATES = 8  # batches, of which the largest is trained on again and again


@dataclass(frozen=True)
class Forecast:
    """How long a step will take, by kinds of work."""

    seconds: dict[Kind, float]
    token: float | None = None  # the least time to write one alone, where tokens are written

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


@dataclass(frozen=True)
class Rehearsal:
    """A step as it was foretold and as it was; memory in bytes, time in seconds."""

    plan: Plan
    forecast: Forecast
    seconds: float
    ratio: float  # of the time foretold to that measured: the median over the rounds
    peak: int  # of all tensors together
    resident: int  # most that the process held, libraries included, before the machine was measured
    others: float  # processors that other processes kept busy meanwhile

    @property
    def memory_ratio(self) -> float:
        return sum(self.plan.memory.values()) / self.peak

    def to_json(self) -> dict[str, Any]:
        return {
            **self.plan.to_json(),
            "step": {"predicted": self.forecast.total, "measured": self.seconds, "ratio": self.ratio},
            "kinds": self.forecast.seconds,
            "peak": {"predicted": sum(self.plan.memory.values()), "measured": self.peak, "ratio": self.memory_ratio},
            "resident": self.resident,
            "others": self.others,
        }


def forecast(plan: Plan, *, device: str = "cpu", threads: int = 1, rounds: int = ROUNDS) -> Forecast:
    """Measure the machine at the sizes of this plan, and add up."""
    torch.set_num_threads(threads)
    limits = _limits(plan, find_device(device))
    pieces = training_step.work(plan.costs, plan.batch, plan.training)
    for _ in range(rounds):
        limits.measure(pieces)
    told = _added_up(pieces, {piece: limits.seconds(piece) for piece in pieces}, limits)
    return replace(told, token=_token_floor(plan) if limits.device.type == "cpu" else None)


def rehearse(recipe: AnyRecipe, *, device: str = "cpu", threads: int = 1, rounds: int = ROUNDS) -> Rehearsal:
    """Train a few steps by `recipe` on one batch of its data, in a process of its own that is then thrown away."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_rehearse, recipe, device, threads, rounds).result()


def measured_peak(recipe: AnyRecipe, *, device: str = "cpu") -> tuple[Plan, int]:
    """The plan of a recipe's first steps, and the memory that their tensors really took; in this process."""
    with tempfile.TemporaryDirectory() as folder:
        trainer, batches, peak = _trained_twice(recipe, Path(folder), find_device(device))
        trainer.log.close()
        return _plan_of(recipe, trainer, batches[0]), peak


def _rehearse(recipe: AnyRecipe, device_name: str, threads: int, rounds: int) -> Rehearsal:
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("high" if recipe.training.precision == "tf32" else "highest")
    device = find_device(device_name)
    seed_everything(recipe.seed)
    with tempfile.TemporaryDirectory() as folder:
        trainer, batches, peak = _trained_twice(recipe, Path(folder), device)
        plan, resident = _plan_of(recipe, trainer, batches[0]), _resident_bytes()
        pieces, limits = training_step.work(plan.costs, plan.batch, plan.training), _limits(plan, device)
        foretold, measured = list[Forecast](), list[float]()
        begin, busy, own = time.perf_counter(), machine.busy_seconds(), time.process_time()
        for _ in range(rounds):
            limits.measure(pieces)
            foretold.append(_added_up(pieces, limits.rounds[-1], limits))
            _step(trainer, batches)  # finds memory and caches as other work left them; the next one as in training
            start = limits.clock()
            _step(trainer, batches)
            measured.append(limits.clock() - start)
        elapsed, used = time.perf_counter() - begin, time.process_time() - own
        trainer.log.close()
    return Rehearsal(
        plan=plan,
        forecast=_added_up(pieces, {piece: limits.seconds(piece) for piece in pieces}, limits),
        seconds=median(measured),
        ratio=median(told.total / seconds for told, seconds in zip(foretold, measured, strict=True)),
        peak=peak,
        resident=resident,
        others=max(0.0, machine.busy_seconds() - busy - used) / elapsed,
    )


def _trained_twice(recipe: AnyRecipe, folder: Path, device: torch.device) -> tuple[Trainer, list[Any], int]:
    """A trainer after two steps, the second of which is like all later ones; its batches; and the peak of memory."""
    on_cuda = device.type == "cuda"
    with nullcontext() if on_cuda else LiveBytes() as live:
        task = TASKS[recipe.task](recipe, folder / "data", device, lambda: None)
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
    trainer.recent.clear()
    if trainer.device.type == "cuda":
        torch.cuda.synchronize(trainer.device)


def _plan_of(recipe: AnyRecipe, trainer: Trainer, batch: Any) -> Plan:
    """The plan of the model that is really there, for the batch that it really read."""
    name, config = recipe.model.name, trainer.model.config
    match batch:
        case Batch():
            rows, (source, target) = len(batch.source), (batch.source.shape[1], batch.inputs.shape[1])
        case TextBatch() | StreamBatch():
            rows, (source, target) = len(batch.inputs), 2 * (batch.inputs.shape[1],)
        case ImageBatch():
            side = recipe.data.size if isinstance(recipe, PixelsRecipe) else 0
            rows, (source, target) = len(batch.rows), (side**2, side**2)
        case _:
            raise UsageError(f"a step of task {recipe.task!r} is not rehearsed; its memory and time are not foretold")
    assert not isinstance(config, torch.nn.Module | torch.Tensor)
    return Plan(name, config, rows, source, target, COSTS[name](config, source, target), recipe.training)


def _limits(plan: Plan, device: torch.device) -> Limits:
    return Limits(device, torch.bfloat16 if plan.training.half else torch.float32)


def _added_up(pieces: dict[Piece, int], each: dict[Piece, float], limits: Limits) -> Forecast:
    return Forecast(training_step.seconds(pieces, each, overlapping=limits.device.type == "cuda"))


def _token_floor(plan: Plan) -> float | None:
    """A token of a greedy answer to one sentence reads every weight once."""
    if not plan.costs.grows:  # `roofline.py` counts no others
        return None
    floor = roofline.decoding(plan.name, plan.config, 1, 1, plan.source_length, plan.target_length)
    return floor.seconds(machine.multiply_rate(), machine.bandwidth(floor.step_bytes)) / plan.target_length


def _resident_bytes() -> int:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most
