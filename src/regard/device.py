"""Where a model computes: the device a user names, and what arithmetic it has."""

import os

import torch

from regard import cpu
from regard.errors import UsageError


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
