"""When tokens are said, from the attention of a decoder to the audio: dynamic time warping (Sakoe & Chiba 1978).

Tokens and frames are aligned by the monotonic path with the most attention along it, as Whisper finds the times of
words.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from numpy.lib.stride_tricks import sliding_window_view

SMOOTHED = 7  # frames of the median filter


def first_frames(weights: Float[np.ndarray, "H T F"]) -> Int[np.ndarray, T]:
    """The frame at which each token begins, from the attention of some heads: normalised over the tokens, smoothed
    over time, and averaged."""
    spread = weights.std(axis=1, keepdims=True)
    even = (weights - weights.mean(axis=1, keepdims=True)) / np.where(spread > 0, spread, 1.0)
    tokens, frames = warping_path(-_smoothed(even).mean(axis=0))
    begins = np.flatnonzero(np.diff(tokens, prepend=-1))
    return frames[begins]


def warping_path(costs: Float[np.ndarray, "T F"]) -> tuple[Int[np.ndarray, N], Int[np.ndarray, N]]:
    """The rows and columns of the path of least cost from the first corner to the last; each step goes on by a row, a
    column, or both."""
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf)
    total[0, 0] = 0.0
    for row in range(rows):
        before, here = total[row], total[row + 1]
        entered = np.minimum(before[:-1], before[1:])
        best = np.inf
        for column, cost in enumerate(costs[row]):  # a frame depends on the frame before, so this cannot be vectorised
            best = min(entered[column], best) + cost
            here[column + 1] = best
    return _traced(total)


def _traced(total: Float[np.ndarray, "T1 F1"]) -> tuple[Int[np.ndarray, N], Int[np.ndarray, N]]:
    """The path back from the last corner."""
    row, column = total.shape[0] - 1, total.shape[1] - 1
    path = []
    while row and column:
        path.append((row - 1, column - 1))
        steps = {(1, 1): total[row - 1, column - 1], (1, 0): total[row - 1, column], (0, 1): total[row, column - 1]}
        down, across = min(steps, key=lambda step: steps[step])
        row, column = row - down, column - across
    tokens, frames = np.array(path[::-1], dtype=np.int64).reshape(-1, 2).T
    return tokens, frames


def _smoothed(weights: Float[np.ndarray, "H T F"]) -> Float[np.ndarray, "H T F"]:
    """The median of the frames around each."""
    half = SMOOTHED // 2
    if weights.shape[-1] <= half:
        return weights
    padded = np.pad(weights, ((0, 0), (0, 0), (half, half)), mode="reflect")
    return np.median(sliding_window_view(padded, SMOOTHED, axis=-1), axis=-1)
