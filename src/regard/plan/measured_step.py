"""Predicts the time and memory of a training step, and measures a real one: the loop, task, loader and optimiser.

The prediction adds the times that `machine.py` measures for the operations that `measure.py` recorded. Rounds of these
measurements alternate with real steps, so that other load on the machine disturbs both equally. The reported ratio is
the median over the rounds. The real steps run in a process of their own. Presets, whose cost is measured and not their
quality, are trained on synthetic data.
"""

from __future__ import annotations

import multiprocessing
import resource
import string
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from regard.config import Config
from regard.data.batch import Batch, StreamBatch, TextBatch
from regard.data.images.datasets import IDX_IMAGES, IDX_LABELS
from regard.device import find_device
from regard.errors import UsageError
from regard.families.catalog import MODELS
from regard.layers.vision import ImageConfig
from regard.plan import decoding, machine
from regard.plan.machine import Kind, OperationTimer, kind_of
from regard.plan.measure import measure_step as measure_fake_step
from regard.plan.plan import Plan
from regard.plan.recorder import Operation, Recorder
from regard.training.loop import Trainer
from regard.training.recipe.base import Recipe
from regard.training.recipe.files import changed
from regard.training.recipe.load import load_recipe, open_task, parse_recipe
from regard.training.recipe.sections import ExampleTrainingSection
from regard.training.run_state import seed_everything
from regard.training.safeguards import Signals

ROUNDS = 5
ADAMW, CLIP, AVERAGE = 7, 3, 3  # reads and writes per weight: 4 + 3, 2 + 1, 2 + 1
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
    timer, step = OperationTimer(find_device(device)), _StepWork.of(plan, device)
    for _ in range(rounds):
        timer.measure(step.operations)
    predicted = step.seconds(timer)
    return replace(predicted, token=_token_bound(plan) if timer.device.type == "cpu" else None)


def measure_step(recipe: Recipe, *, device: str = "cpu", threads: int = 1, rounds: int = ROUNDS) -> MeasuredStep:
    """Train a few steps of a recipe on one batch of its data, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measure_step, recipe, device, threads, rounds).result()


def measure_planned(
    what: str, plan: Plan, sets: Sequence[str], *, device: str, threads: int, rounds: int
) -> MeasuredStep:
    """Measure a step of a recipe, or of a preset on synthetic data; `plan` is that of the same name."""
    if Path(what).is_dir():
        raise UsageError(f"{what} is a trained model; --measure trains a recipe or a preset, so name what it came from")
    with tempfile.TemporaryDirectory() as folder:
        if what.partition(":")[0] in MODELS:
            recipe = synthetic_recipe(
                what, plan.config, sets, Path(folder),
                batch=plan.batch, source=plan.source_length, target=plan.target_length,
            )  # fmt: skip
        else:
            recipe = load_recipe(what, sets)
        return measure_step(recipe, device=device, threads=threads, rounds=rounds)


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
        step, timer = _StepWork.of(plan, device_name), OperationTimer(device)
        predictions, measured = list[PredictedStep](), list[float]()
        begin, busy, own = time.perf_counter(), machine.busy_seconds(), time.process_time()
        for _ in range(rounds):
            timer.measure(step.operations)
            predictions.append(step.seconds(timer, last=True))
            _step(trainer, batches)  # warms memory and caches, which the measurements above have replaced
            start = timer.clock()
            _step(trainer, batches)
            measured.append(timer.clock() - start)
        elapsed, used = time.perf_counter() - begin, time.process_time() - own
        trainer.log.close()
    told = replace(plan, measured=replace(plan.measured, operations=Counter()))  # operations cannot be sent
    return MeasuredStep(
        plan=told,
        predicted=step.seconds(timer),
        seconds=median(measured),
        ratio=median(each.total / seconds for each, seconds in zip(predictions, measured, strict=True)),
        peak=peak,
        resident=resident,
        others=max(0.0, machine.busy_seconds() - busy - used) / elapsed,
    )


def _trained_twice(recipe: Recipe, folder: Path, device: torch.device) -> tuple[Trainer, list[Any], int]:
    """A trainer after two steps, its batches, and the peak memory. From the second step on, all steps are alike."""
    on_cuda = device.type == "cuda"
    with nullcontext() if on_cuda else Recorder() as live:
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
    name, config, training = recipe.model.name, trainer.model.config, recipe.training
    match batch:
        case Batch():
            sizes = len(batch.source), batch.source.shape[1], batch.inputs.shape[1]
        case TextBatch() | StreamBatch():
            sizes = len(batch.inputs), batch.inputs.shape[1], batch.inputs.shape[1]
        case _ if hasattr(batch, "sizes"):
            sizes = batch.sizes
        case _ if isinstance(training, ExampleTrainingSection):
            sizes = batch.tokens, *(recipe.lengths or (1, 1))
        case _:
            raise UsageError(
                f"a step of task {recipe.task!r} cannot be measured: its batches do not tell their sizes; plan the "
                "recipe without --measure"
            )
    assert isinstance(config, Config)
    return Plan(name, config, *sizes, measure_fake_step(name, config, *sizes, training), training)


@dataclass(frozen=True)
class _StepWork:
    """The operations of a step, how often each is called, and how many weights the optimiser touches."""

    operations: Counter[Operation]
    launches: int  # operations that autograd records
    touched: int  # reads and writes of weights by clipping, AdamW and averaging

    @classmethod
    def of(cls, plan: Plan, device: str) -> _StepWork:
        kind, training = find_device(device).type, plan.training
        measured = measure_fake_step(
            plan.name, plan.config, plan.batch, plan.source_length, plan.target_length, training,
            device=kind, half=training.half,
        )  # fmt: skip
        operations = Counter({call: training.accumulate * times for call, times in measured.operations.items()})
        touches = ADAMW + (CLIP if training.clip else 0) + (AVERAGE if training.ema else 0)
        return cls(operations, training.accumulate * measured.calls, touches * plan.parameters)

    def seconds(self, timer: OperationTimer, *, last: bool = False) -> PredictedStep:
        """The time of a step, from the last round or from the median of all. A GPU computes while operations are
        launched, so only the excess of the launches counts."""
        kinds: dict[Kind, float] = {}
        for operation, times in self.operations.items():
            each = timer.rounds[-1][operation] if last else timer.seconds(operation)
            kind = kind_of(operation)
            kinds[kind] = kinds.get(kind, 0.0) + times * each
        launch, update = (values[-1] if last else median(values) for values in (timer.launches, timer.updates))
        kinds["update"], kinds["launch"] = self.touched * update, self.launches * launch
        if timer.device.type == "cuda":
            kinds["launch"] = max(0.0, 2 * kinds["launch"] - sum(kinds.values()))
        return PredictedStep(kinds)


def _token_bound(plan: Plan) -> float | None:
    """The lower bound for one token of a greedy answer: every weight is read once."""
    if not plan.cache["hypothesis"]:
        return None
    bound = decoding.decoding(plan.name, plan.config, 1, 1, plan.source_length, plan.target_length)
    return bound.seconds(machine.multiply_rate(), machine.bandwidth(bound.step_bytes)) / plan.target_length


def _resident_bytes() -> int:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


# Synthetic data of presets. All examples have the same length, but some sources of a batch are a little shorter: real
# batches rarely have sources of one length, and some kernels are faster on such batches.

TASKS = ("translation", "prompts", "masked", "language", "images")  # tasks that data can be generated for
LETTERS = string.ascii_lowercase
BATCHES, LENGTHS = 4, 16  # the least number of batches, and the number of different source lengths


def synthetic_recipe(
    what: str, config: Config, sets: Sequence[str], folder: Path, *, batch: int, source: int, target: int
) -> Recipe:
    """A recipe that trains a preset on random words or images in batches of one shape; the data are written to
    `folder`."""
    name, _, preset = what.partition(":")
    task = next(iter(MODELS[name].tasks), "")
    if task not in TASKS or getattr(config, "pixels", False):
        raise UsageError(f"no data can be made up for {what}; name a recipe for it instead (regard models lists them)")
    values = changed({"model": {"name": name, "preset": preset}, "training": {}}, sets)
    values["task"] = task
    count = BATCHES * batch
    if isinstance(config, ImageConfig):
        values["training"]["batch"] = batch
        values["data"] = _images(folder, config, count)
    else:
        size = getattr(config, "vocab", 0) or getattr(config, "target_vocab", 0)
        values["tokenizer"] = {**values.get("tokenizer", {}), "kind": "word", "size": size, "min_frequency": 1}
        values["training"]["batch_tokens"] = batch * max(source, target)
        values["data"] = _texts(folder, task, _Words(size), count, source, target)
    values["training"]["validate_every"] = 0
    return parse_recipe(values, where=what)


class _Words:
    """Cycles through words so that the whole vocabulary occurs; a few ids are left for special tokens."""

    def __init__(self, vocabulary: int):
        self.size, self.next = max(2, vocabulary - 8), 0

    def line(self, count: int) -> str:
        numbers = [(self.next + number) % self.size for number in range(max(1, count))]
        self.next += len(numbers)
        return " ".join("".join(LETTERS[number // 26**place % 26] for place in range(4)) for number in numbers)


def _texts(folder: Path, task: str, words: _Words, count: int, source: int, target: int) -> dict[str, Any]:
    """Texts, with one token less for the end token; a BERT adds three special tokens to two segments."""
    path = folder / "texts.tsv"
    count = max(count, -(-words.size // max(1, min(source, target) - 1)))
    match task:
        case "translation" | "prompts":
            lengths = range(source - 1, source - 1 - min(LENGTHS, source // 2), -1)
            lines = [f"{words.line(lengths[n % len(lengths)])}\t{words.line(target - 1)}" for n in range(count)]
        case "masked":
            lines = [words.line((source - 3) // 2) + "\n" * (1 + number % 2) for number in range(4 * count)]
        case _:
            lines = [words.line(target) for _ in range(2 * count)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    match task:
        case "translation":
            return {"train": str(path), "source": "en", "target": "de"}
        case "prompts":
            return {"train": {"made-up": str(path)}}
        case "masked":
            return {"train": str(path), "block": source}
    return {"train": str(path), "block": target, "documents": "file"}


def _images(folder: Path, config: ImageConfig, count: int) -> dict[str, Any]:
    """Grey noise in the format of MNIST."""
    random, side = np.random.default_rng(1), config.image_size
    pixels = random.integers(256, size=(count, side, side), dtype=np.uint8)
    labels = random.integers(min(config.classes, 256), size=count, dtype=np.uint8)
    path = folder / "noise-images-idx3-ubyte"
    path.write_bytes(struct.pack(">4i", IDX_IMAGES, *pixels.shape) + pixels.tobytes())
    (folder / "noise-labels-idx1-ubyte").write_bytes(struct.pack(">2i", IDX_LABELS, count) + labels.tobytes())
    return {"train": str(path), "labels": [str(number) for number in range(config.classes)]}
