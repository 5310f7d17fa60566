"""Reading images: what all models of images share; classifiers and segmenters, by the loss of the right classes, and
models that write images, by that of every pixel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from regard.data.images.datasets import open_images
from regard.data.images.reading import Pixels
from regard.data.synthetic.shapes import SHAPE_NAMES, Scene, scenes
from regard.errors import DataError, UsageError
from regard.families.captions.pipeline import ImageCaptioner
from regard.families.images.generation import PixelGenerator
from regard.families.images.pipeline import BATCH_IMAGES, ImageClassifier, ImagePipeline, ImageSegmenter, Segmented
from regard.look.reader import SCENES, B, Example, ImageUnits, Reader, Site, Source, Units, observe, summed_loss


class ImageInputs(NamedTuple):
    """Images as the model reads them, and their classes."""

    images: Float[Tensor, "B C H W"]
    labels: Int[Tensor, "B ..."]  # of every image, or of every pixel


class PixelReader(Reader[B]):
    """A model that reads images of one size; the first row of an example is its pixels."""

    reads_text: ClassVar = False
    built_in: ClassVar = (SCENES,)
    at_once: ClassVar = BATCH_IMAGES

    def __init__(self, pipeline: ImagePipeline | ImageCaptioner | PixelGenerator) -> None:
        self.images, self.model, self.device = pipeline, pipeline.model, pipeline.device
        self.shape = (pipeline.preprocessing.channels, *pipeline.preprocessing.size)

    def row(self, image: Image.Image | str) -> NDArray[np.uint8]:
        """The pixels of an image, or of a file, at the size of the model."""
        return self.images.pixels(image).ravel()

    def image(self, example: Example) -> Pixels:
        """The image of an example."""
        return example[0].reshape(self.shape)

    def pixels(self, examples: Sequence[Example]) -> UInt8[Tensor, "B C H W"]:
        """The images of examples."""
        return torch.from_numpy(np.stack([self.image(example) for example in examples]))

    def normalised(self, examples: Sequence[Example]) -> Float[Tensor, "B C H W"]:
        """The images of examples as the model reads them."""
        return self.images.preprocessing.normalise(self.pixels(examples).to(self.device))

    def real(self, batch: B, place: str) -> Bool[Tensor, "B T"] | None:
        return None

    @torch.inference_mode()
    def units(self, example: Example, place: str) -> Units:
        """The map of a place, perhaps after a class token: places in a row are those of a map as the image is."""
        shape = observe(self, Site(self.model, place), [example]).vectors.shape[1:-1]
        pixels = self.image(example)
        if len(shape) == 2:
            return ImageUnits(pixels, *shape)
        aspect = pixels.shape[1] / pixels.shape[2]
        rows = int((shape[0] * aspect) ** 0.5 + 1e-6)
        columns = round(rows / aspect)
        return ImageUnits(pixels, rows, columns, shape[0] - rows * columns)

    def scenes(self, source: Source) -> Iterator[tuple[Image.Image, Scene]]:
        """Drawn images with what is in them."""
        for scene in scenes(part=source.part, count=source.count, seed=source.seed, size=self.shape[1]):
            yield Image.fromarray(scene.pixels.transpose(1, 2, 0)), scene


class ImageReader(PixelReader[ImageInputs]):
    """A classifier that reads images."""

    columns: ClassVar = {"pixels": "|u1", "label": "<i4"}

    def __init__(self, pipeline: ImageClassifier) -> None:
        super().__init__(pipeline)
        self.pipeline = pipeline

    def examples(self, source: Source) -> Iterator[Example]:
        for image, label in islice(self._labelled(source), source.count):
            yield self.row(image), np.array([label], dtype=np.int32)

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

    def _labelled(self, source: Source) -> Iterator[tuple[Image.Image, int]]:
        known = self.pipeline.labels
        if source.path == SCENES:
            self._check(SHAPE_NAMES, source.path)
            for image, scene in self.scenes(source):
                yield image, known.index(SHAPE_NAMES[scene.label])
            return
        files = open_images(source.path)
        numbered = all(label.isdecimal() for label in files.labels)  # numbered classes; the model has names
        if not numbered:
            self._check(files.labels, source.path)
        for image, label in _readable(files.examples, source.path):
            yield image, label if numbered else known.index(files.labels[label])

    def _check(self, labels: Sequence[str], path: str) -> None:
        if unknown := [label for label in labels if label not in self.pipeline.labels]:
            raise UsageError(f"{path} has the class {unknown[0]!r}; the model knows {', '.join(self.pipeline.labels)}")


class MaskReader(PixelReader[ImageInputs]):
    """A segmenter that reads images and the class of every pixel."""

    columns: ClassVar = {"pixels": "|u1", "mask": "|u1"}

    def __init__(self, pipeline: ImageSegmenter) -> None:
        super().__init__(pipeline)
        self.pipeline = pipeline

    def examples(self, source: Source) -> Iterator[Example]:
        if source.path != SCENES:
            raise UsageError(f"{source.path}: masks of images are known of {SCENES!r} alone; give that")
        for image, scene in self.scenes(source):
            yield self.row(image), scene.mask.ravel()

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

    def __init__(self, pipeline: PixelGenerator) -> None:
        super().__init__(pipeline)
        self.pipeline = pipeline

    def examples(self, source: Source) -> Iterator[Example]:
        files = _readable(open_images(source.path).examples, source.path) if source.path != SCENES else None
        for image, _ in islice(files or self.scenes(source), source.count):
            yield (self.row(image),)

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


def _readable(examples: Iterable[tuple[Image.Image, int] | str], path: str) -> Iterator[tuple[Image.Image, int]]:
    """Labelled images; one that cannot be read is an error."""
    for found in examples:
        if isinstance(found, str):
            raise DataError(f"{found}; remove it from {path}")
        yield found
