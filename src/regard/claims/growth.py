"""How attention grows with the image size: global (materialised or fused) or in windows; planned and measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.device import free_bytes
from regard.errors import UsageError
from regard.families.catalog import MODELS
from regard.plan.measure import measure_step
from regard.plan.recorder import peak_bytes
from regard.training.recipe.sections import TrainingSection

PATCH, WINDOW = 4, 8
COMMON: dict[str, Any] = {"patch": PATCH, "width": 32, "classes": 2}
GLOBAL: dict[str, Any] = {"depth": 2, "heads": 1, "ffn_width": 64, "pool": "mean"}
WINDOWED: dict[str, Any] = {"depths": (2,), "heads": (1,), "ffn_ratio": 2.0, "window": WINDOW, "drop_path": 0.0}
WRITTEN_OUT = "everywhere, written out"
WAYS: dict[str, tuple[str, dict[str, Any]]] = {  # two layers of one head each, on patches of 4 x 4 pixels
    WRITTEN_OUT: ("vit", {**GLOBAL, "attention_dropout": 0.1}),
    "everywhere, fused": ("vit", GLOBAL),
    f"windows of {WINDOW} x {WINDOW}": ("swin", WINDOWED),
}
REPEATS, PATIENCE = 5, 2.0  # timed runs, and the seconds above which one run is enough
BACKWARD = 1.5  # memory of a backward pass, relative to what was kept


@dataclass(frozen=True)
class Growth:
    """One kind of attention at one image size; nothing is measured if it would not fit into memory."""

    way: str
    side: int  # pixels
    tokens: int
    planned: int  # bytes that a training step keeps for one image, as `regard plan` says
    peak: int | None  # most bytes alive during the forward pass
    seconds: float | None  # forward and backward


def attention_growth(sides: Sequence[int], device: torch.device) -> list[Growth]:
    """The same small network with each of three kinds of attention, on square images of these sides."""
    if min(sides) < PATCH * WINDOW:
        raise UsageError(f"the smallest side is {min(sides)}; a window is {PATCH * WINDOW} pixels wide")
    return [_measured(way, side, device) for way in WAYS for side in sides]


def _measured(way: str, side: int, device: torch.device) -> Growth:
    name, values = WAYS[way]
    config = MODELS[name].config.parse({**COMMON, **values, "image_size": side})
    planned, tokens = measure_step(name, config, 1, 1, 1, TrainingSection()).activations, (side // PATCH) ** 2
    if BACKWARD * planned > free_bytes(device):
        return Growth(way, side, tokens, planned, None, None)
    torch.manual_seed(0)
    model, picture = MODELS[name].model(config).to(device), torch.rand(1, 3, side, side, device=device)

    def step() -> None:
        model(picture).sum().backward()

    with sdpa_kernel(SDPBackend.MATH) if way == WRITTEN_OUT else nullcontext():
        peak = peak_bytes(lambda: model(picture), [picture, *model.parameters()], device)
        return Growth(way, side, tokens, planned, peak, _seconds(step, device))


def _seconds(step: Callable[[], None], device: torch.device) -> float:
    times: list[float] = []
    while len(times) <= REPEATS and (not times or times[0] < PATIENCE):
        begin = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begin)
    return median(times[1:] or times)  # the first run is a warm-up
