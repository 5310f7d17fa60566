"""Reading images: classifiers, by the loss of the right class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor
from torch.nn import functional

from regard.data.images.datasets import open_images
from regard.data.synthetic.shapes import SHAPE_NAMES, scenes
from regard.errors import DataError, UsageError
from regard.inference.pipelines.images import BATCH_IMAGES, ImageClassifier
from regard.inference.pipelines.reading.base import SCENES, Example, ImageUnits, Reader, Site, Source, observe


class ImageInputs(NamedTuple):
    """Images as the model reads them, and their classes."""

    images: Float[Tensor, "B C H W"]
    labels: Int[Tensor, B]


class ImageReader(Reader[ImageInputs]):
    """A classifier that reads images."""

    columns: ClassVar = {"pixels": "|u1", "label": "<i4"}
    reads_text: ClassVar = False

    def __init__(self, pipeline: ImageClassifier) -> None:
        self.pipeline, self.model, self.device = pipeline, pipeline.model, pipeline.device
        size = pipeline.preprocessing.size
        self.shape = (pipeline.config.channels, *size)

    def examples(self, source: Source) -> Iterator[Example]:
        for image, label in islice(self._labelled(source), source.count):
            yield self.pipeline.pixels(image).ravel(), np.array([label], dtype=np.int32)

    def given(self, text: str) -> Example:
        """The image of a file; its class is the model's own guess."""
        (answer,) = self.pipeline.classify(text)
        return self.pipeline.pixels(text).ravel(), np.array([self.pipeline.labels.index(answer.label)], dtype=np.int32)

    def batch(self, examples: Sequence[Example]) -> ImageInputs:
        pixels = np.stack([pixels.reshape(self.shape) for pixels, _ in examples])
        labels = torch.tensor([int(label[0]) for _, label in examples], device=self.device)
        images = self.pipeline.preprocessing.normalise(torch.from_numpy(pixels).to(self.device))
        return ImageInputs(images, labels)

    def batches(self, examples: Sequence[Example]) -> Iterator[list[int]]:
        numbers = list(range(len(examples)))
        return (numbers[first : first + BATCH_IMAGES] for first in range(0, len(numbers), BATCH_IMAGES))

    def run(self, batch: ImageInputs) -> object:
        return self.model(batch.images)

    def loss(self, batch: ImageInputs) -> tuple[float, int]:
        logits = self.model(batch.images).float()
        return float(functional.cross_entropy(logits, batch.labels, reduction="sum")), len(batch.labels)

    def real(self, batch: ImageInputs, place: str) -> None:
        return None

    @torch.inference_mode()
    def units(self, example: Example, place: str) -> ImageUnits:
        site = Site(self.model, place)
        shape = observe(self, site, [example]).vectors.shape[1:-1]
        pixels = example[0].reshape(self.shape)
        if len(shape) == 2:
            return ImageUnits(pixels, *shape)
        rows = columns = int(shape[0] ** 0.5)  # tokens in a row: a square of patches, perhaps after a class token
        return ImageUnits(pixels, rows, columns, shape[0] - rows * columns)

    def answer(self, example: Example, position: int) -> str:
        pixels = torch.from_numpy(example[0].reshape(1, *self.shape).copy())
        share, number = self.pipeline.probabilities(pixels)[0].max(dim=0)
        return f"{self.pipeline.labels[int(number)]} {float(share):.0%}"

    def output_names(self) -> Callable[[int], str]:
        return self.pipeline.labels.__getitem__

    def _labelled(self, source: Source) -> Iterator[tuple[Image.Image, int]]:
        known = self.pipeline.labels
        if source.path == SCENES:
            self._check(SHAPE_NAMES, source.path)
            for scene in scenes(part=source.part, count=source.count, seed=source.seed, size=self.shape[1]):
                yield Image.fromarray(scene.pixels.transpose(1, 2, 0)), known.index(SHAPE_NAMES[scene.label])
            return
        files = open_images(source.path)
        numbered = all(label.isdecimal() for label in files.labels)  # numbered classes; the model has names
        if not numbered:
            self._check(files.labels, source.path)
        for found in files.examples:
            if isinstance(found, str):
                raise DataError(f"{found}; remove it from {source.path}")
            image, label = found
            yield image, label if numbered else known.index(files.labels[label])

    def _check(self, labels: Sequence[str], path: str) -> None:
        if unknown := [label for label in labels if label not in self.pipeline.labels]:
            raise UsageError(f"{path} has the class {unknown[0]!r}; the model knows {', '.join(self.pipeline.labels)}")
