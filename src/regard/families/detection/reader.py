"""Detectors as sparse autoencoders read them: images with boxes, and the loss of training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import ClassVar

import numpy as np
import torch
from PIL import Image

from regard.data.images.reading import Pixels
from regard.errors import UsageError
from regard.families.detection.annotations import TrueBoxes
from regard.families.detection.data import DetectionInputs, FittedImage, by_canvas, collate, open_examples, padded
from regard.families.detection.pipeline import ObjectDetector
from regard.families.detection.task import detection_loss
from regard.families.images.pipeline import open_image
from regard.look.reader import Example, PixelReader, Source

SEED = 0  # of the boxes that the losses draw
SURE, SHOWN = 0.5, 4  # the score of an object that is shown, and how many are


class BoxReader(PixelReader[DetectionInputs]):
    """A detector that reads images and the boxes of their objects. Its positions are those of the maps of its body."""

    columns: ClassVar = {"pixels": "|u1", "sizes": "<i4", "boxes": "<f4", "labels": "<i4"}
    pipeline: ObjectDetector

    def examples(self, source: Source) -> Iterator[Example]:
        _, examples = open_examples(
            source.path, self.pipeline.labels, size=self.pipeline.config.image_size, part=source.part,
            count=source.count, seed=source.seed,
        )  # fmt: skip
        for image, truth in islice(examples, source.count):
            yield self._row(self.pipeline.fitted(image, truth))

    def given(self, text: str) -> Example:
        """The image of a file with the objects that the model finds in it."""
        image = open_image(text)
        objects = self.pipeline.detect(image, SURE)[0].objects
        boxes = np.array([found.box for found in objects], dtype=np.float32).reshape(-1, 4)
        labels = np.array([self.pipeline.labels.index(found.label) for found in objects], dtype=np.int64)
        return self._row(self.pipeline.fitted(image, TrueBoxes(boxes, labels, np.zeros(len(labels), dtype=bool))))

    def image(self, example: Example) -> Pixels:
        """The image of an example on its canvas."""
        return example[0].reshape(self.shape[0], *example[1][:2])

    def batch(self, examples: Sequence[Example]) -> DetectionInputs:
        return collate([self._fitted(example) for example in examples], self.pipeline.preprocessing, self.device)

    def batches(self, examples: Sequence[Example]) -> Iterator[list[int]]:
        return by_canvas([self._fitted(example) for example in examples])

    def run(self, batch: DetectionInputs) -> object:
        return self.model(batch.images, batch.sizes)

    def loss(self, batch: DetectionInputs) -> tuple[float, int]:
        """The loss of training, with the same draws every time."""
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(SEED)
            return float(detection_loss(self.model, *batch).total), len(batch.images)

    def real(self, batch: DetectionInputs, place: str) -> None:
        if place.startswith("regions"):
            raise UsageError(f"{place} has a vector for each box, and boxes depend on the pass; choose a place of body")

    def answer(self, example: Example, position: int) -> str:
        image = Image.fromarray(self._fitted(example).pixels.transpose(1, 2, 0).squeeze())
        objects = self.pipeline.detect(image, SURE)[0].objects[:SHOWN]
        return ", ".join(f"{found.label} {found.score:.0%}" for found in objects) or "no object"

    def _row(self, image: FittedImage) -> Example:
        """An example: pixels on their canvas, the sizes of canvas and image, and the boxes that count."""
        counted = ~image.truth.ignored
        return (
            padded(image.pixels, image.canvas).ravel(),
            np.array([*image.canvas, *image.pixels.shape[1:]], dtype=np.int32),
            image.truth.boxes[counted].astype(np.float32).ravel(),
            image.truth.labels[counted].astype(np.int32),
        )

    def _fitted(self, example: Example) -> FittedImage:
        (height, width), (_, _, boxes, labels) = example[1][2:].tolist(), example
        truth = TrueBoxes(boxes.reshape(-1, 4), labels.astype(np.int64), np.zeros(len(labels), dtype=bool))
        return FittedImage(self.image(example)[:, :height, :width], (width, height), truth)
