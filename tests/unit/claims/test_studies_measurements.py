"""The lectures' claims hold, and the numbers agree with the formulas."""

import pytest

from regard.claims.measurements import cost_of_heads, gradients_through_time, saturation


def test_gradients_follow_the_largest_singular_value_and_the_lstm_keeps_them():
    rows = gradients_through_time([1, 10, 30])
    at_thirty = {row["network"]: row["gradient"] for row in rows if row["steps_back"] == 30}
    assert at_thirty["RNN, singular values 1.2"] == pytest.approx(1.2**29, rel=0.3)
    assert at_thirty["RNN, singular values 0.8"] == pytest.approx(0.8**29, rel=0.05)
    assert at_thirty["LSTM, along the cell"] == pytest.approx(1.0, abs=1e-4)


def test_heads_cost_no_parameters():
    rows = cost_of_heads([1, 4, 8], width=64, length=16)
    assert {row["parameters"] for row in rows} == {4 * (64 * 64 + 64)}
    assert [row["head_width"] for row in rows] == [64, 16, 8]


def test_without_scaling_wide_vectors_saturate_the_softmax():
    narrow, wide = saturation([4, 1024])
    assert wide["unscaled"] > 0.9 > narrow["unscaled"]
    assert wide["scaled"] == pytest.approx(narrow["scaled"], abs=0.1)
