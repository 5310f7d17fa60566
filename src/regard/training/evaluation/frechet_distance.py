"""The Fréchet distance between the features of generated images and those of real images.

FID uses the features of an Inception network. Here they come from a classifier that Regard trained, so distances are
comparable only if they use the same classifier.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from regard.errors import ConfigError
from regard.inference.pipelines.images import ImageClassifier
from regard.training.evaluation.scores import frechet

Pixels = UInt8[Tensor, "B C H W"]


class FrechetJudge:
    """A trained classifier whose features are compared."""

    def __init__(self, folder: str, size: int, channels: int, device: torch.device) -> None:
        self.classifier = ImageClassifier.load(folder, device=str(device))
        known = self.classifier.config
        if (known.image_size, known.channels) != (size, channels):
            raise ConfigError(
                f"data.judge is {folder!r}, which reads images of {known.image_size} pixels and {known.channels} "
                f"channels; these have {size} and {channels}"
            )

    def distance(self, real: Iterable[Pixels], made: Iterable[Pixels]) -> float:
        """The distance between two sets of images, each in batches."""
        return frechet(*(np.concatenate([self._features(pixels) for pixels in each]) for each in (real, made)))

    @torch.inference_mode()
    def _features(self, pixels: Pixels) -> Float[np.ndarray, "B D"]:
        """The mean of the classifier's last map, in full precision even if training uses bf16."""
        judge = self.classifier
        with torch.autocast(pixels.device.type, enabled=False):
            maps = judge.model.features(judge.preprocessing.normalise(pixels))  # type: ignore[operator]
        return maps[-1].mean(dim=(2, 3)).double().cpu().numpy()
