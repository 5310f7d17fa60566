"""Captions as token ids in memory-mapped files beside the images that they describe, and batches of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.batch import CaptionBatch, Ids, decoder_inputs, pad_rows
from regard.data.columns import Column, ColumnWriter, in_groups, map_values
from regard.data.images.augmentation import Augmentation
from regard.data.images.datasets import ImageStore
from regard.data.loader import Place, Rows
from regard.errors import DataError

ABOUT, TOKENS, FIRST, TEXTS = "captions.json", "tokens", "first.bin", "captions.jsonl"


@dataclass(frozen=True)
class CaptionStore:
    """The captions of the images of a store, as token ids with their end token, in the order of the images."""

    folder: Path
    tokens: Column
    first: NDArray[np.int64]  # the number of each image's first caption, and the number of all captions

    def __len__(self) -> int:
        return len(self.first) - 1

    def __reduce__(self) -> tuple[Callable[[Path], CaptionStore], tuple[Path]]:
        return CaptionStore.open, (self.folder,)  # a loader's worker maps the files itself

    def of_image(self, image: int) -> range:
        """The numbers of the captions of an image."""
        return range(self.first[image], self.first[image + 1])

    def texts(self) -> list[list[str]]:
        """The captions of every image as texts."""
        return self.read_texts(self.folder)

    @staticmethod
    def read_texts(folder: Path) -> list[list[str]]:
        """The captions that `write_texts` wrote."""
        with (folder / TEXTS).open(encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    @staticmethod
    def write_texts(folder: Path, captions: Iterable[list[str]]) -> None:
        """Write the captions of every image as texts."""
        with (folder / TEXTS).open("w", encoding="utf-8") as file:
            for each in captions:
                print(json.dumps(each, ensure_ascii=False), file=file)

    @classmethod
    def write(
        cls, folder: Path, captions: Iterable[list[str]], encode: Callable[[list[str]], list[Ids]], vocabulary: int
    ) -> None:
        """Write the captions of every image as ids."""
        first = [0]
        with closing(ColumnWriter(folder, TOKENS, "<u2" if vocabulary <= 1 << 16 else "<i4")) as writer:
            for some in in_groups(captions):
                if rows := encode([text for texts in some for text in texts]):
                    writer.extend(rows)
                first += (first[-1] + np.cumsum([len(texts) for texts in some])).tolist()
        (folder / FIRST).write_bytes(np.array(first, dtype="<i8").tobytes())
        about = {"images": len(first) - 1, "captions": first[-1], "tokens": writer.length, "dtype": writer.dtype}
        (folder / ABOUT).write_text(json.dumps(about), encoding="utf-8")

    @classmethod
    def open(cls, folder: Path) -> CaptionStore:
        """Map the files of a written store."""
        try:
            about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
            tokens = Column(
                map_values(folder / f"{TOKENS}.bin", about["dtype"], about["tokens"]),
                map_values(folder / f"{TOKENS}.offsets", "<i8", about["captions"] + 1),
            )
            return cls(folder, tokens, map_values(folder / FIRST, "<i8", about["images"] + 1))
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{folder} is not a complete set of captions ({error}); prepare it again") from error


@dataclass(frozen=True)
class CaptionBatches:
    """Makes batches of images and some captions of each; of pixels too unless they are on the device.

    `rows` are the images of the two stores that a plan counts from 0.
    """

    images: ImageStore
    captions: CaptionStore
    rows: NDArray[np.int64]
    augmentation: Augmentation
    seed: int
    each: int  # captions of an image
    round_lengths: int
    pad: int
    resident: bool
    draws: bool = True  # whether the captions of an image are drawn; otherwise they are its first ones

    def __call__(self, rows: Rows, place: Place) -> CaptionBatch:
        rng = np.random.default_rng([self.seed, *place])
        draws = self.augmentation.draw(rng, len(rows))
        images = self.rows[rows]
        chosen = [number for image in images.tolist() for number in self._some(rng, self.captions.of_image(image))]
        labels, mask = pad_rows([self.captions.tokens[number] for number in chosen], self.pad, self.round_lengths)
        inputs = decoder_inputs(labels, mask, pad=self.pad, start=self.pad)
        pixels = None if self.resident else torch.from_numpy(self.images.pixels[images])
        return CaptionBatch(torch.from_numpy(rows), torch.from_numpy(draws), inputs, labels, mask, pixels)

    def _some(self, rng: np.random.Generator, captions: range) -> list[int]:
        """Different captions of an image, as far as it has so many."""
        return np.resize(rng.permutation(captions) if self.draws else captions, self.each).tolist()
