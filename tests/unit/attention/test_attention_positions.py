"""Positions against the formulas of the lectures."""

import math

import pytest
import torch

from regard.attention import attention_weights
from regard.attention.positions import (
    Added,
    Concatenated,
    LearnedPositions,
    LinearPositions,
    Rotary,
    SinusoidalPositions,
    sinusoidal,
)


def test_sinusoidal_is_the_formula():
    table = sinusoidal(50, 16)
    for t in (0, 1, 7, 49):
        for i in range(8):
            angle = t / 10000 ** (2 * i / 16)
            assert table[t, 2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[t, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


def test_halves_hold_the_same_columns():
    table, halves = sinusoidal(9, 7), sinusoidal(9, 7, "halves")
    assert torch.equal(halves, torch.cat([table[:, 0::2], table[:, 1::2]], dim=1))


def test_the_table_grows_when_needed():
    module = SinusoidalPositions(8, length=4)
    assert torch.equal(module(3, first=20), sinusoidal(30, 8)[20:23])
    assert not module.state_dict()


def test_linear_positions_grow_with_the_length():
    module = LinearPositions(2)
    with torch.no_grad():
        module.slope.copy_(torch.tensor([2.0, -1.0]))
        module.offset.copy_(torch.tensor([1.0, 0.5]))
    assert module(3, first=1).tolist() == [[3.0, -0.5], [5.0, -1.5], [7.0, -2.5]]


def test_learned_positions_end_where_they_were_learned():
    module = LearnedPositions(4, 6)
    assert torch.equal(module(2, first=1), module.table[1:3])
    with pytest.raises(ValueError, match="only 6 were learned"):
        module(7)


def test_added_and_concatenated():
    x, positions = torch.randn(2, 3, 8), SinusoidalPositions(8)
    torch.testing.assert_close(Added(positions)(x, 2), x + sinusoidal(5, 8)[2:])
    joined = Concatenated(positions, 8)
    of_content, of_place = joined.mix.weight.split(8, dim=1)
    expected = x @ of_content.T + sinusoidal(5, 8)[2:] @ of_place.T + joined.mix.bias
    torch.testing.assert_close(joined(x, 2), expected)


def test_rotary_scores_depend_on_the_distance_alone():
    rotary, q, k = Rotary(8), torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    score = lambda i, j: float((rotary(q, i) * rotary(k, j)).sum())  # noqa: E731
    assert score(3, 5) == pytest.approx(score(10, 12), abs=1e-4)
    assert score(3, 5) != pytest.approx(score(3, 6), abs=1e-4)
    assert rotary(q, 9).norm() == pytest.approx(float(q.norm()), rel=1e-5)


def test_positions_break_permutation_equivariance():
    x, order = torch.randn(1, 1, 5, 8), torch.tensor([4, 2, 0, 1, 3])
    placed = x + sinusoidal(5, 8)
    moved = x[:, :, order] + sinusoidal(5, 8)
    same = attention_weights(placed, placed)[:, :, order][..., order]
    assert not torch.allclose(attention_weights(moved, moved), same, atol=1e-3)
