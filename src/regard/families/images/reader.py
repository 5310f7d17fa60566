"""Models of images as sparse autoencoders read them: classifiers and segmenters by the loss of the right classes, and
models that write images by that of every pixel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from regard.errors import DataError, UsageError
from regard.families.images.data import LabelledImage, LabelledImages, examples_of, open_examples
from regard.families.images.generation import PixelGenerator
from regard.families.images.pipeline import ImageClassifier, ImageSegmenter, Segmented
from regard.look.reader import SCENES, Example, PixelReader, Source, summed_loss


class ImageInputs(NamedTuple):
    """Images as the model reads them, and their classes."""

    images: Float[Tensor, "B C H W"]
    labels: Int[Tensor, "B ..."]  # of every image, or of every pixel


class ImageReader(PixelReader[ImageInputs]):
    """A classifier that reads images."""

    columns: ClassVar = {"pixels": "|u1", "label": "<i4"}
    pipeline: ImageClassifier

    def examples(self, source: Source) -> Iterator[Example]:
        images = examples_of(self.pipeline.labels, _opened(source, self.shape[1]), source.path)
        for example in _readable(images, source):
            yield self.row(example.image), np.array([example.label], dtype=np.int32)

    def given(self, text: str) -> Example:
        """The image of a file; its class is the model's own guess."""
        (answer,) = self.pipeline.classify(text)
        return self.row(text), np.array([self.pipeline.labels.index(answer.label)], dtype=np.int32)

    def batch(self, examples: Sequence[Example]) -> ImageInputs:
        labels = torch.tensor([int(label[0]) for _, label in examples], device=self.device)
        return ImageInputs(self.normalised(examples), labels)

    def run(self, batch: ImageInputs) -> object:
        return self.model(batch.images)

    def loss(self, batch: ImageInputs) -> tuple[float, int]:
        logits = self.model(batch.images).float()
        return float(functional.cross_entropy(logits, batch.labels, reduction="sum")), len(batch.labels)

    def answer(self, example: Example, position: int) -> str:
        share, number = self.pipeline.probabilities(self.pixels([example]))[0].max(dim=0)
        return f"{self.pipeline.labels[int(number)]} {float(share):.0%}"

    def output_names(self) -> Callable[[int], str]:
        return self.pipeline.labels.__getitem__


class MaskReader(PixelReader[ImageInputs]):
    """A segmenter that reads images and the class of every pixel."""

    columns: ClassVar = {"pixels": "|u1", "mask": "|u1"}
    pipeline: ImageSegmenter

    def examples(self, source: Source) -> Iterator[Example]:
        if source.path != SCENES:
            raise UsageError(f"{source.path}: masks of images are known of {SCENES!r} alone; give that")
        for example in _readable(_opened(source, self.shape[1]).examples, source):
            assert example.mask is not None
            yield self.row(example.image), example.mask.ravel()

    def given(self, text: str) -> Example:
        """The image of a file; the classes of its pixels are the model's own guesses."""
        row = self.row(text)
        return row, self._classes((row,)).astype(np.uint8).ravel()

    def batch(self, examples: Sequence[Example]) -> ImageInputs:
        masks = np.stack([mask.reshape(self.shape[1:]) for _, mask in examples]).astype(np.int64)
        return ImageInputs(self.normalised(examples), torch.from_numpy(masks).to(self.device))

    def run(self, batch: ImageInputs) -> object:
        return self.model(batch.images)

    def loss(self, batch: ImageInputs) -> tuple[float, int]:
        logits = self.model(batch.images).movedim(1, -1)
        return summed_loss(logits, batch.labels, torch.ones_like(batch.labels, dtype=torch.bool))

    def answer(self, example: Example, position: int) -> str:
        """The share of the image that each class covers."""
        covered = Segmented(self._classes(example), tuple(self.pipeline.labels)).shares
        return ", ".join(f"{label} {share:.0%}" for label, share in covered.items())

    @torch.inference_mode()
    def _classes(self, example: Example) -> NDArray[np.uint8]:
        logits: Tensor = self.pipeline.fast(self.normalised([example]))
        return logits[0].argmax(dim=0).to(torch.uint8).cpu().numpy()


class PixelInputs(NamedTuple):
    """Images as colours of a palette, and what a model is fed to predict them."""

    inputs: Int[Tensor, "B T"]
    colours: Int[Tensor, "B T"]


class WrittenPixelReader(PixelReader[PixelInputs]):
    """A model that writes images pixel by pixel. A position is that of the pixel which is predicted there."""

    columns: ClassVar = {"pixels": "|u1"}
    pipeline: PixelGenerator

    def examples(self, source: Source) -> Iterator[Example]:
        for example in _readable(_opened(source, self.shape[1]).examples, source):
            yield (self.row(example.image),)

    def given(self, text: str) -> Example:
        return (self.row(text),)

    def batch(self, examples: Sequence[Example]) -> PixelInputs:
        colours = self.pipeline.palette.encode(self.pixels(examples).to(self.device))
        return PixelInputs(functional.pad(colours[:, :-1], (1, 0), value=self.pipeline.start), colours)

    def run(self, batch: PixelInputs) -> object:
        return self.model(batch.inputs, factored=True)

    def loss(self, batch: PixelInputs) -> tuple[float, int]:
        return summed_loss(self.model(batch.inputs), batch.colours, torch.ones_like(batch.colours, dtype=torch.bool))

    @torch.inference_mode()
    def answer(self, example: Example, position: int) -> str:
        """How well the image is predicted, and the colour of the pixel at the position."""
        batch = self.batch([example])
        total, count = self.loss(batch)
        likely = self.model(batch.inputs)[0, position].float().softmax(dim=-1)
        share, number = likely[: len(self.pipeline.palette)].max(dim=0)
        return f"{total / count:.3f} nats a pixel, {self.output_names()(int(number))} {float(share):.0%}"

    def output_names(self) -> Callable[[int], str]:
        """Colours as they are written in CSS; of grey images, one number."""
        colours = [*self.pipeline.palette.colours.round().int().tolist(), []]
        return lambda number: "#" + "".join(f"{part:02x}" for part in colours[number])


def _opened(source: Source, size: int) -> LabelledImages:
    return open_examples(source.path, size=size, part=source.part, count=source.count, seed=source.seed)


def _readable(examples: Iterable[LabelledImage | str], source: Source) -> Iterator[LabelledImage]:
    """As many labelled images as are asked for; one that cannot be read is an error."""
    for found in islice(examples, source.count):
        if isinstance(found, str):
            raise DataError(f"{found}; remove it from {source.path}")
        yield found
