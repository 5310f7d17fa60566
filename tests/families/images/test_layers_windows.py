"""Window attention against its definition, token by token: the members of each window, and the weights."""

import math

import pytest
import torch

from regard.attention import MultiHeadAttention, record
from regard.families.images.swin import (
    CosineHeads,
    DistanceNetwork,
    DistanceTable,
    WindowAttention,
    offsets,
    shift_mask,
)
from regard.layers.vision import weights_on_map


def attention_of(window, shift, version=1):
    torch.manual_seed(0)
    heads = 2
    if version == 1:
        inner = MultiHeadAttention(8, heads, position=DistanceTable(heads, window))
        torch.nn.init.normal_(inner.position.table)
    else:
        inner = MultiHeadAttention(
            8, heads, scale=1.0, prepare=CosineHeads(heads), position=DistanceNetwork(heads, window)
        )
    return WindowAttention(inner, window, shift).eval()


def shares_a_window(here, there, window, shift):
    """Windows are adjacent, with corners at `shift` and every `window` before and after it."""
    return all((a - shift) // window == (b - shift) // window for a, b in zip(here, there, strict=True))


@pytest.mark.parametrize(("grid", "window", "shift"), [((8, 8), 4, 2), ((6, 9), 3, 1), ((6, 4), 2, 1), ((8, 4), 4, 0)])
def test_the_mask_lets_look_only_within_shifted_windows(grid, window, shift):
    mask = shift_mask(grid, window, shift)
    if shift == 0:
        assert mask is None
        return
    columns, layer = grid[1], attention_of(window, shift)
    cells, _ = layer.windows(grid)
    for number, tokens in enumerate(cells.tolist()):
        for i, here in enumerate(tokens):
            for j, there in enumerate(tokens):
                places = [divmod(token, columns) for token in (here, there)]
                assert bool(mask[number, 0, i, j]) == shares_a_window(*places, window, shift)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("grid", "window", "shift"), [((8, 12), 4, 2), ((6, 6), 3, 1), ((3, 7), 4, 2), ((8, 8), 4, 0)])
def test_weights_are_those_of_the_definition(grid, window, shift, version):
    layer = attention_of(window, shift, version)
    inner, (rows, columns) = layer.attention, grid
    x = torch.randn(2, rows, columns, 8)
    with torch.no_grad(), record(layer) as looks:
        found = layer(x)
        weights = weights_on_map(looks["attention"], *layer.windows(grid), rows * columns)
        if min(grid) <= window:  # one window per side: not shifted, and no larger than the map
            window, shift = min(window, *grid), 0
        if rows % window or columns % window:
            return  # padding is attended to as well; the parity tests cover it
        tokens = x.flatten(1, 2)
        heads = [inner._split(part(tokens), 2) for part in (inner.query, inner.key, inner.value)]
        q, k, v = heads
        if version == 2:
            q, k = inner.prepare(q, 0), inner.prepare(k, 0)
        scores = q @ k.transpose(2, 3) / (math.sqrt(4) if version == 1 else 1)
        bias = inner.position(q[:, :, : window**2], window**2)[0]
        for here in range(rows * columns):
            for there in range(rows * columns):
                a, b = divmod(here, columns), divmod(there, columns)
                if not shares_a_window(a, b, window, shift):
                    scores[:, :, here, there] = -math.inf
                    continue
                inside = [((y - shift) % window) * window + (x - shift) % window for y, x in (a, b)]
                scores[:, :, here, there] += bias[:, inside[0], inside[1]]
        expected = scores.softmax(-1)
        torch.testing.assert_close(weights, expected, atol=1e-5, rtol=0)
        together = inner.output((expected @ v).transpose(1, 2).flatten(2)).view_as(x)
        torch.testing.assert_close(found, together, atol=1e-5, rtol=0)


def test_the_bias_is_a_number_for_each_distance():
    table = DistanceTable(3, 4)
    bias = table(torch.zeros(1, 3, 16, 2), 16)[0]
    for i in range(16):
        for j in range(16):
            (a, b), (y, x) = divmod(i, 4), divmod(j, 4)
            assert torch.equal(bias[:, i, j], table.table[(a - y + 3) * 7 + b - x + 3])
    smaller = table(torch.zeros(1, 3, 4, 2), 4)[0]  # two by two with the same distances
    assert torch.equal(smaller, bias[:, [0, 1, 4, 5]][:, :, [0, 1, 4, 5]])


def test_offsets_count_rows_and_columns():
    rows, columns = offsets(3)
    assert (rows[8, 0], columns[8, 0]) == (2, 2) and (rows[0, 5], columns[0, 5]) == (-1, -2)


def test_continuous_biases_lie_between_0_and_16_and_go_on_to_larger_windows():
    torch.manual_seed(0)
    network = DistanceNetwork(2, trained_window=4)
    own, larger = (network(torch.zeros(1, 2, n, 2), n) for n in (16, 36))
    assert ((own > 0) & (own < 16)).all()
    # the same distance has the same bias, however large the window
    torch.testing.assert_close(larger[0, :, 0, 6 * 3 + 2], own[0, :, 0, 4 * 3 + 2])


def test_cosine_scores_do_not_depend_on_lengths():
    prepare = CosineHeads(2)
    q, k = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)
    scores = prepare(q, 0) @ prepare(k, 0).transpose(2, 3)
    expected = 10 * torch.nn.functional.cosine_similarity(q[:, :, :, None], k[:, :, None], dim=-1)
    torch.testing.assert_close(scores, expected)
    torch.testing.assert_close(prepare(7 * q, 0), prepare(q, 0))
    torch.nn.init.constant_(prepare.log_scale, 9.0)  # the temperature is at most 100
    assert (prepare(q, 0) @ prepare(q, 0).transpose(2, 3)).max().item() == pytest.approx(100)


def test_under_autocast_heads_keep_their_type_and_biases_their_precision():
    """Fused kernels need queries, keys and values of one type; bfloat16 would round biases of 8 to steps of 0.06."""
    prepare, position = CosineHeads(2), DistanceNetwork(2, 4)
    heads = torch.randn(3, 2, 16, 8, dtype=torch.bfloat16)
    exact = position(heads.float(), 16)
    with torch.autocast("cpu", torch.bfloat16):
        assert prepare(heads, 0).dtype == torch.bfloat16
        torch.testing.assert_close(position(heads, 16), exact, rtol=0, atol=0)
