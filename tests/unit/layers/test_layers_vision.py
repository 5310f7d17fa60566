"""Patches, positions on a grid, windows, and recorded window attention mapped back to the whole map."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from regard.errors import ConfigError
from regard.layers.vision import (
    GridPositions,
    ImageConfig,
    Patches,
    PatchesConfig,
    convolutional_stem,
    drop_rates,
    into_windows,
    out_of_windows,
    spans,
    weights_on_map,
)


class OneMap:
    """The feature maps of a model that has one."""

    def map_widths(self):
        return [8]

    def map_sides(self):
        return [2]


class OnePatchesConfig(OneMap, PatchesConfig): ...


class OneImageConfig(OneMap, ImageConfig): ...


def test_a_patch_is_a_linear_projection_of_its_pixels():
    torch.manual_seed(0)
    patches, images = Patches(3, 8, 4), torch.randn(2, 3, 12, 8)
    weight, bias = patches.projection.weight, patches.projection.bias
    found = patches(images)
    assert found.shape == (2, 3, 2, 8)
    for row in range(3):
        for column in range(2):
            pixels = images[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4].flatten(1)
            torch.testing.assert_close(found[:, row, column], pixels @ weight.flatten(1).T + bias)


def test_what_is_left_over_is_cut_off_or_filled_up():
    images = torch.randn(1, 1, 10, 9)
    assert Patches(1, 2, 4)(images).shape == (1, 2, 2, 2)
    padded = Patches(1, 2, 4, pad=True)
    assert padded(images).shape == (1, 3, 3, 2)
    torch.testing.assert_close(padded(images), padded(functional.pad(images, (0, 3, 0, 2))))
    with pytest.raises(ConfigError, match="10 x 9 pixels, smaller than one patch of 16"):
        Patches(1, 2, 16)(images)


@given(
    height=st.integers(1, 40), width=st.integers(1, 40), patch=st.sampled_from([1, 2, 4, 8]), pad=st.booleans(),
    batch=st.integers(1, 2),
)  # fmt: skip
def test_convolutions_leave_the_grid_of_patches(height, width, patch, pad, batch):
    plain, stem = (Patches(2, 16, patch, pad=pad, stem=stem).eval() for stem in ("patches", "convolutions"))
    images = torch.randn(batch, 2, height, width)
    if not pad and min(height, width) < patch:
        with pytest.raises(ConfigError, match=f"{height} x {width} pixels, smaller than one patch of {patch}"):
            stem(images)
    else:
        assert stem(images).shape == plain(images).shape


@pytest.mark.parametrize(
    ("width", "patch", "channels", "strides"),
    [
        (192, 4, [48, 96, 192], [1, 2, 2]),
        (150, 4, [37, 74, 150], [1, 2, 2]),
        (64, 16, [16, 32, 64, 64, 64], [1, 2, 2, 2, 2]),
        (8, 2, [8, 8], [1, 2]),
        (24, 1, [24], [1]),
    ],
)
def test_convolutions_of_a_stem_halve_the_picture_and_double_the_channels(width, patch, channels, strides):
    stem = convolutional_stem(3, width, patch)
    convolutions = [module for module in stem.modules() if isinstance(module, torch.nn.Conv2d)]
    assert [each.out_channels for each in convolutions] == [*channels, width]
    assert [each.stride for each in convolutions] == [(stride, stride) for stride in [*strides, 1]]
    assert [each.kernel_size[0] for each in convolutions] == [*(3 for _ in strides), 1]
    norms = [module.num_features for module in stem.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert norms == channels


def test_a_stem_of_convolutions_is_what_its_parts_compute_in_turn():
    torch.manual_seed(0)
    patches, images = Patches(3, 32, 4, stem="convolutions"), torch.randn(2, 3, 9, 14)
    kernels = [parameter for parameter in patches.parameters() if parameter.dim() == 4]
    x = images[:, :, :8, :12]
    for kernel, stride in zip(kernels[:3], (1, 2, 2), strict=True):
        x = functional.conv2d(x, kernel, stride=stride, padding=1)
        x = functional.gelu(
            (x - x.mean((0, 2, 3), keepdim=True)) / (x.var((0, 2, 3), False, keepdim=True) + 1e-5).sqrt()
        )
    x = functional.conv2d(x, kernels[3], patches.projection[-1].bias)
    torch.testing.assert_close(patches(images), x.permute(0, 2, 3, 1), atol=1e-5, rtol=1e-5)


def test_neighbours_are_seen_through_convolutions_only():
    """A change of one pixel reaches its own patch only, or with convolutions also the patches around it."""
    images = torch.zeros(2, 1, 16, 16)
    images[1, 0, 8, 8] = 5.0
    for stem, reached in (("patches", 1), ("convolutions", 9)):
        torch.manual_seed(0)
        here, there = Patches(1, 32, 4, stem=stem).eval()(images)
        assert (here != there).any(-1).sum() == reached


@pytest.mark.parametrize("patch", [3, 14, 24])
def test_only_powers_of_two_can_be_halved_away(patch):
    assert OnePatchesConfig(patch=patch).stem == "patches"
    with pytest.raises(ConfigError, match=f"patch = {patch}: .* must be 1, 2, 4, 8, 16 or so on"):
        OnePatchesConfig(patch=patch, stem="convolutions")


def test_positions_of_the_own_grid_are_the_table_and_others_its_picture_resized():
    torch.manual_seed(0)
    positions = GridPositions(6, 4, extra=1)
    assert positions((4, 4)) is positions.table
    found = positions((7, 3))
    assert found.shape == (22, 6)
    torch.testing.assert_close(found[0], positions.table[0])
    picture = positions.table[1:].view(4, 4, 6).permute(2, 0, 1)[None]
    expected = functional.interpolate(picture, (7, 3), mode="bicubic")[0].permute(1, 2, 0)
    torch.testing.assert_close(found[1:].view(7, 3, 6), expected)


@given(rows=st.integers(1, 4), columns=st.integers(1, 4), window=st.integers(1, 4), batch=st.integers(1, 3))
def test_windows_are_pieces_of_the_map_and_can_be_joined(rows, columns, window, batch):
    x = torch.arange(batch * rows * columns * window**2 * 2.0).view(batch, rows * window, columns * window, 2)
    windows = into_windows(x, window)
    assert windows.shape == (batch * rows * columns, window**2, 2)
    last = x[-1, -window:, -window:].flatten(0, 1)
    assert torch.equal(windows[-1], last)
    assert torch.equal(out_of_windows(windows, (rows * window, columns * window)), x)


def test_recorded_windows_become_attention_of_the_whole_map():
    """Two windows of three tokens on a map of five cells; the last token of the second is padding."""
    queries = torch.tensor([[0, 3, 1], [4, 2, -1]])
    weights = torch.rand(4, 2, 3, 3)  # two images, two heads
    whole = weights_on_map(weights, queries, queries, 5)
    assert whole.shape == (2, 2, 5, 5)
    expected = torch.zeros(2, 2, 5, 5)
    for picture in range(2):
        for window, cells in enumerate(queries.tolist()):
            for i, here in enumerate(cells):
                for j, there in enumerate(cells):
                    if here >= 0 and there >= 0:
                        expected[picture, :, here, there] = weights[2 * picture + window, :, i, j]
    assert torch.equal(whole, expected)


def test_drop_rates_grow_and_stages_follow_each_other():
    assert drop_rates(0.3, 4) == pytest.approx([0, 0.1, 0.2, 0.3])
    assert drop_rates(0.3, 1) == [0.0]
    assert spans((2, 1, 3)) == [(0, 2), (2, 3), (3, 6)]


def test_names_must_fit_the_classes():
    assert OneImageConfig(classes=2, class_names=("cat", "dog")).classes == 2
    with pytest.raises(ConfigError, match="class_names: names 2 classes, but classes = 3"):
        OneImageConfig(classes=3, class_names=("cat", "dog"))
