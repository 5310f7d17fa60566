"""Finding the regions of images: in their pixels (`data/vision_language/finders.py`), or by a detector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from regard.checkpoints.hub import local_folder
from regard.data.vision_language.finders import WHOLE, FinderConfig, Regions
from regard.inference.pipelines.detection import ObjectDetector, RegionSet

RegionReader = Callable[[Sequence[Image.Image]], list[Regions]]


def region_reader(config: FinderConfig, home: Path = Path(), device: str = "cpu") -> RegionReader:
    """What finds the regions of images; the folder of a detector is relative to `home`, a model folder."""
    if config.finder != "detector":
        return lambda images: [config.read(image) for image in images]
    detector = ObjectDetector.load(home / local_folder(config.detector), device=device)
    return lambda images: [_with_whole(found) for found in detector.regions(images, config.most)]


def _with_whole(found: RegionSet) -> Regions:
    """The regions of a detector after the whole image, whose features are their mean (as in Lu et al. 2019)."""
    boxes = np.concatenate([[WHOLE], found.boxes / np.array(found.size * 2)])
    features, classes = found.features, found.probabilities
    mean = features.mean(axis=0) if len(features) else np.zeros(features.shape[1])
    nothing = np.zeros((1, classes.shape[1]))
    return Regions(boxes, np.concatenate([[mean], features]).astype(np.float16), np.concatenate([nothing, classes]))
