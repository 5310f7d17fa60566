"""Cross-entropy over a vocabulary on a GPU: logits are turned into their gradient where they stand.

torch makes several passes over logits that are larger than everything else in a step; this kernel makes two.
Triton comes with torch's builds for CUDA; without it nothing here applies.
"""

from typing import no_type_check

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.short_rows import TRITON

BLOCK, WARPS = 4096, 8  # logits that a row takes at a time, and by how many times 32 threads: the fastest on an H200


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

    Where it is `wanted`, the gradient of the sum takes the place of the logits, with zeros in the columns beyond.
    """
    losses = torch.zeros(len(logits), device=logits.device)
    if not len(logits):
        return losses
    counted = labels if mask is None else mask.view(torch.uint8)
    with torch.cuda.device_of(logits):
        _judge[(len(logits),)](
            logits, labels.contiguous(), counted.contiguous(), losses, logits.stride(0), vocabulary, logits.shape[1],
            smoothing, MASKED=mask is not None, WANTED=wanted, BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip
    return losses


if TRITON:
    import triton
    import triton.language as tl

    @triton.jit
    @no_type_check
    def _judge(
        logits, labels, counted, losses, stride, vocabulary, columns, smoothing,
        MASKED: tl.constexpr, WANTED: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """One row: log Σ exp x, then exp(x - log Σ exp x) - ε/V - (1-ε) at the label."""
        row = tl.program_id(0).to(tl.int64)
        start = logits + row * stride
        label = tl.load(labels + row)
        known = (label >= 0) & (label < vocabulary)  # any other makes the loss no number, and reads nothing
        chosen = tl.load(start + label, mask=known, other=float("nan")).to(tl.float32)
        places = tl.arange(0, BLOCK)
        highest, total, plain = float("-inf"), 0.0, 0.0
        for first in range(0, vocabulary, BLOCK):
            place = first + places
            real = place < vocabulary
            x = tl.load(start + place, mask=real, other=float("-inf")).to(tl.float32)
            above = tl.maximum(highest, tl.max(x, axis=0))
            total = total * tl.exp(highest - above) + tl.sum(tl.exp(x - above), axis=0)
            plain += tl.sum(tl.where(real, x, 0.0), axis=0)
            highest = above
        log_sum = highest + tl.log(total)
        loss = log_sum - (1.0 - smoothing) * chosen - smoothing * plain / vocabulary
        if MASKED:  # chosen, not multiplied: what does not count may not be a number
            loss = tl.where(tl.load(counted + row) != 0, loss, 0.0)
        tl.store(losses + row, loss)
        if WANTED:
            for first in range(0, columns, BLOCK):
                place = first + places
                x = tl.load(start + place, mask=place < vocabulary, other=float("-inf")).to(tl.float32)
                slope = tl.exp(x - log_sum) - smoothing / vocabulary - tl.where(place == label, 1.0 - smoothing, 0.0)
                slope = tl.where(place < vocabulary, slope, 0.0)
                if MASKED:
                    slope = tl.where(tl.load(counted + row) != 0, slope, 0.0)
                tl.store(start + place, slope.to(logits.dtype.element_ty), mask=place < columns)
