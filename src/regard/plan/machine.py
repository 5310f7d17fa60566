"""The machine that a measurement runs on: what it is, its peak rates, the load of other processes, and its time for any
operation of torch on tensors of given shapes.

Every operation of a training step is replayed alone, on real tensors of the shapes that `measure.py` recorded: the rate
of a product and the memory bandwidth both depend on the size. This module does not know about models.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable
from itertools import cycle
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_structure, tree_unflatten

from regard import cpu
from regard.plan.recorder import FLOAT, Blank, Operation, aten

BUSY = 0.2  # CPU cores used by others; above this a measurement is marked as disturbed
SIDE = 1024  # of the matrices that are multiplied, and of the rows that are read


def describe(threads: int) -> dict[str, str | int]:
    """A description of the machine and the software."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": cpu.name(),
        "processors": os.cpu_count() or 1,
        "threads": threads,
        "dtype": "float32",
    }


def busy_seconds() -> float:
    """CPU seconds that all processes together have used so far; 0 if the system does not say."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _, _, interrupts, soft, stolen = map(int, stat.read_text().split()[1:9])
    return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")


def warning(others: float) -> str:
    """The warning for a measurement during which other processes used this many CPU cores."""
    return "" if others < BUSY else f"others kept {others:.1f} processors busy"


def multiply_rate(seconds: float = 0.5) -> float:
    """The best rate of large matrix products, in FLOPs per second."""
    a, b = torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)
    return 2 * SIDE**3 / _least(lambda: torch.mm(a, b), seconds)


def bandwidth(nbytes: int, seconds: float = 0.5) -> float:
    """The best rate of reading this many bytes repeatedly, in bytes per second; most do not stay in the caches."""
    rows = max(1, nbytes // (FLOAT * SIDE))
    weights, vector = torch.ones(rows, SIDE), torch.ones(SIDE)
    return FLOAT * weights.numel() / _least(lambda: torch.mv(weights, vector), seconds)


def _least(work: Callable[[], object], seconds: float) -> float:
    """The time of the fastest of many runs."""
    work()  # warm-up
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


SHORTEST = 0.005  # seconds of a measurement at least; shorter operations are repeated
COLD, MANY = 2**26, 64  # bytes that suffice to flush a cache, in at most this many copies of the arguments
CHAIN = 100  # operations in a row, to measure the launch overhead of one
UPDATED = 2**24  # weights that an update is timed with
Kind = Literal["product", "convolution", "norm", "attention", "recurrent", "draw", "elementwise", "update", "launch"]
Work = Callable[[], object]
ONE = tree_structure(((0,), {}))  # one argument
WORDS: dict[str, Kind] = {  # parts of the names of operations, the first that fits
    "scaled_dot_product": "attention", "convolution": "convolution", "_rnn": "recurrent", "lstm": "recurrent",
    "norm": "norm", "random": "draw", "bernoulli": "draw", "dropout": "draw", "normal": "draw",
    "mm": "product", "dot": "product", "mv": "product",
}  # fmt: skip


def kind_of(operation: Operation) -> Kind:
    name = operation.call.__name__
    return next((kind for word, kind in WORDS.items() if word in name), "elementwise")


class OperationTimer:
    """Times operations on one device.

    Other load disturbs a machine for seconds at a time. So each round measures every operation once, instead of one
    operation for long, and a caller that compares runs its own work between the rounds.
    """

    def __init__(self, device: torch.device):
        self.device, self.clock = device, clock(device)
        self.rounds: list[dict[Operation, float]] = []
        self.launches: list[float] = []
        self.updates: list[float] = []

    def measure(self, operations: Iterable[Operation]) -> None:
        """Measure one more round."""
        self.rounds.append({operation: self._measured(operation) for operation in operations})
        one = torch.ones(1, device=self.device)
        replayed = self._time(lambda: one * 1.0)
        self.launches.append(max(0.0, self._time(self._chain()) / CHAIN - 2 * replayed))
        self.updates.append(self._update())

    def seconds(self, operation: Operation) -> float:
        """The median over the rounds."""
        return median(times[operation] for times in self.rounds)

    def _measured(self, operation: Operation) -> float:
        with torch.no_grad():
            try:
                return self._time(self._replay(operation))
            except (RuntimeError, TypeError, IndexError, ValueError):  # it needs values: time a copy of its size
                size = sum(leaf.nbytes for leaf in operation.arguments if isinstance(leaf, Blank)) // FLOAT
                copied = Operation(aten.clone.default, (Blank((max(1, size),), (1,), torch.float32),), ONE)
                return self._time(self._replay(copied))

    def _replay(self, operation: Operation) -> Work:
        """The operation on tensors that are out of the cache, unless it computes more than it reads."""
        size = sum(leaf.nbytes for leaf in operation.arguments if isinstance(leaf, Blank))
        copies = 1 if kind_of(operation) in ("product", "convolution", "attention") else COLD // max(1, size)
        made = cycle([self._arguments(operation) for _ in range(max(1, min(MANY, copies)))])

        def work() -> object:
            args, kwargs = next(made)
            return operation.call(*args, **kwargs)

        return work

    def _arguments(self, operation: Operation) -> Any:
        return tree_unflatten([self._real(leaf) for leaf in operation.arguments], operation.structure)

    def _real(self, leaf: Any) -> Any:
        if not isinstance(leaf, Blank):
            return leaf
        length = 1 + sum((size - 1) * stride for size, stride in zip(leaf.shape, leaf.strides, strict=True) if size)
        value = 1 if leaf.dtype.is_floating_point or leaf.dtype == torch.bool else 0  # numbers of rows must exist
        storage = torch.full((length,), value, dtype=leaf.dtype, device=self.device)
        return storage.as_strided(leaf.shape, leaf.strides)

    def _time(self, work: Work) -> float:
        """The mean over enough runs to be timed reliably."""
        first = self._timed(work, 1)
        return self._timed(work, max(1, ceil(SHORTEST / max(first, 1e-6))))

    def _timed(self, work: Work, times: int) -> float:
        begin = self.clock()
        for _ in range(times):
            work()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return (self.clock() - begin) / times

    def _update(self) -> float:
        """The time to read or write one number of a large tensor in place."""
        a, b = torch.ones(2, UPDATED, device=self.device).unbind()
        return self._time(lambda: a.add_(b)) / (3 * UPDATED)

    def _chain(self) -> Work:
        one = torch.ones(1, device=self.device, requires_grad=True)

        def work() -> object:
            x: Tensor = one
            for _ in range(CHAIN):
                x = x * 1.0
            return torch.autograd.grad(x, one)

        return work


def clock(device: torch.device) -> Callable[[], float]:
    """CPU time if torch uses one CPU thread, because other processes disturb it least; otherwise wall-clock time."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time if alone else time.perf_counter
