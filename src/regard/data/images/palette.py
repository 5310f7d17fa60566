"""A palette of a few colours, found by k-means over the pixels of many images (Chen et al. 2020, iGPT)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor

from regard.data.images.reading import PREPROCESSING
from regard.errors import CheckpointError

ROUNDS = 30
SAMPLE = 100_000  # the most pixels that k-means uses


class Palette:
    """Numbered colours. An image is encoded as the colour numbers of its pixels, row by row."""

    def __init__(self, colours: Float[Tensor, "K C"]) -> None:
        self.colours = colours  # 0 to 255

    def __len__(self) -> int:
        return len(self.colours)

    @property
    def channels(self) -> int:
        return self.colours.shape[1]

    @classmethod
    def fit(cls, pixels: NDArray[np.uint8], count: int, seed: int) -> Palette:
        """At most `count` colours for pixels [N C], ordered from dark to light."""
        rng = np.random.default_rng(seed)
        some = pixels[rng.permutation(len(pixels))[:SAMPLE]].astype(np.float64)
        different, weights = np.unique(some, axis=0, return_counts=True)
        centres = _far_apart(different, min(count, len(different)), rng)
        for _ in range(ROUNDS):
            nearest = _distances(different, centres).argmin(axis=1)
            for number in range(len(centres)):
                if (mine := nearest == number).any():
                    centres[number] = np.average(different[mine], axis=0, weights=weights[mine])
        return cls(torch.from_numpy(centres[centres.sum(axis=1).argsort()]).float())

    def encode(self, pixels: UInt8[Tensor, "B C H W"]) -> Int[Tensor, "B T"]:
        """The number of the nearest colour of every pixel."""
        flat = pixels.flatten(2).transpose(1, 2).float()
        return torch.cdist(flat, self.colours.to(pixels.device)).argmin(dim=2)

    def decode(self, tokens: Int[Tensor, "B T"], side: int) -> UInt8[Tensor, "B C H W"]:
        """Images in the palette's colours: the inverse of `encode`."""
        pixels = self.colours.to(tokens.device)[tokens].round().to(torch.uint8)
        return pixels.transpose(1, 2).unflatten(2, (side, side))

    def save(self, folder: Path, side: int) -> None:
        """Write `preprocessor_config.json` as Hugging Face's ImageGPT does: colours from -1 to 1."""
        values = {
            "image_processor_type": "ImageGPTImageProcessor",
            "clusters": (self.colours / 127.5 - 1).tolist(),
            "do_resize": True,
            "size": {"height": side, "width": side},
            "resample": 2,
            "do_normalize": True,
            "do_color_quantize": True,
        }
        (folder / PREPROCESSING).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> tuple[Palette, int]:
        """The palette of a folder, and the side of its images."""
        path = folder / PREPROCESSING
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            colours = (torch.tensor(values["clusters"]) + 1) * 127.5
            return cls(colours), int(values["size"]["height"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} holds no palette of colours ({error!r})") from None


def _distances(points: NDArray[np.float64], centres: NDArray[np.float64]) -> NDArray[np.float64]:
    return ((points[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)


def _far_apart(points: NDArray[np.float64], count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Initial centres, each drawn in proportion to its squared distance from those before (Arthur 2007, k-means++)."""
    chosen = [points[rng.integers(len(points))]]
    while len(chosen) < count:
        far = _distances(points, np.array(chosen)).min(axis=1)
        chosen.append(points[rng.choice(len(points), p=far / far.sum())])
    return np.array(chosen)
