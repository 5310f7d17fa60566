"""Where a model computes: the device a user names, and what arithmetic it has."""

import os
from pathlib import Path

import torch

from regard import cpu
from regard.errors import UsageError

MEMORY = Path("/proc/meminfo")


def find_device(name: str) -> torch.device:
    """The device called `cpu`, `cuda` or `cuda:N`; `auto` is the GPU where there is one.

    Of the processes that torchrun started on a machine each has a GPU of its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.split(":")[0] not in ("cpu", "cuda"):
        raise UsageError(f"device {name!r} is unknown; use cpu, cuda or auto")
    if name != "cpu" and not torch.cuda.is_available():
        raise UsageError(f"device {name!r} was asked for, but torch sees no GPU; use cpu or auto")
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    return torch.device(name)


def multiplies_bf16(device: torch.device) -> bool:
    """Whether a device has arithmetic of bf16. Every GPU counts as having it."""
    return device.type != "cpu" or cpu.has_bf16()


def free_bytes(device: torch.device) -> int:
    """The memory that is free on a device, as far as the system tells."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = MEMORY.read_text(encoding="ascii").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
