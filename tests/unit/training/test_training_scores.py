"""GLUE's metrics against their definitions, computed by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.training.scores import accuracy, f1, matthews, pearson, ranks, spearman

LABELS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40)
VALUES = st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=2, max_size=40)


@given(LABELS)
def test_labels_by_the_counts_of_what_was_said_and_what_was(pairs):
    said, was = zip(*pairs, strict=True)
    counts = {cell: pairs.count(cell) for cell in itertools.product((0, 1), repeat=2)}
    tp, fp, fn, tn = (counts[cell] for cell in ((1, 1), (1, 0), (0, 1), (0, 0)))
    assert accuracy(said, was) == pytest.approx((tp + tn) / len(pairs))
    assert f1(said, was) == pytest.approx(2 * tp / (2 * tp + fp + fn) if tp + fp + fn else 0.0)
    below = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    assert matthews(said, was) == pytest.approx((tp * tn - fp * fn) / math.sqrt(below) if below else 0.0)


@given(VALUES)
def test_values_by_numpys_correlation_and_by_places(pairs):
    x, y = (np.array(side, dtype=float) for side in zip(*pairs, strict=True))
    places = [np.array([(side < each).sum() + ((side == each).sum() + 1) / 2 for each in side]) for side in (x, y)]
    assert np.array_equal(ranks(x), places[0])
    if np.ptp(x) and np.ptp(y):
        assert pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-9)
        assert spearman(x, y) == pytest.approx(np.corrcoef(*places)[0, 1], abs=1e-9)
    else:
        assert pearson(x, y) == spearman(x, y) == 0.0
