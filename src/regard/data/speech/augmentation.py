"""SpecAugment (Park et al. 2019): bands and stretches of time of a spectrogram are hidden from the model."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt
from torch import Tensor

from regard.config import Config


class SpecAugment(Config):
    """[augmentation] of speech; widths are drawn up to a share of all bands, or of the recording."""

    band_masks: NonNegativeInt = 2
    bands: float = Field(default=27 / 80, ge=0, lt=1)  # F = 27 of 80 bands
    time_masks: NonNegativeInt = 10
    time: float = Field(default=0.05, ge=0, lt=1)

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float32]:
        """The random numbers that `__call__` needs: a width and a place for every mask."""
        return rng.random((count, 2 * (self.band_masks + self.time_masks)), dtype=np.float32)

    @torch.no_grad()
    def __call__(
        self, features: Float[Tensor, "B T M"], frames: Int[Tensor, B], draws: Float[Tensor, "B K"]
    ) -> Float[Tensor, "B T M"]:
        """Normalised spectrograms of so many real frames, zero (their mean) where they are hidden."""
        if not draws.shape[1]:
            return features
        bands, time = draws[:, : 2 * self.band_masks], draws[:, 2 * self.band_masks :]
        sizes = torch.full_like(frames, features.shape[2])
        hidden = _covered(bands, sizes, self.bands, features.shape[2])[:, None, :]
        hidden = hidden | _covered(time, frames, self.time, features.shape[1])[:, :, None]
        return torch.where(hidden, 0.0, features)


def _covered(draws: Float[Tensor, "B K"], sizes: Int[Tensor, B], share: float, length: int) -> Bool[Tensor, "B length"]:
    """Which places some mask covers: masks up to `share` of each size wide, anywhere within it."""
    widths, places = draws.unflatten(1, (-1, 2)).unbind(dim=2)  # [B masks]
    widths = (widths * (share * sizes[:, None] + 1)).floor()
    first = (places * (sizes[:, None] - widths + 1)).floor()
    at = torch.arange(length, device=draws.device)[None, None]
    return ((at >= first[..., None]) & (at < (first + widths)[..., None])).any(dim=1)
