"""Reading images with boxes: detectors, by the losses of their training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.data.images.reading import Pixels
from regard.data.synthetic.shapes import SHAPE_NAMES
from regard.errors import UsageError
from regard.families.detection.annotations import open_regions
from regard.families.detection.data import canvas, fit, padded
from regard.families.detection.pipeline import AT_ONCE, ObjectDetector
from regard.families.detection.proposals import Truth
from regard.families.images.pipeline import open_image
from regard.families.images.reader import PixelReader
from regard.look.reader import SCENES, Example, Source

SEED = 0  # of the boxes that the losses draw
SURE, SHOWN = 0.5, 4  # the score of an object that is told, and how many are


class DetectionInputs(NamedTuple):
    """Images of one canvas, their own sizes, and the true boxes with classes from 1 on."""

    images: Float[Tensor, "B C H W"]
    sizes: Float[Tensor, "B 2"]
    truth: Truth


class BoxReader(PixelReader[DetectionInputs]):
    """A detector that reads images and the boxes of their objects. Its positions are those of the maps of its body."""

    columns: ClassVar = {"pixels": "|u1", "sizes": "<i4", "boxes": "<f4", "labels": "<i4"}

    def __init__(self, pipeline: ObjectDetector) -> None:
        super().__init__(pipeline)
        self.pipeline, self.detector = pipeline, pipeline.model

    def examples(self, source: Source) -> Iterator[Example]:
        for image, boxes, labels in islice(self._annotated(source), source.count):
            yield self._packed(image, boxes, labels)

    def given(self, text: str) -> Example:
        """The image of a file with the objects that the model finds in it."""
        image = open_image(text)
        objects = self.pipeline.detect(image, SURE)[0].objects
        boxes = np.array([each.box for each in objects], dtype=np.float32).reshape(-1, 4)
        return self._packed(image, boxes, [self.pipeline.labels.index(each.label) for each in objects])

    def image(self, example: Example) -> Pixels:
        """The image of an example on its canvas."""
        return example[0].reshape(self.shape[0], *example[1][:2])

    def batch(self, examples: Sequence[Example]) -> DetectionInputs:
        images = self.normalised(examples)
        sizes = torch.tensor(np.stack([example[1][2:] for example in examples]))
        for image, (height, width) in zip(images, sizes.tolist(), strict=True):
            image[:, height:], image[:, :, width:] = 0.0, 0.0  # padding is 0, as when it is read from files
        rows = [torch.tensor([*each, 0.0, 0.0, 0.0, 0.0]).view(-1, 4) for _, _, each, _ in examples]  # padding is last
        boxes = pad_sequence(rows, batch_first=True)
        labels = pad_sequence([torch.tensor([*(each + 1), 0]) for _, _, _, each in examples], batch_first=True)
        return DetectionInputs(images, sizes.to(images), Truth(boxes.to(self.device), labels.to(self.device)))

    def batches(self, examples: Sequence[Example]) -> Iterator[list[int]]:
        """Images of one canvas together: other padding would change what is seen at the border."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for number, example in enumerate(examples):
            groups.setdefault(tuple(example[1][:2].tolist()), []).append(number)
        for numbers in groups.values():
            yield from (numbers[first : first + AT_ONCE] for first in range(0, len(numbers), AT_ONCE))

    def run(self, batch: DetectionInputs) -> object:
        return self.detector.look(batch.images, batch.sizes)

    def loss(self, batch: DetectionInputs) -> tuple[float, int]:
        """The sum of the four losses of every image; the same draws every time."""
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(SEED)
            losses = self.detector(batch.images, batch.sizes, batch.truth)
        return float(sum(each.sum() for each in losses)), len(batch.images)

    def real(self, batch: DetectionInputs, place: str) -> None:
        if place.startswith("regions"):
            raise UsageError(f"{place} has a vector for each box, and boxes depend on the pass; choose a place of body")

    def answer(self, example: Example, position: int) -> str:
        """The most probable objects."""
        height, width = example[1][2:].tolist()
        image = Image.fromarray(self.image(example)[:, :height, :width].transpose(1, 2, 0).squeeze())
        found = self.pipeline.detect(image, SURE)[0].objects[:SHOWN]
        return ", ".join(f"{each.label} {each.score:.0%}" for each in found) or "no object"

    def _annotated(self, source: Source) -> Iterator[tuple[Image.Image, NDArray[np.float32], Sequence[int]]]:
        labels = self.pipeline.labels
        if source.path != SCENES:
            files = open_regions(source.path, names=labels)
            yield from ((each.image, each.boxes, each.labels.tolist()) for each in files.examples())
            return
        if unknown := [name for name in SHAPE_NAMES if name not in labels]:
            raise UsageError(f"{SCENES} have the class {unknown[0]!r}; the model knows {', '.join(labels)}")
        for image, scene in self.scenes(source):
            boxes = np.array([thing.box for thing in scene.things], dtype=np.float32) * self.shape[1]
            yield image, boxes, [labels.index(thing.shape) for thing in scene.things]

    def _packed(self, image: Image.Image, boxes: NDArray[np.float32], labels: Sequence[int]) -> Example:
        """An example from an image and its boxes, in pixels of the image."""
        pixels, (x, y) = fit(image, self.shape[1], self.shape[0])
        size = pixels.shape[1:]
        whole = padded(pixels, canvas(*size))
        sizes = np.array([*whole.shape[1:], *size], dtype=np.int32)
        scaled = (boxes * np.array([x, y, x, y])).astype(np.float32)
        return whole.ravel(), sizes, scaled.ravel(), np.array(labels, dtype=np.int32)
