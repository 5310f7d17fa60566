"""What a machine can do at best, what else it is doing, and what it is: the frame of every measurement."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from regard.studies.costs.parts import FLOAT

BUSY = 0.2  # processors; from here on a measurement is marked as disturbed
SIDE = 1024  # of the matrices that are multiplied, and of the rows that are read


def describe(threads: int) -> dict[str, str | int]:
    """The setting of a measurement."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": _processor(),
        "processors": os.cpu_count() or 1,
        "threads": threads,
        "dtype": "float32",
    }


def busy_seconds() -> float:
    """Processor seconds that all processes together have used so far; 0 where the system does not tell."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _, _, interrupts, soft, stolen = map(int, stat.read_text().split()[1:9])
    return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")


def warning(others: float) -> str:
    """What to say of a measurement while others kept so many processors busy."""
    return "" if others < BUSY else f"others kept {others:.1f} processors busy"


def multiply_rate(seconds: float = 0.5) -> float:
    """FLOPs a second of large matrix products, at best."""
    a, b = torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)
    return 2 * SIDE**3 / _least(lambda: torch.mm(a, b), seconds)


def bandwidth(nbytes: int, seconds: float = 0.5) -> float:
    """Bytes a second of reading this many bytes again and again, at best: few of them stay in the caches."""
    rows = max(1, nbytes // (FLOAT * SIDE))
    weights, vector = torch.ones(rows, SIDE), torch.ones(SIDE)
    return FLOAT * weights.numel() / _least(lambda: torch.mv(weights, vector), seconds)


def _least(work: Callable[[], object], seconds: float) -> float:
    """The shortest of many runs."""
    work()  # warm
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
