"""How well paths follow instructions: success, navigation error and SPL (Anderson et al. 2018); simple baselines."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Int

from regard.data.paths.settings import LengthPrior
from regard.data.paths.store import SUCCESS, PathStore

Chosen = Float[np.ndarray, "N C"]  # for every instruction, the probability with which each candidate is taken


def expected_scores(store: PathStore, chosen: Chosen) -> dict[str, float]:
    """Success (the path ends within 3 m of the goal), the mean way left, and success weighted by path length (SPL).

    Where several candidates may be taken, these are expected values.
    """
    rows = store.routes
    errors, lengths, shortest = store.errors[rows], store.lengths[rows], store.shortest[rows, None]
    success = errors < SUCCESS
    efficiency = shortest / np.maximum(np.maximum(lengths, shortest), 1e-6)
    left = np.where(store.there[rows], errors, 0.0)
    return {
        "success": float((chosen * success).sum(axis=1).mean()),
        "error": float((chosen * left).sum(axis=1).mean()),
        "spl": float((chosen * success * efficiency).sum(axis=1).mean()),
    }


def one_hot(best: Int[np.ndarray, " N"], count: int) -> Chosen:
    """The choice of one candidate for each instruction."""
    return np.eye(count)[best]


def baselines(store: PathStore, prior: LengthPrior) -> dict[str, dict[str, float]]:
    """What choosing without reading achieves, and the best that these candidates allow."""
    there, rows = store.there, store.routes
    direct = np.where(store.direct.any(axis=1, keepdims=True), store.direct, there)
    likely = np.where(there, prior_scores(store, prior), -np.inf).argmax(axis=1)
    closest = np.where(there, store.errors, np.inf).argmin(axis=1)
    count = there.shape[1]
    choices = {
        "random": _uniform(there)[rows],
        "shortest to each end": _uniform(direct)[rows],
        "length prior": one_hot(likely[rows], count),
        "best candidate": one_hot(closest[rows], count),
    }
    return {name: expected_scores(store, chosen) for name, chosen in choices.items()}


def _uniform(among: np.ndarray) -> np.ndarray:
    return among / among.sum(axis=1, keepdims=True)


def length_prior(store: PathStore) -> LengthPrior:
    """How long the true paths of a store are."""
    sizes = (store.paths >= 0).sum(axis=1)
    counts = np.bincount(sizes) / len(sizes)
    metres = store.shortest.astype(np.float64)
    shares: Mapping[int, float] = {size: float(share) for size, share in enumerate(counts) if share}
    return LengthPrior(viewpoints=dict(shares), mean=float(metres.mean()), deviation=float(max(metres.std(), 0.1)))


def prior_scores(store: PathStore, prior: LengthPrior) -> Float[np.ndarray, "R C"]:
    """The log-probability of each candidate's number of viewpoints and, as a normal variable, of its length."""
    sizes = (store.candidates >= 0).sum(axis=-1)
    table = np.full(max(sizes.max(), *prior.viewpoints) + 1, math.log(1e-6))
    for size, share in prior.viewpoints.items():
        table[size] = math.log(share)
    scores: np.ndarray = table[sizes] - 0.5 * ((store.lengths - prior.mean) / prior.deviation) ** 2
    return scores
