"""Losses of predicted structures, one number for each chain (Jumper et al. 2021, section 1.9)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from regard.layers.frames import Frames

CLAMP, SCALE = 10.0, 10.0  # ångströms
FAPE_EPSILON = 1e-4
LDDT_CUTOFF, LDDT_THRESHOLDS = 15.0, (0.5, 1.0, 2.0, 4.0)
LDDT_EPSILON = 1e-10


def aligned_errors(
    predicted: Frames, true: Frames, mask: Bool[Tensor, "*B T"]
) -> tuple[Float[Tensor, "*B T T"], Float[Tensor, "*B T T"]]:
    """How far each CA atom is from its true place, seen from each residue's frame, and which of these count."""
    points, targets = (each.invert(_for_each(each)) for each in (predicted, true))
    errors = ((points - targets).square().sum(dim=-1) + FAPE_EPSILON).sqrt()
    return errors, (mask[..., :, None] & mask[..., None, :]).to(errors.dtype)


def fape(
    predicted: Frames, true: Frames, mask: Bool[Tensor, "*B T"], clamp: float | None = CLAMP
) -> Float[Tensor, "*B"]:
    """The frame-aligned point error of CA atoms (algorithm 28), in units of 10 ångströms; `clamp` limits each error."""
    errors, counted = aligned_errors(predicted, true, mask)
    return _mean_error(errors if clamp is None else errors.clamp(max=clamp), counted, mask)


def partly_clamped_fape(
    predicted: Frames, true: Frames, mask: Bool[Tensor, "*B T"], unclamped: float
) -> Float[Tensor, "*B"]:
    """The same error, clamped, but for a share that is not."""
    errors, counted = aligned_errors(predicted, true, mask)
    mixed = (1 - unclamped) * errors.clamp(max=CLAMP) + unclamped * errors
    return _mean_error(mixed, counted, mask)


def _mean_error(errors: Tensor, counted: Tensor, mask: Tensor) -> Tensor:
    count = mask.sum(dim=-1).to(errors.dtype) + FAPE_EPSILON
    return (errors / SCALE * counted).sum(dim=(-1, -2)) / count.square()


def _for_each(frames: Frames) -> Float[Tensor, "*B T T 3"]:
    places = frames.translation
    return places[..., None, :, :].expand(*places.shape[:-2], places.shape[-2], *places.shape[-2:])


def distance_bins(points: Float[Tensor, "*B T 3"], edges: Float[Tensor, edges]) -> Int[Tensor, "*B T T"]:
    """The bin of the distance of each pair of points."""
    squared = (points[..., :, None, :] - points[..., None, :, :]).square().sum(dim=-1)
    return (squared[..., None] > edges.square()).sum(dim=-1)


def distogram_loss(
    logits: Float[Tensor, "B T T bins"],
    points: Float[Tensor, "B T 3"],
    mask: Bool[Tensor, "B T"],
    edges: Float[Tensor, edges],
) -> Float[Tensor, B]:
    """The mean cross-entropy of the binned distances of CB atoms."""
    bins = distance_bins(points, edges)
    each = functional.cross_entropy(logits.float().flatten(0, 2), bins.flatten(), reduction="none").view(bins.shape)
    counted = (mask[:, :, None] & mask[:, None]).to(each.dtype)
    return (each * counted).sum(dim=(1, 2)) / (counted.sum(dim=(1, 2)) + 1e-6)


def lddt(
    predicted: Float[Tensor, "*B T 3"], true: Float[Tensor, "*B T 3"], mask: Bool[Tensor, "*B T"]
) -> Float[Tensor, "*B T"]:
    """The lDDT of each CA atom (Mariani et al. 2013): of its distances to others within 15 Å, the mean share that is
    right to within ½, 1, 2 and 4 Å. Without such others it is 1."""
    near, far = (_distances(each) for each in (true, predicted))
    others = ~torch.eye(mask.shape[-1], dtype=torch.bool, device=mask.device)
    scored = ((near < LDDT_CUTOFF) & mask[..., :, None] & mask[..., None, :] & others).to(near.dtype)
    wrong = (near - far).abs()
    right = torch.stack([wrong < each for each in LDDT_THRESHOLDS]).to(near.dtype).mean(dim=0)
    return (LDDT_EPSILON + (scored * right).sum(dim=-1)) / (LDDT_EPSILON + scored.sum(dim=-1))


def _distances(points: Float[Tensor, "*B T 3"]) -> Float[Tensor, "*B T T"]:
    apart = points[..., :, None, :] - points[..., None, :, :]
    return (apart.square().sum(dim=-1) + LDDT_EPSILON).sqrt()


def confidence_loss(
    logits: Float[Tensor, "B T bins"], scores: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, B]:
    """The mean cross-entropy of the binned lDDT of each residue."""
    count = logits.shape[-1]
    bins = (scores * count).long().clamp(max=count - 1)
    each = functional.cross_entropy(logits.float().flatten(0, 1), bins.flatten(), reduction="none").view(bins.shape)
    return (each * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
