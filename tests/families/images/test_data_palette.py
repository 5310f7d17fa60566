"""Palettes: nearest colours, and ImageGPT's file format."""

import json

import numpy as np
import pytest
import torch

from regard.errors import CheckpointError
from regard.families.images.generation import Palette


def test_colours_that_are_there_are_found_exactly():
    colours = np.array([[0, 0, 0], [250, 10, 10], [20, 250, 20], [240, 240, 240]], dtype=np.uint8)
    pixels = colours[np.random.default_rng(0).integers(0, 4, 5000)]
    palette = Palette.fit(pixels, 4, seed=1)
    assert torch.equal(palette.colours, torch.from_numpy(colours).float())  # sorted from dark to light already
    assert len(Palette.fit(pixels, 9, seed=1)) == 4  # no more colours than there are


def test_the_error_falls_with_more_colours():
    pixels = np.random.default_rng(0).integers(0, 256, (4000, 3), dtype=np.uint8)
    image = torch.from_numpy(pixels.reshape(1, 40, 100, 3)).permute(0, 3, 1, 2)[:, :, :, :40]
    errors = []
    for count in (2, 8, 32):
        palette = Palette.fit(pixels, count, seed=1)
        again = palette.decode(palette.encode(image), 40)
        errors.append((again.float() - image.float()).pow(2).mean().item())
    assert errors[0] > 1.5 * errors[1] > 2.25 * errors[2]


def test_every_pixel_gets_its_nearest_colour_row_by_row(tmp_path):
    palette = Palette(torch.tensor([[0.0], [100.0], [250.0]]))
    pixels = torch.tensor([[[[0, 49], [51, 200]]]], dtype=torch.uint8)
    assert palette.encode(pixels).tolist() == [[0, 0, 1, 2]]
    assert palette.decode(torch.tensor([[0, 0, 1, 2]]), 2).tolist() == [[[[0, 0], [100, 250]]]]
    palette.save(tmp_path, 2)
    again, side = Palette.load(tmp_path)
    assert side == 2
    torch.testing.assert_close(again.colours, palette.colours)
    assert json.loads((tmp_path / "preprocessor_config.json").read_text())["clusters"][0] == [-1.0]


def test_a_folder_without_a_palette_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no palette"):
        Palette.load(tmp_path)
