"""Measuring predicted structures: lDDT, RMSD, and the precision of contacts, beside what knows no structure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from regard.families.folding.data import FoldExample
from regard.families.folding.layers import Frames
from regard.families.folding.structures import CONTACT

CLAMP, SCALE = 10.0, 10.0  # ångströms
FAPE_EPSILON = 1e-4
LDDT_CUTOFF, LDDT_THRESHOLDS = 15.0, (0.5, 1.0, 2.0, 4.0)
LDDT_EPSILON = 1e-10


def fape(predicted: Frames, true: Frames, mask: Bool[Tensor, "*B T"], unclamped: float = 0.0) -> Float[Tensor, "*B"]:
    """The frame-aligned point error (algorithm 28), in units of 10 ångströms: how far each CA atom is from its true
    place, seen from each residue's frame. Errors are clamped at 10 ångströms, but for a share that is not."""
    points, targets = (
        frames.invert(frames.translation[..., None, :, :].expand(*frames.translation.shape[:-1], -1, 3))
        for frames in (predicted, true)
    )
    errors = ((points - targets).square().sum(dim=-1) + FAPE_EPSILON).sqrt()
    counted = (mask[..., :, None] & mask[..., None, :]).to(errors.dtype)
    mixed = (1 - unclamped) * errors.clamp(max=CLAMP) + unclamped * errors
    count = mask.sum(dim=-1).to(errors.dtype) + FAPE_EPSILON
    return (mixed / SCALE * counted).sum(dim=(-1, -2)) / count.square()


def distance_losses(
    logits: Float[Tensor, "B T T bins"], points: Float[Tensor, "B T 3"], edges: Float[Tensor, edges]
) -> Float[Tensor, "B T T"]:
    """The cross-entropy of the binned distance of each pair of CB atoms."""
    squared = (points[:, :, None] - points[:, None]).square().sum(dim=-1)
    bins = (squared[..., None] > edges.square()).sum(dim=-1)
    return functional.cross_entropy(logits.float().flatten(0, 2), bins.flatten(), reduction="none").view(bins.shape)


def distogram_loss(
    logits: Float[Tensor, "B T T bins"],
    points: Float[Tensor, "B T 3"],
    mask: Bool[Tensor, "B T"],
    edges: Float[Tensor, edges],
) -> Float[Tensor, B]:
    """The mean of these over the pairs that are known."""
    losses = distance_losses(logits, points, edges)
    counted = (mask[:, :, None] & mask[:, None]).to(losses.dtype)
    return (losses * counted).sum(dim=(1, 2)) / (counted.sum(dim=(1, 2)) + 1e-6)


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
    losses = functional.cross_entropy(logits.float().flatten(0, 1), bins.flatten(), reduction="none").view(bins.shape)
    return (losses * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)


LONG_RANGE = 24  # residues from one to the other
SHARE = 5  # the L / 5 most probable pairs are measured
DRAWS = 10_000  # of the bootstrap
COVERED = 0.95


def long_range_precision(
    scores: Float[np.ndarray, "T T"],
    points: Float[np.ndarray, "T 3"],
    known: Bool[np.ndarray, " T"],
    share: int = SHARE,
) -> float:
    """The share of contacts among the L / 5 pairs of highest score; pairs of equal score count by their mean.

    NaN if a chain has no such pair.
    """
    first, second = np.triu_indices(len(points), LONG_RANGE)
    both = known[first] & known[second]
    first, second = first[both], second[both]
    if not len(first):
        return math.nan
    near = np.linalg.norm(points[first] - points[second], axis=-1) < CONTACT
    chosen, wanted = scores[first, second], min(len(first), max(1, len(points) // share))
    least = np.sort(chosen)[-wanted]
    sure, tied = chosen > least, chosen == least
    return float((near[sure].sum() + (wanted - sure.sum()) * near[tied].mean()) / wanted)


class ChainScores(NamedTuple):
    """One chain: lDDT, RMSD in Å after superposition, precision of long-range contacts, and the predicted lDDT."""

    name: str
    residues: int
    lddt: float
    rmsd: float
    precision: float
    confidence: float


def superposed(
    moving: Float[np.ndarray, "T 3"], fixed: Float[np.ndarray, "T 3"], known: Bool[np.ndarray, " T"]
) -> Float[np.ndarray, "T 3"]:
    """Points turned and moved so that they lie best on others where both are known (Kabsch 1976)."""
    here, there = moving[known].mean(axis=0), fixed[known].mean(axis=0)
    u, _, vt = np.linalg.svd((moving[known] - here).T @ (fixed[known] - there))
    turn = np.diag([1.0, 1.0, np.sign(np.linalg.det(u @ vt))])
    return (moving - here) @ (u @ turn @ vt) + there


def rmsd(moving: Float[np.ndarray, "T 3"], fixed: Float[np.ndarray, "T 3"], known: Bool[np.ndarray, " T"]) -> float:
    """The root of the mean squared distance after superposition."""
    apart = superposed(moving, fixed, known)[known] - fixed[known]
    return float(np.sqrt((apart**2).sum(axis=-1).mean()))


def score_chain(
    example: FoldExample, places: Float[np.ndarray, "T 3"], contacts: Float[np.ndarray, "T T"], confidence: float
) -> ChainScores:
    """A prediction beside the truth: places of CA atoms, and probabilities of contacts."""
    given, chain = example
    true, known = chain.atoms[:, 1], chain.known[:, 1]
    right = lddt(*(torch.from_numpy(np.asarray(array)) for array in (places, true, known)))[torch.from_numpy(known)]
    precision = long_range_precision(contacts, *chain.contact_points())
    return ChainScores(given.name, len(given), float(right.mean()), rmsd(places, true, known), precision, confidence)


def baselines(example: FoldExample, prior: Sequence[float]) -> dict[str, float]:
    """The precision of long-range contacts that are chosen at random, by the distance along the chain, or by the
    coupling scores of the alignment."""
    points, known = example.chain.contact_points()
    size = len(points)
    apart = np.abs(np.arange(size)[:, None] - np.arange(size)[None])
    table = np.zeros(max(size, len(prior)))
    table[: len(prior)] = prior
    scores = {"random": np.zeros((size, size)), "separation prior": table[apart]}
    if example.given.couplings is not None:
        scores["coupling scores alone"] = example.given.couplings
    return {name: long_range_precision(each, points, known) for name, each in scores.items()}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The bootstrap interval of a mean over chains: in 95 of 100 draws of as many chains it lies between the two."""
    found = np.array([value for value in values if not math.isnan(value)])
    if not len(found):
        return math.nan, math.nan
    drawn = np.random.default_rng(1).choice(found, (DRAWS, len(found))).mean(axis=1)
    low, high = np.quantile(drawn, [(1 - COVERED) / 2, (1 + COVERED) / 2])
    return float(low), float(high)


def mean(values: Iterable[float]) -> float:
    """The mean of the values that there are; NaN if there is none."""
    found = [value for value in values if not math.isnan(value)]
    return sum(found) / len(found) if found else math.nan


def summed_up(scores: Sequence[ChainScores]) -> dict[str, float]:
    """Means over chains; without the precision if no chain is long enough for long-range contacts."""
    names = ("lddt", "rmsd", "precision", "confidence")
    means = {name: mean(getattr(score, name) for score in scores) for name in names}
    return {name: value for name, value in means.items() if not math.isnan(value)}
