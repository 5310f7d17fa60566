"""The detection pipeline: objects in images with their boxes, and region features for models that build on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from regard.data.images.reading import Pixels
from regard.families.detection.data import canvas, fit, padded
from regard.families.detection.model import Detector, Regions
from regard.families.detection.regions import iou
from regard.families.images.pipeline import DETAIL, ImagePipeline, ImageSource, open_image

AT_ONCE = 16  # images of one size
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
        width, height = self.size
        return [
            {
                "label": each.label,
                "score": round(each.score, 4),
                "box": [round(side / full, 5) for side, full in zip(each.box, (width, height) * 2, strict=True)],
            }
            for each in self.objects
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
    names: tuple[str, ...] = field(default=())

    @property
    def labels(self) -> list[str]:
        """The most probable class of each region."""
        return [self.names[number] for number in self.probabilities[:, 1:].argmax(axis=1)]


@dataclass(frozen=True)
class _Fitted:
    """An image at the size of the model, on its canvas."""

    pixels: Pixels
    height: int
    width: int
    size: tuple[int, int]  # width and height of the image itself

    def back(self, boxes: Tensor) -> Float[np.ndarray, "N 4"]:
        """Boxes in pixels of the image itself."""
        scale = self.size[0] / self.width, self.size[1] / self.height
        return boxes.float().cpu().numpy().astype(np.float64) * np.array(scale * 2)


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
        counts: dict[str, int] = defaultdict(int)
        for each in self.detect(image, score=0.5)[0].objects:
            counts[each.label] += 1
        return {label: str(count) for label, count in counts.items()} or {"objects": "none"}

    def detect(self, images: ImageSource | Sequence[ImageSource], score: float = 0.0) -> list[Detected]:
        """The objects of every image (a path, the bytes of a file, or a Pillow image) of at least this score."""
        found: list[Detected] = []
        for fitted, regions, row in self._looked_at(images):
            boxes, scores, labels, _ = (each[row] for each in regions.detections)
            chosen = (labels >= 0) & (scores >= score)
            places = fitted.back(boxes[chosen]).tolist()
            named = [self.labels[number] for number in labels[chosen].tolist()]
            rows = zip(named, scores[chosen].tolist(), map(tuple, places), strict=True)
            found.append(Detected(tuple(DetectedObject(*each) for each in rows), fitted.size))
        return found

    def regions(self, images: ImageSource | Sequence[ImageSource], count: int = REGIONS) -> list[RegionSet]:
        """The `count` most probable regions of every image that do not cover each other, best first: boxes, feature
        vectors and class probabilities."""
        names, found = tuple(self.labels), list[RegionSet]()
        for fitted, regions, row in self._looked_at(images):
            boxes, real = (each[row] for each in regions.proposals)
            probabilities = regions.probabilities[row]
            chosen = _spread(boxes, probabilities[:, 1:].amax(dim=1).masked_fill(~real, -1.0), count)
            features, likely = (each[chosen].float().cpu().numpy() for each in (regions.features[row], probabilities))
            found.append(RegionSet(fitted.back(boxes[chosen]), features, likely, fitted.size, names))
        return found

    def stages(self, image: ImageSource, score: float = 0.5, most: int = 100) -> list[dict[str, Any]]:
        """The boxes of each stage as plain values: objects, regions of at least this score before suppression, and
        proposals, at most so many."""
        ((fitted, regions, row),) = self._looked_at(image)
        boxes, real = (each[row] for each in regions.proposals)
        scores, labels = regions.probabilities[row][:, 1:].max(dim=1)
        probable = real & (scores >= score)

        def entries(chosen: Tensor, named: bool) -> list[dict[str, Any]]:
            order = scores.masked_fill(~chosen, -1.0).argsort(descending=True)[: min(most, int(chosen.sum()))]
            share = fitted.back(boxes[order]) / np.array(fitted.size * 2)
            rows = zip(share.round(5).tolist(), labels[order].tolist(), scores[order].tolist(), strict=True)
            return [
                {"box": box, "name": self.labels[label] if named else "", "score": score} for box, label, score in rows
            ]

        (found,) = self.detect(image, score)
        objects = [{"box": each["box"], "name": each["label"], "score": each["score"]} for each in found.fractions()]
        return [
            {"name": "objects", "boxes": objects},
            {"name": "before suppression", "boxes": entries(probable, True)},
            {"name": "proposals", "boxes": entries(real, False)},
        ]

    def pixels(self, image: ImageSource) -> Pixels:
        """An image [C H W] at the model's size, on its canvas."""
        return self._fitted(open_image(image)).pixels

    def shown(self, image: ImageSource) -> Pixels:
        """The canvas that the model sees, in as much detail as there is."""
        opened = open_image(image)
        longest = min(DETAIL, max(opened.size))
        longest = max(self.config.image_size, longest - longest % self.config.image_size)
        small = self._fitted(opened).pixels.shape
        times = longest // self.config.image_size
        return padded(fit(opened, longest, self.config.channels)[0], (small[1] * times, small[2] * times))

    def _fitted(self, image: Image.Image) -> _Fitted:
        pixels, _ = fit(image, self.config.image_size, self.config.channels)
        height, width = pixels.shape[1:]
        return _Fitted(padded(pixels, canvas(height, width)), height, width, image.size)

    def _looked_at(self, images: ImageSource | Sequence[ImageSource]) -> Iterator[tuple[_Fitted, Regions, int]]:
        """Every image in its order, with the result of its batch and its row there."""
        several = [images] if isinstance(images, ImageSource) else images
        fitted = [self._fitted(open_image(each)) for each in several]
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, each in enumerate(fitted):
            groups[each.pixels.shape].append(number)
        results: dict[int, tuple[Regions, int]] = {}
        for numbers in groups.values():
            for begin in range(0, len(numbers), AT_ONCE):
                some = numbers[begin : begin + AT_ONCE]
                result = self._look([fitted[number] for number in some])
                results |= {number: (result, row) for row, number in enumerate(some)}
        for number, each in enumerate(fitted):
            yield each, *results[number]

    def read(self, image: ImageSource) -> Float[Tensor, "1 C H W"]:
        """An image as the model reads it, on its canvas."""
        return self._canvas([self._fitted(open_image(image))])

    def _canvas(self, some: Sequence[_Fitted]) -> Float[Tensor, "B C H W"]:
        """Images of one canvas, whose padding is 0."""
        images = self.preprocessing.normalise(
            torch.from_numpy(np.stack([each.pixels for each in some])).to(self.device)
        )
        for image, each in zip(images, some, strict=True):
            image[:, each.height :], image[:, :, each.width :] = 0.0, 0.0
        return images

    @torch.inference_mode()
    def _look(self, some: Sequence[_Fitted]) -> Regions:
        images = self._canvas(some)
        sizes = torch.tensor([[each.height, each.width] for each in some], device=self.device, dtype=images.dtype)
        return self.model.look(images, sizes)


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
