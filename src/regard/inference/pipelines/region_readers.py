"""Finding the regions of images: in their pixels (`data/vision_language/finders.py`), by a detector, or as the cells of
a grid with the features of a trained image model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

from regard.checkpoints import load_model, save_model
from regard.checkpoints.hub import local_folder
from regard.checkpoints.models import LoadedModel
from regard.data.images.reading import Preprocessing
from regard.data.vision_language.finders import WHOLE, FinderConfig, Regions, grid_boxes
from regard.device import find_device
from regard.errors import UsageError, with_article
from regard.inference.pipelines.detection import ObjectDetector, RegionSet
from regard.layers.vision import BackboneConfig, ImageInputConfig
from regard.models.bodies import BodyConfig

COPY = "regions"  # the folder within a model folder that holds the model that finds its regions
RegionReader = Callable[[Sequence[Image.Image]], list[Regions]]


def region_reader(config: FinderConfig, home: Path = Path(), device: str = "cpu") -> RegionReader:
    """What finds the regions of images; the folder of a detector or body is relative to `home`, a model folder."""
    if not config.model:
        return lambda images: [config.read(image) for image in images]
    folder = home / local_folder(config.model)
    if config.finder == "grid":
        return CellReader(folder, config.rows, config.columns, device)
    detector = ObjectDetector.load(folder, device=device)
    return lambda images: [_with_whole(found) for found in detector.regions(images, config.most)]


def save_finder(config: FinderConfig, folder: Path) -> None:
    """Write how regions are found beside the weights of a model, with a copy of the model that is needed for it."""
    config.at(COPY).save(folder)
    if config.model:
        loaded = load_model(local_folder(config.model))
        save_model(folder / COPY, loaded.name, loaded.model, _preprocessing(loaded).save)


class CellReader:
    """Finds the cells of a grid. Their features are means of the coarsest map of an image model, each normalised.

    The model sees the whole image, stretched to a square, so that every cell is where its box says.
    """

    def __init__(self, folder: Path, rows: int, columns: int, device: str = "cpu") -> None:
        loaded = load_model(folder, find_device(device))
        self.body, self.sides, self.device = _body(loaded), (rows, columns), next(loaded.model.parameters()).device
        preprocessing = _preprocessing(loaded)
        self.preprocessing = preprocessing.replace(resize=preprocessing.size)
        self.boxes = np.concatenate([[WHOLE], grid_boxes(rows, columns)])

    @torch.inference_mode()
    def __call__(self, images: Sequence[Image.Image]) -> list[Regions]:
        pixels = torch.from_numpy(np.stack([self.preprocessing.pixels(image) for image in images]))
        maps = self.body.features(self.preprocessing.normalise(pixels.to(self.device)))  # type: ignore[operator]
        cells = functional.adaptive_avg_pool2d(maps[-1].float(), self.sides).flatten(2).transpose(1, 2)
        whole = torch.cat([cells.mean(dim=1, keepdim=True), cells], dim=1)
        features = functional.layer_norm(whole, whole.shape[-1:]).cpu().numpy().astype(np.float16)
        return [Regions(self.boxes, each) for each in features]


def _body(loaded: LoadedModel) -> nn.Module:
    """The part of an image model that yields feature maps."""
    if isinstance(loaded.config, BackboneConfig):
        return loaded.model
    if isinstance(loaded.config, BodyConfig):
        body = loaded.model.body
        assert isinstance(body, nn.Module)
        return body
    raise UsageError(
        f"regions.body: {loaded.folder} is {with_article(loaded.name)} model, which yields no features of images"
    )


def _preprocessing(loaded: LoadedModel) -> Preprocessing:
    assert isinstance(loaded.config, ImageInputConfig)
    return Preprocessing.load(loaded.folder, loaded.config.image_size, loaded.config.channels)


def _with_whole(found: RegionSet) -> Regions:
    """The regions of a detector after the whole image, whose features are their mean (as in Lu et al. 2019)."""
    boxes = np.concatenate([[WHOLE], found.boxes / np.array(found.size * 2)])
    features, classes = found.features, found.probabilities
    mean = features.mean(axis=0) if len(features) else np.zeros(features.shape[1])
    nothing = np.zeros((1, classes.shape[1]))
    return Regions(boxes, np.concatenate([[mean], features]).astype(np.float16), np.concatenate([nothing, classes]))
