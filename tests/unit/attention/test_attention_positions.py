"""Position encodings and biases against the formulas of the lectures."""

import math

import pytest
import torch

from regard.attention import attention_weights
from regard.attention.positions import (
    Added,
    Concatenated,
    LearnedPositions,
    LinearPositions,
    RelativeBias,
    Rotary,
    SinusoidalPositions,
    relative_buckets,
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


@pytest.mark.parametrize("both_sides", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 10), (6, 50), (4, 3), (64, 1000)])
def test_buckets_follow_the_formula_of_t5(both_sides, buckets, max_distance):
    own = buckets // 2 if both_sides else buckets
    exact = own // 2

    def expected(distance):  # positive: the key is earlier
        side = own if both_sides and distance < 0 else 0
        distance = abs(distance) if both_sides else max(distance, 0)
        if distance < exact:
            return side + distance
        far = math.log(distance / exact) / math.log(max_distance / exact) * (own - exact)
        return side + min(own - 1, exact + math.floor(far + 1e-6))

    found = relative_buckets(60, 200, buckets, max_distance, both_sides=both_sides)
    assert found.tolist() == [[expected(140 + q - k) for k in range(200)] for q in range(60)]


def test_buckets_are_those_of_transformers():
    theirs = pytest.importorskip("transformers.models.t5.modeling_t5").T5Attention._relative_position_bucket
    keys, queries = torch.arange(700), torch.arange(400, 700)
    for both_sides in (True, False):
        for buckets, distance in ((32, 128), (32, 600), (16, 20), (128, 256)):
            expected = theirs(keys[None] - queries[:, None], both_sides, buckets, distance)
            assert torch.equal(relative_buckets(300, 700, buckets, distance, both_sides=both_sides), expected)


def test_the_bias_of_the_last_tokens_is_the_end_of_the_whole():
    bias = RelativeBias(heads=3, buckets=8, max_distance=12, both_sides=False)
    torch.nn.init.normal_(bias.table)
    whole = bias(20, 20)
    assert whole.shape == (1, 3, 20, 20)
    assert torch.equal(bias(1, 20), whole[:, :, -1:])
    assert torch.equal(bias(7, 7), whole[:, :, :7, :7])
    with pytest.raises(ValueError, match="3 buckets"):
        RelativeBias(heads=3, buckets=3, both_sides=True)


def test_rows_may_begin_at_positions_of_their_own():
    rotary, heads = Rotary(8), torch.randn(3, 2, 5, 8)
    first = torch.tensor([4, 0, -2])
    together = rotary(heads, first)
    for row, begin in enumerate(first.tolist()):
        torch.testing.assert_close(together[row : row + 1], rotary(heads[row : row + 1], begin))
    learned = LearnedPositions(6, 10)
    found = learned(5, first)
    assert torch.equal(found[0], learned.table[4:9]) and torch.equal(found[1], learned.table[:5])
    assert torch.equal(found[2, 2:], learned.table[:3])  # distances before the first token are padding


@pytest.mark.parametrize("module", [SinusoidalPositions(6, length=9), LinearPositions(6), LearnedPositions(6, 9)])
def test_positions_counted_on_the_device_are_the_same(module):
    for first in range(6):
        torch.testing.assert_close(module(3, torch.tensor(first)), module(3, first))


def test_positions_can_be_reserved():
    module = SinusoidalPositions(6, length=4)
    module.reserve(20)
    module.reserve(10)
    assert len(module.table) == 20
    torch.testing.assert_close(module(2, torch.tensor(18)), sinusoidal(20, 6)[18:])


def test_answers_that_ended_may_go_on_beyond_the_learned_positions():
    module = LearnedPositions(6, 5)
    found = module(1, torch.tensor([3, 4, 7]))
    assert torch.equal(found[:, 0], module.table[[3, 4, 4]])


def test_a_bias_at_any_distances_is_that_of_a_row_of_keys():
    bias = RelativeBias(heads=3, buckets=8, max_distance=12, both_sides=False)
    torch.nn.init.normal_(bias.table)
    keys = torch.tensor([0, 0, 1, 1, 2, 5])  # in any order and number
    found = bias.at(5 - keys[None])
    assert torch.equal(found[..., 0, :], bias(1, 6)[..., 0, keys])
