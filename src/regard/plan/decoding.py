"""What decoding keeps and computes: the cache of a sentence, and a lower bound for the time of a search (the roofline).

Both are measured on fake tensors. The work of a step grows linearly with the tokens in the cache, so three steps tell
that of any number.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from regard.attention.cache import GrowingCache
from regard.attention.core import Attend
from regard.config import Config
from regard.families.catalog import MODELS
from regard.layers.example import blank_tokens
from regard.plan.measure import measure_step, tensors_in
from regard.plan.recorder import FLOAT, Recorder, fake_tensors, without_packing
from regard.training.recipe.sections import TrainingSection

ADAMW_TOUCHES = 10  # of a weight per training step: 2 reads, its gradient written, then 4 reads and 3 writes


@dataclass(frozen=True)
class LowerBound:
    """The least FLOPs and bytes of some work; `step_bytes` are the weights that every step reads.

    Every weight is read once per step, every cached key and value once per token; activations are assumed to stay in
    the CPU's caches. Computing and reading overlap, so the longer one counts.
    """

    flops: int
    nbytes: int
    step_bytes: int

    def seconds(self, flops_rate: float, bandwidth: float) -> float:
        """The least time on a machine with these rates per second."""
        return max(self.flops / flops_rate, self.nbytes / bandwidth)


def cache_bytes(name: str, config: Config, source: int, target: int) -> dict[str, int]:
    """The bytes that decoding caches for one sentence: for its source, and for each hypothesis at full length."""
    start = MODELS[name].example.start
    nothing = {"sentence": 0, "hypothesis": 0}
    if start is None:
        return nothing
    with fake_tensors("cpu"), torch.no_grad(), Recorder():
        model: Any = MODELS[name].model(config).eval()
        with without_packing(model):
            state = start(model, 1, source)
        if state is None:
            return nothing
        model.step(blank_tokens(1, 1), state)
        fixed, growing = _held(state)
        state.reorder(blank_tokens(1, 2))  # one hypothesis becomes two, and what belongs to it doubles
        doubled, _ = _held(state)
    own = doubled - fixed
    return {"sentence": FLOAT * (fixed - own), "hypothesis": FLOAT * (own + target * growing)}


def _held(state: Any) -> tuple[int, int]:
    """The numbers that a state holds, and those that every token adds to its growing caches."""
    fixed = growing = 0
    for value in tensors_in(state):
        if isinstance(value, GrowingCache):
            assert value.k is not None and value.v is not None
            growing += (value.k.numel() + value.v.numel()) // (value.k.shape[0] * value.k.shape[2])
        elif isinstance(value, torch.Tensor) and value.is_floating_point():
            fixed += value.numel()
    return fixed, growing


def encoding(name: str, config: Config, batch: int, length: int) -> LowerBound:
    """One forward pass over a batch of texts."""
    with fake_tensors("cpu"), torch.no_grad():
        model = MODELS[name].model(config).eval()
        with Recorder(list(model.parameters())) as recorder, without_packing(model):
            MODELS[name].example.run(model, batch, length, length)
    read = FLOAT * _weights_read(model, recorder)
    return LowerBound(recorder.flops, read, read)


def training(name: str, config: Config, batch: int, length: int) -> LowerBound:
    """One training step: forward, backward, AdamW."""
    measured = measure_step(name, config, batch, length, length, TrainingSection())
    weights = FLOAT * measured.parameters
    return LowerBound(measured.step_flops, ADAMW_TOUCHES * weights, weights)


def decoding(name: str, config: Config, batch: int, beam: int, source: int, steps: int) -> LowerBound:
    """A search of `steps` steps; the first of them has one hypothesis, the others have `beam`."""
    start = MODELS[name].example.start
    assert start is not None, f"{name} has no decoder"
    with fake_tensors("cpu"), torch.no_grad():
        model: Any = MODELS[name].model(config).eval()
        meter = _Meter(model)
        with without_packing(model):
            state = meter.measure(lambda: start(model, batch, source))
        first = blank_tokens(batch, 1)
        meter.measure(lambda: model.step(first, state))
        state.reorder(first.expand(-1, beam))
        for _ in range(2):
            meter.measure(lambda: model.step(first.expand(-1, beam), state))
    flops, numbers = (_summed(counts, steps) for counts in (meter.flops, meter.numbers))
    return LowerBound(flops, FLOAT * numbers, FLOAT * meter.weights)


def _summed(counts: Sequence[int], steps: int) -> int:
    """The start, the first step, and the others, whose cost grows by the same amount every time."""
    start, first, second, third = counts
    later = max(0, steps - 1)
    return start + min(1, steps) * first + later * second + (third - second) * later * (later - 1) // 2


class _Meter:
    """The FLOPs of some calls of a model, and the numbers that they read: weights, keys and values."""

    def __init__(self, model: nn.Module):
        self.model, self.flops, self.numbers = model, list[int](), list[int]()
        self.weights = self.looked_at = 0

    def measure(self, work: Any) -> Any:
        self.looked_at = 0
        with ExitStack() as stack:
            for module in self.model.modules():
                if isinstance(module, Attend):
                    stack.callback(module.register_forward_pre_hook(self._looked).remove)
            recorder = stack.enter_context(Recorder(list(self.model.parameters())))
            result = work()
        self.weights = _weights_read(self.model, recorder)
        self.flops.append(recorder.flops)
        self.numbers.append(self.weights + (self.looked_at if len(self.flops) > 1 else 0))
        return result

    def _looked(self, module: nn.Module, args: Any) -> None:
        self.looked_at += args[1].numel() + args[2].numel()


def _weights_read(model: nn.Module, recorder: Recorder) -> int:
    return sum(p.numel() for p in model.parameters() if p.untyped_storage()._cdata in recorder.read)
