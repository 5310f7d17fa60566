"""From annotated images to what a detector reads: images at its size with their boxes, on disk and in batches.

Training, validation, evaluation, answers and sparse autoencoders all read images with `fitted` and the padding of
`zero_padding`, and annotations with `open_examples`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from regard.data.batch import ImageBatch
from regard.data.images.datasets import Example, ImageStore
from regard.data.images.reading import MODES, Pixels, Preprocessing
from regard.data.sources import PARTS, Part
from regard.data.synthetic.shapes import SHAPE_NAMES, scenes
from regard.errors import DataError
from regard.families.detection.annotations import RegionExample, TrueBoxes, open_regions
from regard.families.detection.proposals import Truth
from regard.training.image_task import DeviceImages, ImageCorpus, ImageRows
from regard.training.recipe.files import SCENES
from regard.training.safeguards import Poll

MULTIPLE = 32  # canvases have sides of so many pixels, or multiples
AT_ONCE = 16  # images of one canvas
BOXES = "boxes.npz"


NO_BOXES = TrueBoxes(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros(0, bool))


# Examples


def open_examples(
    path: str, names: Sequence[str], *, size: int, part: Part, count: int, seed: int, images: str = "",
    skipped: list[str] | None = None,
) -> tuple[tuple[str, ...], Iterator[RegionExample]]:  # fmt: skip
    """The names of the classes and the annotated images of a path, or of the built-in scenes.

    `size`, `part`, `count` and `seed` are of the scenes that are drawn; files are always read whole. `names` are the
    classes, if they are known already. For `images` and `skipped` see `open_regions` and `RegionFiles.examples`.
    """
    if path != SCENES:
        files = open_regions(path, images, names)
        return files.names, files.examples(skipped)
    names = tuple(names) or SHAPE_NAMES
    if unknown := [name for name in SHAPE_NAMES if name not in names]:
        raise DataError(f"{SCENES} have the class {unknown[0]!r}; the classes are {', '.join(names)}")

    def drawn() -> Iterator[RegionExample]:
        for scene in scenes(part=part, count=count, seed=seed, size=size):
            boxes = np.array([thing.box for thing in scene.things], dtype=np.float32) * size
            labels = np.array([names.index(thing.shape) for thing in scene.things], dtype=np.int64)
            yield RegionExample(scene.image, TrueBoxes(boxes, labels, np.zeros(len(labels), dtype=bool)))

    return names, drawn()


def fit(image: Image.Image, longest: int, channels: int) -> tuple[Pixels, tuple[float, float]]:
    """The image [C H W] whose longer side is `longest`, and its scales in x and y."""
    scale = longest / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    resized = image.convert(MODES[channels])
    if resized.size != (width, height):
        resized = resized.resize((width, height), Image.Resampling.BILINEAR)
    array = np.array(resized)
    pixels = array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))
    return pixels, (width / image.width, height / image.height)


def padded(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """The image in the top left corner of a canvas."""
    _, height, width = pixels.shape
    return np.pad(pixels, ((0, 0), (0, size[0] - height), (0, size[1] - width)))


@dataclass(frozen=True)
class FittedImage:
    """An image [C H W] at the size of the model, the width and height that it had, and its boxes as they are now."""

    pixels: Pixels
    size: tuple[int, int]
    truth: TrueBoxes = NO_BOXES

    @property
    def canvas(self) -> tuple[int, int]:
        """Its height and width with padding."""
        height, width = self.pixels.shape[1:]
        return height + -height % MULTIPLE, width + -width % MULTIPLE

    def back(self, boxes: Tensor) -> Float[np.ndarray, "N 4"]:
        """Boxes in pixels of the image as it was."""
        height, width = self.pixels.shape[1:]
        scale = self.size[0] / width, self.size[1] / height
        return boxes.float().cpu().numpy().astype(np.float64) * np.array(scale * 2)


def fitted(image: Image.Image, longest: int, channels: int, truth: TrueBoxes = NO_BOXES) -> FittedImage:
    """An image whose longer side is `longest`, and its boxes there."""
    pixels, (x, y) = fit(image, longest, channels)
    scale = np.array([x, y, x, y], dtype=np.float32)
    return FittedImage(pixels, image.size, truth._replace(boxes=truth.boxes * scale))


# Batches


class DetectionInputs(NamedTuple):
    """What a detector reads: images of one canvas, their heights and widths without padding, and the true boxes."""

    images: Float[Tensor, "B C H W"]
    sizes: Float[Tensor, "B 2"]
    truth: Truth


def by_canvas(images: Sequence[FittedImage]) -> Iterator[list[int]]:
    """The numbers of images that are read together: other padding would change what is seen at the border."""
    groups: dict[tuple[int, int], list[int]] = {}
    for number, image in enumerate(images):
        groups.setdefault(image.canvas, []).append(number)
    for numbers in groups.values():
        yield from (numbers[first : first + AT_ONCE] for first in range(0, len(numbers), AT_ONCE))


def collate(images: Sequence[FittedImage], preprocessing: Preprocessing, device: torch.device) -> DetectionInputs:
    """Images of one canvas as the model reads them."""
    pixels = torch.from_numpy(np.stack([padded(image.pixels, image.canvas) for image in images])).to(device)
    sizes = torch.tensor([image.pixels.shape[1:] for image in images], dtype=torch.float32, device=device)
    boxes, labels, ignored = (torch.from_numpy(table).to(device) for table in _padded_boxes(images))
    truth = Truth(boxes, labels.masked_fill(ignored, 0))
    return DetectionInputs(zero_padding(preprocessing.normalise(pixels), sizes), sizes, truth)


def zero_padding(images: Float[Tensor, "B C H W"], sizes: Float[Tensor, "B 2"]) -> Float[Tensor, "B C H W"]:
    """Normalised images whose padding is 0."""
    rows, columns = (torch.arange(side, device=images.device) for side in images.shape[2:])
    inside = (rows[:, None] < sizes[:, :1, None]) & (columns < sizes[:, 1:, None])
    return torch.where(inside[:, None], images, 0.0)


def _padded_boxes(images: Sequence[FittedImage]) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]:
    """The boxes [N M 4] of images, their classes from 1 on, and which are ignored; label 0 marks padding."""
    shape = len(images), max([1, *(len(image.truth.labels) for image in images)])
    boxes, labels = np.zeros((*shape, 4), dtype=np.float32), np.zeros(shape, dtype=np.int64)
    ignored = np.zeros(shape, dtype=bool)
    for row, image in enumerate(images):
        count = len(image.truth.labels)
        boxes[row, :count], labels[row, :count], ignored[row, :count] = image.truth
        labels[row, :count] += 1
    return boxes, labels, ignored


# The images of a recipe


@dataclass(frozen=True)
class RegionRows:
    """Images of one canvas, their own sizes, and their boxes, padded; label 0 marks padding."""

    images: ImageRows
    sizes: NDArray[np.float32]  # height and width without padding
    boxes: NDArray[np.float32]  # [N M 4]
    labels: NDArray[np.int64]  # classes from 1 on
    ignored: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.images)

    @classmethod
    def write(cls, folder: Path, images: Sequence[FittedImage], names: Sequence[str]) -> None:
        """Write images into a new folder; their canvas is as large as the largest needs."""
        height, width = (max([MULTIPLE, *(image.canvas[side] for image in images)]) for side in (0, 1))
        ImageStore.write(folder, (Example(padded(image.pixels, (height, width)), 0) for image in images), names)
        boxes, labels, ignored = _padded_boxes(images)
        sizes = np.array([image.pixels.shape[1:] for image in images], dtype=np.float32).reshape(-1, 2)
        np.savez(folder / BOXES, allow_pickle=False, sizes=sizes, boxes=boxes, labels=labels, ignored=ignored)

    @classmethod
    def open(cls, folder: Path) -> RegionRows:
        """Read what `write` wrote."""
        images = ImageRows.open(folder)
        try:
            with np.load(folder / BOXES, allow_pickle=False) as table:
                return cls(images, *(table[name] for name in ("sizes", "boxes", "labels", "ignored")))
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{folder} is not a complete set of boxes ({error}); prepare it again") from error

    def taken(self, rows: NDArray[np.int64]) -> RegionRows:
        tables = (self.sizes[rows], self.boxes[rows], self.labels[rows], self.ignored[rows])
        return RegionRows(self.images.taken(rows), *tables)

    def truth(self, row: int) -> TrueBoxes:
        """The true boxes of one image, for its score."""
        real = self.labels[row] > 0
        return TrueBoxes(self.boxes[row, real], self.labels[row, real] - 1, self.ignored[row, real])


class RegionCorpus(ImageCorpus[RegionRows]):
    """The images and boxes of a recipe; the longer side of each image is resized to the size of the model."""

    def write(self, folder: Path, skipped: list[str], poll: Poll) -> None:
        names: tuple[str, ...] = self.data.labels
        for part in PARTS:
            path, images = self.data.files(part)
            examples: Iterator[RegionExample] = iter(())
            if path:
                names, examples = open_examples(
                    path, names, size=self.size, part=part, count=self.data.scenes.of(part), seed=self.seed,
                    images=images, skipped=skipped if self.data.skip_bad else None,
                )  # fmt: skip
            kept = list[FittedImage]()
            for image, truth in examples:
                poll()
                kept.append(fitted(image, self.size, self.channels, truth))
            RegionRows.write(folder / part, kept, names)

    def part(self, folder: Path) -> RegionRows:
        return RegionRows.open(folder)

    def check(self, train: RegionRows) -> None:
        if not (train.labels > 0).any():
            raise DataError(f"{self.data.train}: there is no image with a box to learn from")

    @property
    def contents(self) -> str:
        return f"with {int((self.train.labels > 0).sum()):,} boxes of {len(self.names)} classes"


class DeviceRegions(DeviceImages):
    """Images and boxes on the device of the model."""

    def __init__(self, rows: RegionRows, device: torch.device) -> None:
        super().__init__(rows.images, device)
        self.rows = rows
        self._sizes, self._boxes = (torch.from_numpy(table).to(device) for table in (rows.sizes, rows.boxes))
        self._labels: Int[Tensor, "N M"] = torch.from_numpy(np.where(rows.ignored, 0, rows.labels)).to(device)

    def sizes(self, batch: ImageBatch) -> Float[Tensor, "B 2"]:
        """Heights and widths without padding."""
        return self._sizes[batch.rows]

    def truth(self, batch: ImageBatch) -> Truth:
        """The boxes to learn from."""
        return Truth(self._boxes[batch.rows], self._labels[batch.rows])
