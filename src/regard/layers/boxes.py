"""Boxes as tensors: their overlaps, their coding relative to anchors, and matching them with true boxes.

A box is x1, y1, x2, y2 in pixels; x2 and y2 lie outside of it. Everything works on batches and without a host sync, so
that a training step can be captured.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

MAX_LOG_SCALE = math.log(1000 / 16)  # larger predicted logarithms of a scale are clipped before exp
BELOW, BETWEEN = -1, -2  # matches of boxes that overlap no truth enough, and of those that count neither way

Boxes = Float[Tensor, "*B N 4"]
Weights = tuple[float, float]  # of the shift of the centre, and of the logarithm of the scale


def area(boxes: Boxes) -> Float[Tensor, "*B N"]:
    """Width times height; 0 for boxes whose corners are swapped."""
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(dim=-1)


def _overlap(first: Float[Tensor, "*B N 4"], second: Float[Tensor, "*B M 4"]) -> tuple[Tensor, Tensor]:
    """Intersection and union of every pair, [*B N M]."""
    low = torch.maximum(first[..., :, None, :2], second[..., None, :, :2])
    high = torch.minimum(first[..., :, None, 2:], second[..., None, :, 2:])
    both = (high - low).clamp(min=0).prod(dim=-1)
    return both, area(first)[..., :, None] + area(second)[..., None, :] - both


def iou(first: Float[Tensor, "*B N 4"], second: Float[Tensor, "*B M 4"]) -> Float[Tensor, "*B N M"]:
    """Intersection over union of every pair; 0 where both boxes are empty."""
    both, either = _overlap(first, second)
    return torch.where(either > 0, both / either.clamp(min=torch.finfo(either.dtype).tiny), 0.0)


def generalised_iou(first: Float[Tensor, "*B N 4"], second: Float[Tensor, "*B M 4"]) -> Float[Tensor, "*B N M"]:
    """IoU minus the share of the smallest enclosing box that neither box covers (Rezatofighi et al. 2019)."""
    both, either = _overlap(first, second)
    low = torch.minimum(first[..., :, None, :2], second[..., None, :, :2])
    high = torch.maximum(first[..., :, None, 2:], second[..., None, :, 2:])
    around = (high - low).clamp(min=0).prod(dim=-1)
    return both / either - (around - either) / around


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
