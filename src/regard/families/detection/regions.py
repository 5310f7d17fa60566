"""Regions of an image: anchors, non-maximum suppression, RoI align over a pyramid, and sampling for training.

All functions take batches of images and have outputs of fixed shapes. Missing entries are masked, so that no step waits
for the device. On a GPU two of them are kernels of our own, in Triton, which comes with torch's builds for CUDA: greedy
suppression without a host sync, and weighted sums of rows. torch has neither: its own ways build a matrix of all pairs,
or sort the rows in the backward pass.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, no_type_check

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from regard.attention.short_rows import TRITON

MAX_LOG_SCALE = math.log(1000 / 16)  # larger predicted logarithms of a scale are clipped before exp
BELOW, BETWEEN = -1, -2  # matches of boxes that overlap no truth enough, and of those that count neither way

Boxes = Float[Tensor, "*B N 4"]
Weights = tuple[float, float]  # of the shift of the centre, and of the logarithm of the scale


def area(boxes: Boxes) -> Float[Tensor, "*B N"]:
    """Width times height; 0 for boxes whose corners are swapped."""
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(dim=-1)


def iou(first: Float[Tensor, "*B N 4"], second: Float[Tensor, "*B M 4"]) -> Float[Tensor, "*B N M"]:
    """Intersection over union of every pair; 0 where both boxes are empty."""
    low = torch.maximum(first[..., :, None, :2], second[..., None, :, :2])
    high = torch.minimum(first[..., :, None, 2:], second[..., None, :, 2:])
    both = (high - low).clamp(min=0).prod(dim=-1)
    either = area(first)[..., :, None] + area(second)[..., None, :] - both
    return torch.where(either > 0, both / either.clamp(min=torch.finfo(either.dtype).tiny), 0.0)


def encode(truth: Boxes, anchors: Boxes, weights: Weights) -> Boxes:
    """True boxes relative to anchors: shifts of the centre and logarithms of the scales, times weights (Ren 2015)."""
    (centre, size), (true_centre, true_size) = _centred(anchors), _centred(truth)
    shift, scale = (true_centre - centre) / size, torch.log(true_size / size)
    return torch.cat([shift * weights[0], scale * weights[1]], dim=-1)


def decode(deltas: Boxes, anchors: Boxes, weights: Weights) -> Boxes:
    """The boxes that `encode` described; scales are clipped at 1000 / 16."""
    centre, size = _centred(anchors)
    shift, scale = deltas[..., :2] / weights[0], deltas[..., 2:] / weights[1]
    centre, half = centre + shift * size, 0.5 * size * torch.exp(scale.clamp(max=MAX_LOG_SCALE))
    return torch.cat([centre - half, centre + half], dim=-1)


def _centred(boxes: Boxes) -> tuple[Float[Tensor, "*B N 2"], Float[Tensor, "*B N 2"]]:
    size = boxes[..., 2:] - boxes[..., :2]
    return boxes[..., :2] + 0.5 * size, size


def clip(boxes: Float[Tensor, "B N 4"], sizes: Float[Tensor, "B 2"]) -> Float[Tensor, "B N 4"]:
    """Boxes cut off at the borders of their images, whose `sizes` are heights and widths."""
    limits = sizes.flip(-1).repeat(1, 2)[:, None]
    return torch.minimum(boxes.clamp(min=0), limits.to(boxes.dtype))


def match(
    overlaps: Float[Tensor, "*B M N"], real: Bool[Tensor, "*B M"], *, high: float, low: float, keep_best: bool
) -> Int[Tensor, "*B N"]:
    """For each of N boxes the number of the truth it overlaps most, or BELOW `low`, or BETWEEN `low` and `high`.

    `real` marks the truths that are not padding. With `keep_best`, the boxes that overlap a truth most are matched even
    below `high`, if they overlap at all.
    """
    overlaps = overlaps.masked_fill(~real[..., None], -1.0)
    best, number = overlaps.max(dim=-2)
    matched = number.masked_fill(best < high, BETWEEN).masked_fill(best < low, BELOW)
    if not keep_best:
        return matched
    most = overlaps.amax(dim=-1, keepdim=True)
    kept = ((overlaps == most) & (most > 0)).any(dim=-2)
    return torch.where(kept, number, matched)


SMALLEST = 1e-3  # pixels; proposals and detections with a shorter side are dropped


def anchors(
    sizes: tuple[float, ...],
    ratios: tuple[float, ...],
    grid: tuple[int, int],
    stride: tuple[int, int],
    device: torch.device,
) -> Float[Tensor, "N 4"]:
    """Boxes of every size and ratio (height / width) around the top left corner of every cell, row by row.

    Cached on the device, since a copy in every step would sync. Fake tensors (`regard plan`) are not kept: they belong
    to the mode that made them.
    """
    made = _anchors.__wrapped__ if isinstance(torch.empty(0), FakeTensor) else _anchors
    return made(sizes, ratios, grid, stride, device)


@cache
def _anchors(
    sizes: tuple[float, ...],
    ratios: tuple[float, ...],
    grid: tuple[int, int],
    stride: tuple[int, int],
    device: torch.device,
) -> Float[Tensor, "N 4"]:
    with torch.inference_mode(False):
        side, ratio = torch.tensor(sizes), torch.tensor(ratios)
        height = (ratio.sqrt()[:, None] * side).flatten()
        width = ((1 / ratio.sqrt())[:, None] * side).flatten()
        shapes = (torch.stack([-width, -height, width, height], dim=1) / 2).round()
        y, x = (torch.arange(cells) * step for cells, step in zip(grid, stride, strict=True))
        corners = torch.stack(torch.meshgrid(y, x, indexing="ij"), dim=-1).flip(-1).reshape(-1, 2)
        return (corners.repeat(1, 2)[:, None] + shapes).reshape(-1, 4).to(device)


def suppress(boxes: Float[Tensor, "P N 4"], counts: Int[Tensor, "P"], threshold: float) -> Bool[Tensor, "P N"]:
    """Which boxes non-maximum suppression keeps, in P independent sets that are sorted by falling score.

    Only the first `counts` boxes of a set take part. A box is dropped if its IoU with a kept box before it exceeds the
    threshold.
    """
    if TRITON and boxes.is_cuda:
        return suppress_on_gpu(boxes, counts, threshold)
    most = int(counts.max()) if len(counts) else 0  # the sets are cut to what takes part, which saves most of the work
    keep = boxes.new_zeros(boxes.shape[:2], dtype=torch.bool)
    taking_part = torch.arange(most, device=boxes.device) < counts[:, None]
    boxes = boxes[:, :most]
    overlapping = (iou(boxes, boxes) > threshold).triu(diagonal=1)  # [P, better, worse]
    kept = taking_part
    while True:  # the fixed point is the result of the greedy algorithm: the n-th kept box is right after n rounds
        again = taking_part & ~(overlapping & kept[:, :, None]).any(dim=1)
        if torch.equal(again, kept):
            keep[:, :most] = kept
            return keep
        kept = again


def large_enough(boxes: Float[Tensor, "*B N 4"]) -> Bool[Tensor, "*B N"]:
    """Which boxes have sides that are not empty."""
    return (boxes[..., 2:] - boxes[..., :2] >= SMALLEST).all(dim=-1)


def pyramid_levels(boxes: Float[Tensor, "*B N 4"], finest: int, count: int) -> Int[Tensor, "*B N"]:
    """The map of a pyramid that a box is read from: of its `count` maps, whose first has stride 2^`finest`, number
    ⌊4 + log2(√area / 224)⌋ - `finest` (Lin et al. 2017, equation 1)."""
    level = torch.floor(4 + torch.log2(area(boxes).sqrt().clamp(min=1e-6) / 224) + 1e-6)
    return (level - finest).clamp(0, count - 1).long()


def roi_align(
    maps: Sequence[Float[Tensor, "B C _ _"]],
    boxes: Float[Tensor, "B R 4"],
    levels: Int[Tensor, "B R"],
    scales: Sequence[float],
    size: int,
    ratio: int,
    aligned: bool = False,
) -> Float[Tensor, "B R size size C"]:
    """Each box as size x size means of bilinear samples of one map (He et al. 2017), channels last.

    `scales` are those from image to map. Every bin has ratio x ratio samples; -1: as many as it has pixels, which waits
    for the device. `aligned` shifts boxes by half a pixel. Samples outside of a map have the value at its border, as in
    torchvision's Python code. Its compiled code takes 0 farther out than a pixel, where clipped boxes have no samples.
    """
    batch, channels = maps[0].shape[:2]
    rows = torch.cat([each.permute(0, 2, 3, 1).reshape(-1, channels) for each in maps])  # a row for each cell
    cells = [each.shape[2] * each.shape[3] for each in maps]
    starts = [batch * sum(cells[:number]) for number in range(len(maps))]
    number = torch.arange(batch, device=boxes.device)[:, None]
    start = _of_level(starts, levels) + number * _of_level(cells, levels)
    scaled = boxes * _of_level(scales, levels, boxes.dtype)[..., None]
    heights, widths = ([each.shape[side] for each in maps] for side in (2, 3))
    y = _samples(scaled[..., 1::2], _of_level(heights, levels), size, ratio, aligned)
    x = _samples(scaled[..., 0::2], wide := _of_level(widths, levels), size, ratio, aligned)
    # [B R size size samples]: every pair of a row and a column
    places = (y[0] * wide[..., None, None])[..., :, None, :, None] + x[0][..., None, :, None, :]
    weights = y[1][..., :, None, :, None] * x[1][..., None, :, None, :]
    places = start[..., None, None, None] + places.flatten(-2)
    summed = weighted_rows(rows, places.flatten(0, 3), weights.flatten(-2).flatten(0, 3))
    return summed.view(*boxes.shape[:2], size, size, channels)


def _of_level(
    values: Sequence[int] | Sequence[float], levels: Int[Tensor, "B R"], dtype: torch.dtype = torch.int64
) -> Tensor:
    """The value of each box's level."""
    result = torch.full(levels.shape, values[0], device=levels.device, dtype=dtype)
    for number, value in enumerate(values[1:], start=1):
        result = result.masked_fill(levels == number, value)
    return result


def _samples(
    ends: Float[Tensor, "B R 2"], cells: Int[Tensor, "B R"], size: int, ratio: int, aligned: bool
) -> tuple[Int[Tensor, "B R size K"], Float[Tensor, "B R size K"]]:
    """Along one side of the boxes: the two cells around every sample of every bin, and their weights in the mean."""
    first, last = (ends - 0.5 if aligned else ends).unbind(dim=-1)
    length = last - first if aligned else (last - first).clamp(min=1)
    if ratio > 0:
        count, most = torch.full_like(length, ratio), ratio
    else:
        count = torch.ceil(length / size).clamp(min=1)
        most = int(count.max())
    sample = torch.arange(most, device=ends.device)
    within = (sample + 0.5) / count[..., None]
    bins = torch.arange(size, device=ends.device)
    place = first[..., None, None] + (bins[:, None] + within[..., None, :]) * (length / size)[..., None, None]
    limit = cells[..., None, None]
    used = sample < count[..., None, None]
    place = place.clamp(min=0)
    low = torch.minimum(place.floor().long(), limit - 1)
    high = torch.minimum(low + 1, limit - 1)
    part = torch.where(low >= limit - 1, 0.0, place - low)
    weight = torch.stack([1 - part, part], dim=-1) * (used / count[..., None, None])[..., None]
    return torch.stack([low, high], dim=-1).flatten(-2), weight.flatten(-2)


def weighted_rows(
    rows: Float[Tensor, "M C"], places: Int[Tensor, "N K"], weights: Float[Tensor, "N K"]
) -> Float[Tensor, "N C"]:
    """For each of N outputs the weighted sum of K rows."""
    if TRITON and rows.is_cuda:
        return weighted_rows_on_gpu(rows, places, weights)
    return functional.embedding_bag(places, rows.float(), per_sample_weights=weights.float(), mode="sum").to(rows.dtype)


def sample(
    positive: Bool[Tensor, "B N"], negative: Bool[Tensor, "B N"], count: int, share: float
) -> tuple[Int[Tensor, "B K"], Bool[Tensor, "B K"]]:
    """`count` boxes of every image drawn at random, at most `share` of them positive; the mask is False where there
    were not enough."""
    count = min(count, positive.shape[1])
    draw = torch.rand(positive.shape, device=positive.device)
    most = max(1, int(count * share))
    keys, numbers = torch.where(positive, 2 + draw, 0.0).topk(most, dim=1)
    taken = keys > 0
    others, other_numbers = torch.where(negative, 1 + draw, 0.0).topk(count, dim=1)
    room = torch.arange(count, device=positive.device) < count - taken.sum(dim=1, keepdim=True)
    keys = torch.cat([keys, others.masked_fill(~room, 0.0)], dim=1)
    chosen, place = keys.topk(count, dim=1)
    return torch.cat([numbers, other_numbers], dim=1).gather(1, place), chosen > 0


def rows_at(values: Float[Tensor, "B N D"], numbers: Int[Tensor, "B K"]) -> Float[Tensor, "B K D"]:
    """Some rows of every image."""
    return values.gather(1, numbers[..., None].expand(-1, -1, values.shape[-1]))


# GPU kernels

BINS, WIDTH = 8, 256  # outputs and channels of one program that sums rows


def suppress_on_gpu(boxes: Float[Tensor, "P N 4"], counts: Int[Tensor, "P"], threshold: float) -> Bool[Tensor, "P N"]:
    """As `suppress`, one program for each set: no matrix of pairs, and the host is not asked."""
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
    """As `weighted_rows`; weights and sums are in single precision."""
    return _WeightedRows.apply(rows.contiguous(), places.int().contiguous(), weights.float().contiguous())


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
