"""GPU kernels of `layers/regions.py`: greedy suppression without a host sync, and weighted sums of rows.

torch has neither: its own ways build a matrix of all pairs, or sort the rows in the backward pass. The kernels need
Triton, which comes with torch's builds for CUDA; `applies` says whether they can be used.
"""

from typing import Any, no_type_check

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.short_rows import TRITON

BINS, WIDTH = 8, 256  # outputs and channels of one program that sums rows


def applies(device: str) -> bool:
    """Whether the kernels can run on this kind of device."""
    return TRITON and device == "cuda"


def suppress_on_gpu(boxes: Float[Tensor, "P N 4"], counts: Int[Tensor, "P"], threshold: float) -> Bool[Tensor, "P N"]:
    """As `regions.suppress`, one program for each set: no matrix of pairs, and the host is not asked."""
    sets, each = boxes.shape[:2]
    keep = torch.zeros(sets, each, device=boxes.device, dtype=torch.int8)
    if sets and each:
        block = triton.next_power_of_2(each)
        with torch.cuda.device_of(boxes):
            _suppress[(sets,)](
                boxes.float().contiguous(), counts.int().contiguous(), keep, each, threshold, BLOCK=block,
                num_warps=min(16, max(1, block // 256)),
            )  # fmt: skip
    return keep.bool()


def weighted_rows_on_gpu(
    rows: Float[Tensor, "M C"], places: Int[Tensor, "N K"], weights: Float[Tensor, "N K"]
) -> Float[Tensor, "N C"]:
    """As `regions.weighted_rows`; weights and sums are in single precision."""
    summed: Tensor = _WeightedRows.apply(rows.contiguous(), places.int().contiguous(), weights.float().contiguous())
    return summed


class _WeightedRows(torch.autograd.Function):
    """The gradient of the rows is added up in single precision; weights have none."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(places, weights)
        ctx.shape, ctx.dtype = rows.shape, rows.dtype
        summed = torch.empty(len(places), rows.shape[1], device=rows.device, dtype=rows.dtype)
        _run(_sum_rows, rows, summed, places, weights)
        return summed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        places, weights = ctx.saved_tensors
        result = torch.zeros(ctx.shape, device=gradient.device, dtype=torch.float32)
        _run(_spread_rows, result, gradient.contiguous(), places, weights)
        return result.to(ctx.dtype), None, None


def _run(kernel: Any, rows: Tensor, sums: Tensor, places: Tensor, weights: Tensor) -> None:
    (count, samples), channels = places.shape, rows.shape[1]
    if not count:
        return
    width = min(WIDTH, triton.next_power_of_2(channels))
    programs = triton.cdiv(count, BINS), triton.cdiv(channels, width)
    with torch.cuda.device_of(rows):
        kernel[programs](rows, sums, places, weights, count, channels, SAMPLES=samples, BINS=BINS, WIDTH=width)


if TRITON:
    import triton
    import triton.language as tl

    @triton.jit
    @no_type_check
    def _suppress(boxes, counts, keep, each, threshold, BLOCK: tl.constexpr):
        """One set: for each box that is still kept, drop those after it that overlap it too much."""
        row = tl.program_id(0).to(tl.int64)
        count = tl.load(counts + row)
        start = boxes + row * each * 4
        place = tl.arange(0, BLOCK)
        inside = place < count
        left = tl.load(start + 4 * place, mask=inside, other=0.0)
        top = tl.load(start + 4 * place + 1, mask=inside, other=0.0)
        right = tl.load(start + 4 * place + 2, mask=inside, other=0.0)
        bottom = tl.load(start + 4 * place + 3, mask=inside, other=0.0)
        area = tl.maximum(right - left, 0.0) * tl.maximum(bottom - top, 0.0)
        kept = inside.to(tl.int32)
        for number in range(0, count):
            if tl.sum(tl.where(place == number, kept, 0), axis=0) > 0:
                x1, y1 = tl.load(start + 4 * number), tl.load(start + 4 * number + 1)
                x2, y2 = tl.load(start + 4 * number + 2), tl.load(start + 4 * number + 3)
                wide = tl.maximum(tl.minimum(right, x2) - tl.maximum(left, x1), 0.0)
                high = tl.maximum(tl.minimum(bottom, y2) - tl.maximum(top, y1), 0.0)
                both = wide * high
                either = area + tl.maximum(x2 - x1, 0.0) * tl.maximum(y2 - y1, 0.0) - both
                share = both / tl.where(either > 0.0, either, 1.0)  # empty boxes overlap nothing
                over = (place > number) & (share > threshold)
                kept = tl.where(over, 0, kept)
        tl.store(keep + row * each + place, kept.to(tl.int8), mask=place < each)

    @triton.jit
    @no_type_check
    def _sum_rows(
        rows, sums, places, weights, count, channels, SAMPLES: tl.constexpr, BINS: tl.constexpr, WIDTH: tl.constexpr
    ):
        """Σ weight · row for some outputs and channels."""
        number = tl.program_id(0).to(tl.int64) * BINS + tl.arange(0, BINS)
        channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        inside = number < count
        both = inside[:, None] & (channel < channels)[None, :]
        total = tl.zeros([BINS, WIDTH], tl.float32)
        for sample in range(SAMPLES):
            place = tl.load(places + number * SAMPLES + sample, mask=inside, other=0).to(tl.int64)
            weight = tl.load(weights + number * SAMPLES + sample, mask=inside, other=0.0)
            row = tl.load(rows + place[:, None] * channels + channel[None, :], mask=both, other=0.0)
            total += weight[:, None] * row.to(tl.float32)
        tl.store(sums + number[:, None] * channels + channel[None, :], total.to(sums.dtype.element_ty), mask=both)

    @triton.jit
    @no_type_check
    def _spread_rows(
        rows, sums, places, weights, count, channels, SAMPLES: tl.constexpr, BINS: tl.constexpr, WIDTH: tl.constexpr
    ):
        """The gradient of `_sum_rows`: every output's gradient, times its weights, added to its rows."""
        number = tl.program_id(0).to(tl.int64) * BINS + tl.arange(0, BINS)
        channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
        inside = number < count
        both = inside[:, None] & (channel < channels)[None, :]
        slope = tl.load(sums + number[:, None] * channels + channel[None, :], mask=both, other=0.0).to(tl.float32)
        for sample in range(SAMPLES):
            place = tl.load(places + number * SAMPLES + sample, mask=inside, other=0).to(tl.int64)
            weight = tl.load(weights + number * SAMPLES + sample, mask=inside, other=0.0)
            tl.atomic_add(
                rows + place[:, None] * channels + channel[None, :], weight[:, None] * slope,
                mask=both & (weight != 0.0)[:, None], sem="relaxed",
            )  # fmt: skip
