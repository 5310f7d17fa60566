"""The GPU kernels of a piece of work, with their times, the slowest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

SHOWN = 24


def kernels(work: Callable[[], object], steps: int) -> Iterator[str]:
    """One line per kernel: microseconds and launches per step."""
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        work()
        torch.cuda.synchronize()
    rows = [row for row in found.key_averages() if row.device_type == DeviceType.CUDA and not row.is_user_annotation]
    rows.sort(key=lambda row: -row.self_device_time_total)
    total, count = sum(row.self_device_time_total for row in rows), sum(row.count for row in rows)
    yield f"{count / steps:.0f} kernels, {total / steps:,.0f} us a step"
    for row in rows[:SHOWN]:
        yield f"  {row.self_device_time_total / steps:10,.1f} us {row.count / steps:6.1f}x  {row.key[:110]}"
