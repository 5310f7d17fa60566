"""Time two pieces of work in turn: passing load on the machine then hardly affects the ratio of neighbouring runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from regard.plan.machine import busy_seconds, warning

ROUNDS = 5  # the least number of rounds
Clock = Callable[[], float]


@dataclass(frozen=True)
class Times:
    """Median seconds of both, the median ratio of neighbouring runs, and the CPU cores that other processes used."""

    first: float
    second: float
    ratio: float
    others: float

    @property
    def warning(self) -> str:
        return f"  {warning(self.others)}"


def interleaved(
    first: Callable[[], object], second: Callable[[], object], seconds: float, clock: Clock = time.perf_counter
) -> Times:
    """Run both in turn until the time is up."""
    first(), second()  # warm-up
    times: list[tuple[float, float]] = []
    begin, busy = time.perf_counter(), busy_seconds() - time.process_time()
    while len(times) < ROUNDS or time.perf_counter() < begin + seconds:
        times.append((_timed(first, clock), _timed(second, clock)))
    others = (busy_seconds() - time.process_time() - busy) / (time.perf_counter() - begin)
    return Times(median(a for a, _ in times), median(b for _, b in times), median(a / b for a, b in times), others)


def _timed(work: Callable[[], object], clock: Clock) -> float:
    begin = clock()
    work()
    return clock() - begin
