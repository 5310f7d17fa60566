"""How real made pictures look: the Fréchet distance of their features, in a classifier of our own, from those of real
pictures. The same idea as FID, but its numbers compare only with others of the same classifier.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from regard.errors import ConfigError
from regard.inference.pipelines.images import ImageClassifier
from regard.training.evaluation.metrics import frechet

Pixels = UInt8[Tensor, "B C H W"]


class Judge:
    """A classifier of such pictures, trained before."""

    def __init__(self, folder: str, size: int, channels: int, device: torch.device) -> None:
        self.classifier = ImageClassifier.load(folder, device=str(device))
        known = self.classifier.config
        if (known.image_size, known.channels) != (size, channels):
            raise ConfigError(
                f"data.judge is {folder!r}, which reads pictures of {known.image_size} pixels and {known.channels} "
                f"channels; these have {size} and {channels}"
            )

    def distance(self, real: Iterable[Pixels], made: Iterable[Pixels]) -> float:
        """Between two sets of pictures, each in batches."""
        return frechet(*(np.concatenate([self._features(pixels) for pixels in each]) for each in (real, made)))

    @torch.inference_mode()
    def _features(self, pixels: Pixels) -> Float[np.ndarray, "B D"]:
        """What the classifier knows of pictures before it names them, whatever precision training goes on in."""
        judge = self.classifier
        with torch.autocast(pixels.device.type, enabled=False):
            maps = judge.model.features(judge.preprocessing.normalise(pixels))  # type: ignore[operator]
        return maps[-1].mean(dim=(2, 3)).double().cpu().numpy()
