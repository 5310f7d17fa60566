"""Dynamic time warping: against all paths, and on attention whose times are known."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from regard.families.speech.whisper_pipeline import first_frames, warping_path


def all_paths(rows, columns):
    """Every monotonic path from the first corner to the last."""

    @cache
    def to(row, column):
        if (row, column) == (0, 0):
            return [((0, 0),)]
        before = [(row - 1, column - 1), (row - 1, column), (row, column - 1)]
        return [(*path, (row, column)) for one in before if min(one) >= 0 for path in to(*one)]

    return to(rows - 1, columns - 1)


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(n, marks=pytest.mark.full) for n in range(8, 20))])
def test_the_path_is_the_best_of_all(seed):
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(1, 6, 2)
    costs = rng.normal(0, 1, (rows, columns))
    best = min(sum(costs[place] for place in path) for path in all_paths(int(rows), int(columns)))
    found = list(zip(*(each.tolist() for each in warping_path(costs)), strict=True))
    assert sum(costs[place] for place in found) == pytest.approx(best)
    assert found[0] == (0, 0) and found[-1] == (rows - 1, columns - 1)
    steps = {(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(found)}
    assert steps <= {(0, 1), (1, 0), (1, 1)}


@pytest.mark.parametrize("seed", range(5))
def test_tokens_begin_where_their_attention_begins(seed):
    """Each token looks at its own stretch of frames, with noise."""
    rng = np.random.default_rng(seed)
    begins = np.cumsum([0, *rng.integers(8, 20, 5)])
    frames = int(begins[-1]) + 12
    weights = rng.uniform(0, 0.05, (3, 6, frames))
    for token, begin in enumerate(begins):
        weights[:, token, begin : begins[token + 1] if token < 5 else frames] += 1
    weights /= weights.sum(axis=-1, keepdims=True)
    assert np.abs(first_frames(weights) - begins).max() <= 3


def test_few_frames_and_equal_weights_do_not_fail():
    assert list(first_frames(np.ones((2, 3, 2)) / 2)) == sorted(first_frames(np.ones((2, 3, 2)) / 2))
    assert len(first_frames(np.ones((1, 1, 1)))) == 1
