"""Cross-entropy over a vocabulary as a GPU kernel that overwrites the logits with their gradient.

Logits are the largest tensor of a step. torch reads them in several passes, this kernel in two. It needs Triton, which
comes with torch's builds for CUDA; `applies` says whether it can be used.
"""

from typing import no_type_check

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.short_rows import TRITON

BLOCK, VECTOR, WARPS = 4096, 8, 16  # logits per iteration, adjacent logits per thread, warps per row


def applies(device: str) -> bool:
    """Whether the kernel can run on this kind of device."""
    return TRITON and device == "cuda"


def judge_in_place(
    logits: Float[Tensor, "N V2"],
    labels: Int[Tensor, "N"],
    mask: Bool[Tensor, "N"] | None,
    *,
    vocabulary: int,
    smoothing: float,
    wanted: bool,
) -> Float[Tensor, "N"]:
    """The label-smoothed loss of each row over its first `vocabulary` logits, zero where `mask` is False.

    If `wanted`, the gradient of the summed loss overwrites the logits. It is zero in columns beyond the vocabulary.
    """
    losses = torch.zeros(len(logits), device=logits.device)
    if not len(logits):
        return losses
    counted = labels if mask is None else mask.view(torch.uint8)
    with torch.cuda.device_of(logits):
        _judge[(len(logits),)](
            logits, labels.contiguous(), counted.contiguous(), losses, logits.stride(0), vocabulary, logits.shape[1],
            smoothing, MASKED=mask is not None, SMOOTHED=smoothing > 0, WANTED=wanted, BLOCK=BLOCK, VECTOR=VECTOR,
            num_warps=WARPS,
        )  # fmt: skip
    return losses


if TRITON:
    import triton
    import triton.language as tl

    LOWEST, LOG2_E = tl.constexpr(-1e30), tl.constexpr(1.4426950408889634)  # GPUs compute exp(x) as 2^(x log₂ e)

    @triton.jit
    @no_type_check
    def _read(start, place, vocabulary, columns):
        """Logits of a row, -∞ beyond the vocabulary. The load itself is masked only at the last column: a mask that can
        split a thread's vector load would make it read two bytes at a time."""
        x = tl.load(start + place, mask=place < columns, other=0.0).to(tl.float32)
        return tl.where(place < vocabulary, x, float("-inf"))

    @triton.jit
    @no_type_check
    def _judge(
        logits, labels, counted, losses, stride, vocabulary, columns, smoothing,
        MASKED: tl.constexpr, SMOOTHED: tl.constexpr, WANTED: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr,
    ):  # fmt: skip
        """One row: its loss from log Σ exp x, then its gradient exp(x - log Σ exp x) - ε/V, minus (1-ε) at the label.

        Every thread keeps its own maximum and sum until the row is read, so threads synchronise once.
        """
        row = tl.program_id(0).to(tl.int64)
        start = logits + row * stride
        label = tl.load(labels + row)
        known = (label >= 0) & (label < vocabulary)  # any other label is not read, and makes the loss NaN
        label = tl.where(known, label, -1).to(tl.int32)
        chosen = tl.load(start + label, mask=known, other=float("nan")).to(tl.float32)
        if MASKED:
            counts = tl.load(counted + row) != 0
        places = tl.arange(0, BLOCK // VECTOR)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
        highest = tl.full([BLOCK // VECTOR], LOWEST, tl.float32)
        total, plain = tl.zeros_like(highest), tl.zeros_like(highest)
        for first in range(0, vocabulary, BLOCK):
            place = first + places
            x = _read(start, place, vocabulary, columns) * LOG2_E
            above = tl.maximum(highest, tl.max(x, axis=1))
            total = total * tl.exp2(highest - above) + tl.sum(tl.exp2(x - above[:, None]), axis=1)
            highest = above
            if SMOOTHED:
                plain += tl.sum(tl.where(place < vocabulary, x, 0.0), axis=1)
        top = tl.max(highest, axis=0)
        log_sum = top + tl.log2(tl.sum(total * tl.exp2(highest - top), axis=0))  # base-2 logarithm, also below
        loss = log_sum / LOG2_E - (1.0 - smoothing) * chosen
        if SMOOTHED:
            loss -= smoothing * tl.sum(plain, axis=0) / (LOG2_E * vocabulary)
        if MASKED:
            loss = tl.where(counts, loss, 0.0)  # selected, not multiplied by 0: a masked loss may be NaN
        tl.store(losses + row, loss)
        if WANTED:
            for first in range(0, columns, BLOCK):
                place = first + places
                slope = tl.exp2(_read(start, place, vocabulary, columns) * LOG2_E - log_sum)
                slope -= tl.where(place == label, 1.0 - smoothing, 0.0)
                if SMOOTHED:
                    slope = tl.where(place < vocabulary, slope - smoothing / vocabulary, 0.0)
                if MASKED:
                    slope = tl.where(counts, slope, 0.0)
                tl.store(start + place, slope.to(logits.dtype.element_ty), mask=place < columns)
