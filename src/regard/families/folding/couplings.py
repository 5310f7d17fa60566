"""Coupling scores of an alignment: how much two columns depend on each other beyond what a chain of others explains.

Mean-field direct coupling analysis (Morcos et al. 2011): frequencies of residues and of pairs of residues, sequences
weighted by how many are alike; the inverse of their covariance has the couplings; the score of two columns is the norm
of their couplings, less what their mean scores explain (average product correction, Dunn et al. 2008). Nothing is
learnt from structures.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from regard.data.proteins.alphabet import RESIDUES

STATES = len(RESIDUES) + 1  # with one for gaps and unknown residues
ALIKE = 0.8  # identity from which sequences share their weight
PSEUDOCOUNT = 0.5
FEWEST = 8  # rows below which there is nothing to learn
MOST_ROWS, MOST_COLUMNS = 4000, 600  # rows used; a covariance of more columns does not fit into memory


def coupling_scores(rows: Int[np.ndarray, "N L"]) -> Float[np.ndarray, "L L"]:
    """A score for each pair of residues, in deviations from the mean, compressed by arsinh; 0 where a column is all
    gaps but for the first row, and everywhere if there are too few rows or too many columns."""
    scores = np.zeros((rows.shape[1],) * 2, dtype=np.float32)
    rows = rows[spread(len(rows), MOST_ROWS)]
    columns = np.flatnonzero((rows[1:] < len(RESIDUES)).any(axis=0)) if len(rows) >= FEWEST else np.array([], dtype=int)
    if not 2 <= len(columns) <= MOST_COLUMNS:
        return scores
    found = _corrected(_norms(rows[:, columns]))
    deviation = found[np.triu_indices(len(columns), 1)].std()
    if deviation > 0:
        scores[np.ix_(columns, columns)] = np.arcsinh(found / deviation)
    return scores


def spread(count: int, wanted: int) -> Int[np.ndarray, " M"]:
    """The numbers of at most `wanted` of `count` rows, evenly spread; the first is always among them."""
    return np.unique(np.linspace(0, count - 1, min(count, wanted)).round().astype(np.int64))


def row_weights(states: Int[np.ndarray, "N L"]) -> Float[np.ndarray, " N"]:
    """1 / the number of rows that are alike, itself included."""
    one_hot = _one_hot(states).reshape(len(states), -1)
    alike = one_hot @ one_hot.T / states.shape[1]
    return 1 / (alike >= ALIKE).sum(axis=1)


def _one_hot(states: Int[np.ndarray, "N L"]) -> Float[np.ndarray, "N L S"]:
    return np.eye(STATES, dtype=np.float32)[states]


def _norms(rows: Int[np.ndarray, "N L"]) -> Float[np.ndarray, "L L"]:
    """The Frobenius norm of the couplings of each pair of columns, in the zero-sum gauge, gaps left out."""
    states = np.where(rows < len(RESIDUES), rows, STATES - 1).astype(np.int64)
    length, free = states.shape[1], STATES - 1  # the last state is the reference
    weights = row_weights(states)
    one_hot = _one_hot(states)
    total = weights.sum()
    single = np.einsum("n,nls->ls", weights, one_hot) / total
    single = (1 - PSEUDOCOUNT) * single + PSEUDOCOUNT / STATES
    flat = one_hot[..., :free].reshape(len(states), -1)
    pairs = (1 - PSEUDOCOUNT) * ((flat * weights[:, None]).T @ flat) / total + PSEUDOCOUNT / STATES**2
    alone = single[:, :free].reshape(-1)
    for column in range(length):
        own = slice(column * free, (column + 1) * free)
        pairs[own, own] = np.diag(alone[own])
    inverse = np.linalg.inv((pairs - np.outer(alone, alone)).astype(np.float64))
    couplings = np.zeros((length, length, STATES, STATES))
    couplings[:, :, :free, :free] = -inverse.reshape(length, free, length, free).transpose(0, 2, 1, 3)
    couplings -= couplings.mean(axis=2, keepdims=True)
    couplings -= couplings.mean(axis=3, keepdims=True)
    norms = np.sqrt((couplings[:, :, :free, :free] ** 2).sum(axis=(2, 3)))
    np.fill_diagonal(norms, 0.0)
    return norms


def _corrected(norms: Float[np.ndarray, "L L"]) -> Float[np.ndarray, "L L"]:
    """Norms less the product of their columns' means, divided by the mean of all."""
    means = norms.mean(axis=0)
    corrected = norms - means[:, None] * means[None] / max(float(norms.mean()), 1e-12)
    np.fill_diagonal(corrected, 0.0)
    return corrected
