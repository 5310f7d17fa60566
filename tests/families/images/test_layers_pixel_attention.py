"""Attention between pixels against loops over pixels; its copies take a few times the memory of the map."""

import pytest
import torch
from torch.nn import functional

from regard.attention import record
from regard.errors import ConfigError
from regard.families.images.pixel_attention import GeometricAttention, LocalAttention, NonLocal, neighbourhoods
from regard.layers.vision import weights_on_map

GRIDS = [(7, 7, 3), (9, 5, 5), (4, 11, 7), (1, 3, 3), (6, 6, 1)]


def neighbours(y, x, rows, columns, window):
    """The pixels around one, with their distance from it."""
    reach = window // 2
    for dy in range(-reach, reach + 1):
        for dx in range(-reach, reach + 1):
            if 0 <= y + dy < rows and 0 <= x + dx < columns:
                yield y + dy, x + dx, dy, dx


def by_loops(layer, images, score, values):
    """softmax over each pixel's neighbours, one pixel and head at a time; also the attention weights."""
    pictures, _, rows, columns = images.shape
    heads, width = layer.heads, values.shape[-1] // layer.heads
    result = torch.zeros(pictures, rows, columns, values.shape[-1])
    whole = torch.zeros(pictures, heads, rows * columns, rows * columns)
    for b in range(pictures):
        for h in range(heads):
            part = slice(h * width, (h + 1) * width)
            for y in range(rows):
                for x in range(columns):
                    around = list(neighbours(y, x, rows, columns, layer.places.window))
                    scores = torch.stack([score(b, h, part, (y, x), (v, u), dy, dx) for v, u, dy, dx in around])
                    for weight, (v, u, _, _) in zip(scores.softmax(0), around, strict=True):
                        result[b, y, x, part] += weight * values[b, v, u, part]
                        whole[b, h, y * columns + x, v * columns + u] = weight
    return result.permute(0, 3, 1, 2), whole


@torch.no_grad()
def compare(layer, images, score, values):
    with record(layer) as looks:
        found = layer(images)
    expected, whole = by_loops(layer, images, score, values)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    (name,) = looks
    grid = tuple(images.shape[2:])
    mapped = weights_on_map(looks[name], *layer.windows(grid), grid[0] * grid[1])
    torch.testing.assert_close(mapped, whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("rows", "columns", "window"), GRIDS)
def test_local_attention_is_what_its_equation_says(rows, columns, window):
    torch.manual_seed(0)
    layer, images = LocalAttention(6, 8, 2, window), torch.randn(2, 6, rows, columns)
    x = images.permute(0, 2, 3, 1)
    q, k, v = layer.query(x), layer.key(x), layer.value(x)

    def score(b, h, part, here, there, dy, dx):
        reach = window // 2
        place = torch.cat([layer.rows[dy + reach], layer.columns[dx + reach]])
        return q[b, *here, part] @ (k[b, *there, part] + place) / 4**0.5

    compare(layer, images, score, v)


@pytest.mark.parametrize(("rows", "columns", "window"), GRIDS)
@pytest.mark.parametrize("outputs", [6, 4])
def test_geometric_attention_is_what_its_equation_says(rows, columns, window, outputs):
    torch.manual_seed(0)
    layer, images = GeometricAttention(6, outputs, 2, window), torch.randn(2, 6, rows, columns)
    x = images.permute(0, 2, 3, 1)
    q, k = layer.query(x), layer.key(x)

    def score(b, h, part, here, there, dy, dx):
        distance = torch.tensor([dy, dx]) / max(window // 2, 1)
        return -((q[b, *here, h] - k[b, *there, h]) ** 2) + layer.geometry(distance)[h]

    compare(layer, images, score, layer.value(x))


@pytest.mark.parametrize("kind", [LocalAttention, GeometricAttention])
def test_a_stride_is_a_mean_over_squares(kind):
    torch.manual_seed(0)
    plain = kind(4, 8, 2, 3)
    torch.manual_seed(0)
    strided, images = kind(4, 8, 2, 3, stride=2), torch.randn(1, 4, 7, 6)
    found = strided(images)
    assert found.shape == (1, 8, 4, 3)
    torch.testing.assert_close(found, functional.avg_pool2d(plain(images), 2, ceil_mode=True))


def test_keys_are_copied_a_few_times_and_not_once_for_every_neighbour():
    x = torch.randn(2, 28, 28, 4)
    for window in (3, 5, 7, 9):
        places = neighbourhoods(window)
        whole = -(-28 // places.block) * places.block
        copies = places.surroundings(x).numel() / (2 * whole**2 * 4)
        assert copies <= 4 < window**2


def test_shapes_that_cannot_be_are_explained():
    with pytest.raises(ConfigError, match="window of 4 has no middle"):
        neighbourhoods(4)
    with pytest.raises(ConfigError, match="6 channels do not split into 2 heads of an even width"):
        LocalAttention(4, 6, 2, 3)
    with pytest.raises(ConfigError, match="7 channels do not split into 2 heads"):
        GeometricAttention(4, 7, 2, 3)


@pytest.mark.parametrize("pool", [1, 2])
def test_a_non_local_block_sees_all_pixels(pool):
    torch.manual_seed(0)
    block, x = NonLocal(8, match=3, inner=4, pool=pool), torch.randn(2, 8, 5, 6)
    assert torch.equal(block(x), x)  # the gate is closed at first
    torch.nn.init.constant_(block.gain, 0.7)
    with torch.no_grad(), record(block) as looks:
        found = block(x)
        q, k, v = block.query(x), block.key(x), block.value(x)
        k, v = (functional.max_pool2d(each, pool, ceil_mode=True).flatten(2) for each in (k, v))
        weights = torch.einsum("bcp,bcs->bps", q.flatten(2), k).softmax(-1)
        torch.testing.assert_close(looks["attend"][:, 0], weights)
        seen = block.output(torch.einsum("bps,bcs->bcp", weights, v).unflatten(2, (5, 6)))
        torch.testing.assert_close(found, x + 0.7 * seen)


def test_a_norm_may_be_the_gate():
    block, x = NonLocal(8, match=4, inner=4, norm=torch.nn.BatchNorm2d), torch.randn(2, 8, 4, 4)
    assert torch.equal(block(x), x)
    torch.nn.init.ones_(block.norm.weight)
    assert not torch.equal(block(x), x)
