"""The setting of a measurement: what the machine is, its peak rates, and the load of other processes."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from regard.plan.recorder import FLOAT

BUSY = 0.2  # CPU cores used by others; above this a measurement is marked as disturbed
SIDE = 1024  # of the matrices that are multiplied, and of the rows that are read


def describe(threads: int) -> dict[str, str | int]:
    """A description of the machine and the software."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": _processor(),
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


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
