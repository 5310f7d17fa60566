"""From annotated images to images of one canvas with padded boxes: decoded once per run, kept on the device."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from regard.checkpoints import write_folder
from regard.data.batch import ImageBatch
from regard.data.images.datasets import Example, ImageStore
from regard.data.images.reading import MODES, Pixels, Preprocessing
from regard.data.sources import PARTS, Part
from regard.data.synthetic.shapes import SHAPE_NAMES, scenes
from regard.errors import DataError
from regard.families.detection.annotations import RegionFiles, open_regions
from regard.families.detection.proposals import Truth
from regard.families.detection.recipe import RegionsSection
from regard.training.image_task import SKIPPED, DeviceImages, ImageRows
from regard.training.safeguards import Poll

MULTIPLE = 32  # canvases have sides of so many pixels, or multiples


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


def canvas(height: int, width: int) -> tuple[int, int]:
    """The padded height and width of an image."""
    return height + -height % MULTIPLE, width + -width % MULTIPLE


def padded(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """The image in the top left corner of a canvas."""
    _, height, width = pixels.shape
    return np.pad(pixels, ((0, 0), (0, size[0] - height), (0, size[1] - width)))


@dataclass(frozen=True)
class TrueBoxes:
    """The boxes of an image: corners [N 4], classes, and which are ignored (COCO's crowds, VOC's difficult ones)."""

    boxes: NDArray[np.floating]
    labels: NDArray[np.integer]
    ignored: NDArray[np.bool_]


@dataclass(frozen=True)
class FoundBoxes:
    """Detections in an image: corners [N 4], classes and scores."""

    boxes: NDArray[np.floating]
    labels: NDArray[np.integer]
    scores: NDArray[np.floating]


BOXES = "boxes.npz"


@dataclass(frozen=True)
class FittedImage:
    """An image at the size of the model, its boxes there, their classes from 0 on, and which are ignored."""

    pixels: Pixels
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]
    ignored: NDArray[np.bool_]


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
    def write(cls, folder: Path, images: Iterator[FittedImage], names: Sequence[str]) -> None:
        """Write images into a new folder; their canvas is as large as the largest needs."""
        found = list(images)
        most = max([1, *(len(each.labels) for each in found)])
        sides = [each.pixels.shape[1:] for each in found] or [(1, 1)]
        size = canvas(max(height for height, _ in sides), max(width for _, width in sides))
        ImageStore.write(folder, (Example(padded(each.pixels, size), 0) for each in found), names)
        table: dict[str, NDArray[Any]] = {
            "sizes": np.array(sides[: len(found)], dtype=np.float32).reshape(-1, 2),
            "boxes": np.zeros((len(found), most, 4), dtype=np.float32),
            "labels": np.zeros((len(found), most), dtype=np.int64),
            "ignored": np.zeros((len(found), most), dtype=bool),
        }
        for row, each in enumerate(found):
            count = len(each.labels)
            table["boxes"][row, :count] = each.boxes
            table["labels"][row, :count] = 1 + each.labels
            table["ignored"][row, :count] = each.ignored
        np.savez(folder / BOXES, allow_pickle=False, **table)

    @classmethod
    def open(cls, folder: Path) -> RegionRows:
        """Read what `write` wrote."""
        store = ImageStore.open(folder)
        try:
            with np.load(folder / BOXES, allow_pickle=False) as table:
                values = [table[name] for name in ("sizes", "boxes", "labels", "ignored")]
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{folder} is not a complete set of boxes ({error}); prepare it again") from error
        return cls(ImageRows(store, np.arange(len(store))), *values)

    def taken(self, rows: NDArray[np.int64]) -> RegionRows:
        """Some of them."""
        images = ImageRows(self.images.store, self.images.rows[rows])
        return RegionRows(images, self.sizes[rows], self.boxes[rows], self.labels[rows], self.ignored[rows])

    def truth(self, row: int) -> TrueBoxes:
        """The true boxes of one image, for its score."""
        real = self.labels[row] > 0
        return TrueBoxes(self.boxes[row, real], self.labels[row, real] - 1, self.ignored[row, real])


class DeviceRegions:
    """Images and boxes on the device of the model."""

    def __init__(self, rows: RegionRows, device: torch.device) -> None:
        self.rows, self.images = rows, DeviceImages(rows.images, device)
        self._sizes, self._boxes = (torch.from_numpy(each).to(device) for each in (rows.sizes, rows.boxes))
        self._labels = torch.from_numpy(np.where(rows.ignored, 0, rows.labels)).to(device)

    def __len__(self) -> int:
        return len(self.rows)

    def sizes(self, batch: ImageBatch) -> Float[Tensor, "B 2"]:
        """Heights and widths without padding."""
        return self._sizes[batch.rows]

    def truth(self, batch: ImageBatch) -> Truth:
        """The boxes to learn from."""
        return Truth(self._boxes[batch.rows], self._labels[batch.rows])


@dataclass(frozen=True)
class RegionCorpus:
    """The images that a detector is trained, validated and tested on."""

    train: RegionRows
    valid: RegionRows
    test: RegionRows
    preprocessing: Preprocessing
    skipped: list[str]

    @property
    def names(self) -> tuple[str, ...]:
        return self.train.images.store.names

    @property
    def summary(self) -> str:
        counts = [f"{len(part):,}" for part in (self.train, self.valid, self.test)]
        boxes = f"{int((self.train.labels > 0).sum()):,} boxes of {len(self.names)} classes"
        text = f"{counts[0]} images with {boxes}; {counts[1]} for validation, {counts[2]} for testing"
        left_out = f"; {len(self.skipped):,} left out, the first: {self.skipped[0]}" if self.skipped else ""
        return text + left_out


@dataclass(frozen=True)
class RegionPreparation:
    """How the files of a recipe become a corpus: the longer side of each image is resized to `longest`."""

    data: RegionsSection
    longest: int
    channels: int
    seed: int
    given: Preprocessing | None = None  # of the model that training starts from

    def prepare(self, folder: Path, poll: Poll) -> None:
        """Write the corpus into `folder`, unless it exists from before."""
        if not folder.exists():
            write_folder(folder, lambda temporary: self._write(temporary, poll))

    def open(self, folder: Path) -> RegionCorpus:
        """The corpus that was written into `folder`."""
        parts = self._parts(folder)
        skipped: list[str] = json.loads((folder / SKIPPED).read_text(encoding="utf-8"))
        return RegionCorpus(*parts, Preprocessing.load(folder, self.longest, self.channels), skipped)

    def _write(self, folder: Path, poll: Poll) -> None:
        skipped: list[str] = []
        names: Sequence[str] = SHAPE_NAMES if self.data.built_in else self.data.labels
        for part in PARTS:
            if self.data.built_in:
                RegionRows.write(folder / part, self._built_in(part, poll), names)
                continue
            path, images = self.data.place(part)
            files = open_regions(path, images, names) if path else None
            names = files.names if files else names
            RegionRows.write(folder / part, self._decoded(files, skipped, poll), names)
        (folder / SKIPPED).write_text(json.dumps(skipped, ensure_ascii=False), encoding="utf-8")
        train = self._parts(folder)[0]
        if not len(train) or not (train.labels > 0).any():
            raise DataError(f"{self.data.train}: there is no image with a box to learn from")
        (self.given or self._preprocessing(train)).save(folder)

    def _preprocessing(self, train: RegionRows) -> Preprocessing:
        mean, deviation = train.images.mean_and_deviation()
        side = self.longest
        return Preprocessing(size=(side, side), resize=side, mean=tuple(mean), std=tuple(deviation))

    def _decoded(self, files: RegionFiles | None, skipped: list[str], poll: Poll) -> Iterator[FittedImage]:
        if files is None:
            return
        for each in files.examples(skipped if self.data.skip_bad else None):
            poll()
            pixels, (x, y) = fit(each.image, self.longest, self.channels)
            yield FittedImage(pixels, each.boxes * np.array([x, y, x, y], dtype=np.float32), each.labels, each.ignored)

    def _built_in(self, part: Part, poll: Poll) -> Iterator[FittedImage]:
        for scene in scenes(part=part, count=self.data.scenes.of(part), seed=self.seed, size=self.longest):
            poll()
            pixels = scene.pixels
            if self.channels == 1:
                pixels = pixels.mean(axis=0, keepdims=True).round().astype(np.uint8)
            boxes = np.array([thing.box for thing in scene.things], dtype=np.float32) * self.longest
            labels = np.array([SHAPE_NAMES.index(thing.shape) for thing in scene.things], dtype=np.int64)
            yield FittedImage(pixels, boxes, labels, np.zeros(len(labels), dtype=bool))

    def _parts(self, folder: Path) -> tuple[RegionRows, RegionRows, RegionRows]:
        train, valid, test = (RegionRows.open(folder / part) for part in PARTS)
        if self.data.split:
            if self.data.split >= len(train):
                raise DataError(f"data.split sets {self.data.split:,} images aside of {len(train):,}; lower it")
            last = len(train) - self.data.split
            train, valid = train.taken(np.arange(last)), train.taken(np.arange(last, len(train)))
        if self.data.count:
            order = np.random.default_rng(self.seed).permutation(len(train))[: self.data.count]
            train = train.taken(np.sort(order))
        return train, valid, test
