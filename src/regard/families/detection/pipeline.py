"""The detection pipeline: objects in images with their boxes, and region features for models that build on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from regard.data.images.reading import Pixels
from regard.families.detection.annotations import TrueBoxes
from regard.families.detection.data import NO_BOXES, FittedImage, by_canvas, collate, fit, fitted, padded
from regard.families.detection.model import Detector, Regions
from regard.families.detection.regions import iou
from regard.families.images.pipeline import DETAIL, ImagePipeline, ImageSource, open_image

REGIONS = 36  # regions of an image that `regions` gives at most


@dataclass(frozen=True)
class DetectedObject:
    """One object: its class, the probability of the class, and x1, y1, x2, y2 in pixels of the image."""

    label: str
    score: float
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class Detected:
    """The objects of an image, best first, and its width and height."""

    objects: tuple[DetectedObject, ...]
    size: tuple[int, int]

    def fractions(self) -> list[dict[str, Any]]:
        """The objects as plain values, with boxes as fractions of the image's sides."""
        return [
            {
                "label": found.label,
                "score": round(found.score, 4),
                "box": [round(side / full, 5) for side, full in zip(found.box, self.size * 2, strict=True)],
            }
            for found in self.objects
        ]


@dataclass(frozen=True)
class RegionSet:
    """The most probable regions of an image, for models that read regions in place of pixels.

    `probabilities` has a column for the background before those of the classes `names`.
    """

    boxes: Float[np.ndarray, "N 4"]  # x1, y1, x2, y2 in pixels of the image
    features: Float[np.ndarray, "N F"]
    probabilities: Float[np.ndarray, "N K"]
    size: tuple[int, int]  # width and height of the image
    names: tuple[str, ...] = ()

    @property
    def labels(self) -> list[str]:
        """The most probable class of each region."""
        return [self.names[number] for number in self.probabilities[:, 1:].argmax(axis=1)]


class ObjectDetector(ImagePipeline):
    """A detector with its preprocessing. The longer side of an image is resized to the model's size.

    Images of one canvas are computed together, since other padding would change what is seen at the border: an answer
    does not depend on the other images.
    """

    pipeline = "object_detector"
    cannot = "detects no objects"
    model: Detector

    def summary(self, image: ImageSource) -> dict[str, str]:
        """How many objects of each class there are."""
        counts = Counter(found.label for found in self.detect(image, score=0.5)[0].objects)
        return {label: str(count) for label, count in counts.items()} or {"objects": "none"}

    def detect(self, images: ImageSource | Sequence[ImageSource], score: float = 0.0) -> list[Detected]:
        """The objects of every image (a path, the bytes of a file, or a Pillow image) of at least this score."""
        answers: list[Detected] = []
        for image, regions, row in self._looked_at(images):
            boxes, scores, labels = (table[row] for table in regions.detections)
            chosen = (labels >= 0) & (scores >= score)
            names = [self.labels[number] for number in labels[chosen].tolist()]
            rows = zip(names, scores[chosen].tolist(), map(tuple, image.back(boxes[chosen]).tolist()), strict=True)
            answers.append(Detected(tuple(DetectedObject(*values) for values in rows), image.size))
        return answers

    def regions(self, images: ImageSource | Sequence[ImageSource], count: int = REGIONS) -> list[RegionSet]:
        """The `count` most probable regions of every image that do not cover each other, best first: boxes, feature
        vectors and class probabilities."""
        answers: list[RegionSet] = []
        for image, regions, row in self._looked_at(images):
            boxes, real = (table[row] for table in regions.proposals)
            probabilities = regions.probabilities[row]
            chosen = _spread(boxes, probabilities[:, 1:].amax(dim=1).masked_fill(~real, -1.0), count)
            vectors, likely = (table[chosen].float().cpu().numpy() for table in (regions.features[row], probabilities))
            answers.append(RegionSet(image.back(boxes[chosen]), vectors, likely, image.size, tuple(self.labels)))
        return answers

    def stages(self, image: ImageSource, score: float = 0.5, most: int = 100) -> list[dict[str, Any]]:
        """The boxes of each stage as plain values: objects, regions of at least this score before suppression, and
        proposals, at most so many."""
        ((whole, regions, row),) = self._looked_at(image)
        boxes, real = (table[row] for table in regions.proposals)
        scores, labels = regions.probabilities[row][:, 1:].max(dim=1)

        def entries(chosen: Tensor, named: bool) -> list[dict[str, Any]]:
            order = scores.masked_fill(~chosen, -1.0).argsort(descending=True)[: min(most, int(chosen.sum()))]
            shares = (whole.back(boxes[order]) / np.array(whole.size * 2)).round(5).tolist()
            rows = zip(shares, labels[order].tolist(), scores[order].tolist(), strict=True)
            return [
                {"box": box, "name": self.labels[label] if named else "", "score": score} for box, label, score in rows
            ]

        objects = [
            {"box": found["box"], "name": found["label"], "score": found["score"]}
            for found in self.detect(image, score)[0].fractions()
        ]
        return [
            {"name": "objects", "boxes": objects},
            {"name": "before suppression", "boxes": entries(real & (scores >= score), True)},
            {"name": "proposals", "boxes": entries(real, False)},
        ]

    def pixels(self, image: ImageSource) -> Pixels:
        """An image [C H W] at the model's size, on its canvas."""
        fit_image = self.fitted(open_image(image))
        return padded(fit_image.pixels, fit_image.canvas)

    def shown(self, image: ImageSource) -> Pixels:
        """The canvas that the model sees, in as much detail as there is."""
        opened = open_image(image)
        times = max(1, min(DETAIL, max(opened.size)) // self.config.image_size)
        height, width = self.fitted(opened).canvas
        pixels, _ = fit(opened, times * self.config.image_size, self.config.channels)
        return padded(pixels, (times * height, times * width))

    def read(self, image: ImageSource) -> Float[Tensor, "1 C H W"]:
        """An image as the model reads it, on its canvas."""
        return collate([self.fitted(open_image(image))], self.preprocessing, self.device).images

    def fitted(self, image: Image.Image, truth: TrueBoxes = NO_BOXES) -> FittedImage:
        """An image at the size of the model, and its boxes there."""
        return fitted(image, self.config.image_size, self.config.channels, truth)

    @torch.inference_mode()
    def _looked_at(self, images: ImageSource | Sequence[ImageSource]) -> list[tuple[FittedImage, Regions, int]]:
        """Every image in its order, with the result of its batch and its row there."""
        several = [images] if isinstance(images, ImageSource) else images
        fit_images = [self.fitted(open_image(image)) for image in several]
        results: dict[int, tuple[Regions, int]] = {}
        for numbers in by_canvas(fit_images):
            inputs = collate([fit_images[number] for number in numbers], self.preprocessing, self.device)
            regions = self.model.look(inputs.images, inputs.sizes)
            results |= {number: (regions, row) for row, number in enumerate(numbers)}
        return [(image, *results[number]) for number, image in enumerate(fit_images)]


def _spread(boxes: Float[Tensor, "R 4"], scores: Float[Tensor, R], count: int, overlap: float = 0.5) -> Tensor:
    """The numbers of the best boxes that overlap no better one too much."""
    order = [number for number in scores.argsort(descending=True).tolist() if scores[number] >= 0]
    overlaps, chosen = iou(boxes, boxes) > overlap, list[int]()
    for number in order:
        if len(chosen) == count:
            break
        if not overlaps[number, chosen].any():
            chosen.append(number)
    return torch.tensor(chosen, dtype=torch.long, device=boxes.device)
