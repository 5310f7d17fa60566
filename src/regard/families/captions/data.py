"""Captioned images, from files or drawn, and those of a recipe: images at the size of the model, captions as tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from regard.data.batch import CaptionBatch, Ids, decoder_inputs, pad_rows
from regard.data.captions import captioned_images
from regard.data.columns import Column, ColumnWriter, MappedStore, in_groups, map_values
from regard.data.images.augmentation import Augmentation
from regard.data.images.datasets import Example, ImageStore
from regard.data.images.reading import Preprocessing
from regard.data.loader import Place, Rows, in_batches
from regard.data.sources import PARTS, Part
from regard.data.synthetic.shapes import Scene, scenes
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.training import VocabularyConfig, train_vocabulary
from regard.data.tokenizers.unknown_words import unknown_tokens
from regard.errors import DataError
from regard.training.image_task import DeviceImages, ImageCorpus, ImageRows
from regard.training.recipe.files import SCENES
from regard.training.safeguards import Poll

TOKENS, FIRST, TEXTS, TOKENIZER = "tokens", "first.bin", "captions.jsonl", "tokenizer"
UNCHANGED = Augmentation()


class CaptionExample(NamedTuple):
    """An image, its captions as words separated by spaces, and the scene if it was drawn."""

    image: Image.Image
    captions: list[str]
    scene: Scene | None = None


def open_examples(
    path: str, *, size: int, part: Part, count: int, seed: int, images: str = "", problems: list[str] | None = None
) -> Iterator[CaptionExample]:
    """The captioned images of a path, or the built-in scenes.

    `size`, `part`, `count` and `seed` are of the scenes that are drawn; files are always read whole. What is wrong with
    files is an error, or is added to `problems` and left out.
    """
    if path == SCENES:
        for scene in scenes(part=part, count=count, seed=seed, size=size):
            yield CaptionExample(scene.image, list(scene.captions), scene)
        return
    skipped = [] if problems is None else problems
    for found in captioned_images(path, images, problems=skipped, skip_bad=problems is not None):
        yield CaptionExample(found.image, found.captions)


def decoder_rows(
    captions: list[Ids], pad: int, multiple: int = 1
) -> tuple[Int[Tensor, "N T"], Int[Tensor, "N T"], Bool[Tensor, "N T"]]:
    """Captions that end with their end token as a decoder reads them: inputs, labels, and a mask of real labels."""
    labels, mask = pad_rows(captions, pad, multiple)
    return decoder_inputs(labels, mask, pad=pad, start=pad), labels, mask


# The captioned images of a recipe


@dataclass(frozen=True)
class CaptionStore(MappedStore):
    """The captions of the images of a store, as token ids with their end token, in the order of the images."""

    about, contents = "captions.json", "captions"

    folder: Path
    tokens: Column
    first: NDArray[np.int64]  # the number of each image's first caption, and the number of all captions

    @classmethod
    def write(cls, folder: Path, captions: Iterable[list[str]], tokenizer: TextTokenizer) -> None:
        """Write the captions of every image as ids."""
        first = [0]
        with closing(ColumnWriter(folder, TOKENS, "<u2" if tokenizer.size <= 1 << 16 else "<i4")) as writer:
            for some in in_groups(captions):
                if rows := tokenizer.encode([text for texts in some for text in texts]):
                    writer.extend([row.ids for row in rows])
                first += (first[-1] + np.cumsum([len(texts) for texts in some])).tolist()
        (folder / FIRST).write_bytes(np.array(first, dtype="<i8").tobytes())
        about = {"images": len(first) - 1, "captions": first[-1], "tokens": writer.length, "dtype": writer.dtype}
        (folder / cls.about).write_text(json.dumps(about), encoding="utf-8")

    @classmethod
    def mapped(cls, folder: Path, about: dict[str, Any]) -> CaptionStore:
        tokens = Column.open(folder, TOKENS, about["dtype"], about["tokens"], about["captions"])
        return cls(folder, tokens, map_values(folder / FIRST, "<i8", about["images"] + 1))


def _read_texts(folder: Path) -> list[list[str]]:
    with (folder / TEXTS).open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@dataclass(frozen=True)
class CaptionedRows:
    """Some captioned images: where they are, and their captions."""

    images: ImageRows
    captions: CaptionStore

    def __len__(self) -> int:
        return len(self.images)

    def taken(self, rows: NDArray[np.int64]) -> CaptionedRows:
        return CaptionedRows(self.images.taken(rows), self.captions)


@dataclass(frozen=True)
class CaptionBatches:
    """Makes batches of images and some captions of each; of pixels too unless they are on the device.

    By default images are as they are, each with the first of its captions.
    """

    part: CaptionedRows
    pad: int
    resident: bool
    augmentation: Augmentation = UNCHANGED
    seed: int = 0
    each: int = 1  # captions of an image
    round_lengths: int = 1
    draws: bool = False  # whether the captions of an image are drawn; otherwise they are its first ones

    def __call__(self, rows: Rows, place: Place) -> CaptionBatch:
        rng = np.random.default_rng([self.seed, *place])
        draws = self.augmentation.draw(rng, len(rows))
        images, captions = self.part.images.rows[rows], self.part.captions
        numbers = [number for image in images.tolist() for number in self._some(rng, image)]
        words = decoder_rows([captions.tokens[number] for number in numbers], self.pad, self.round_lengths)
        pixels = None if self.resident else torch.from_numpy(self.part.images.store.pixels[images])
        return CaptionBatch(torch.from_numpy(rows), torch.from_numpy(draws), *words, pixels)

    def _some(self, rng: np.random.Generator, image: int) -> list[int]:
        """The numbers of different captions of an image, as far as it has so many."""
        captions = range(*self.part.captions.first[image : image + 2].tolist())
        return np.resize(rng.permutation(captions) if self.draws else captions, self.each).tolist()


class CaptionCorpus(ImageCorpus[CaptionedRows]):
    """The captioned images of a recipe, resized as a whole, so that nothing that a caption names is cut off."""

    whole = True
    tokenizer: TextTokenizer

    def __init__(
        self,
        data: Any,
        size: int,
        channels: int,
        seed: int,
        given: Preprocessing | None,
        vocabulary: VocabularyConfig,
        given_tokenizer: TextTokenizer | None,
    ) -> None:
        super().__init__(data, size, channels, seed, given)
        self.vocabulary, self.given_tokenizer = vocabulary, given_tokenizer

    def write(self, folder: Path, skipped: list[str], poll: Poll) -> None:
        for part in PARTS:
            texts: list[list[str]] = []
            ImageStore.write(folder / part, self._examples(part, texts, skipped, poll), ())
            lines = "".join(f"{json.dumps(some, ensure_ascii=False)}\n" for some in texts)
            (folder / part / TEXTS).write_text(lines, encoding="utf-8")
        learnt = _read_texts(folder / "train")
        if not learnt:
            raise DataError(f"{self.data.train}: there is no captioned image to learn from")
        words = (text for texts in learnt for text in texts)
        tokenizer = self.given_tokenizer or train_vocabulary(words, self.vocabulary, "terminated")
        tokenizer.save(folder / TOKENIZER)
        for part in PARTS:
            poll()
            CaptionStore.write(folder / part, _read_texts(folder / part), tokenizer)

    def _examples(self, part: Part, texts: list[list[str]], skipped: list[str], poll: Poll) -> Iterator[Example]:
        """The images of a part; their captions are added to `texts` as they stream by."""
        path, images = self.data.files(part)
        problems = skipped if self.data.skip_bad else None
        options = {"size": self.size, "part": part, "count": self.data.scenes.of(part), "seed": self.seed}
        for example in open_examples(path, **options, images=images, problems=problems) if path else ():
            poll()
            one = example.scene is not None and part == "train"  # of a scene, models learn one order of its objects
            texts.append(example.captions[:1] if one else example.captions)
            yield Example(self.resizing.pixels(example.image), 0)

    def part(self, folder: Path) -> CaptionedRows:
        return CaptionedRows(ImageRows.open(folder), CaptionStore.open(folder))

    def open(self, folder: Path) -> Self:
        self.tokenizer = TextTokenizer.load(folder / TOKENIZER)
        return super().open(folder)

    @property
    def contents(self) -> str:
        return f"with {np.diff(self.train.captions.first)[self.train.images.rows].sum():,} captions"

    @property
    def details(self) -> str:
        unknown, tokens = self.tokenizer.only_unknown, self.train.captions.tokens
        missing = "" if unknown is None else unknown_tokens({"captions": tokens.share(unknown)})
        return f"; {self.tokenizer.size:,} different words{missing}"


class DeviceCaptions(DeviceImages):
    """Captioned images on the device of the model."""

    def __init__(self, part: CaptionedRows, device: torch.device, pad: int) -> None:
        super().__init__(part.images, device)
        self.part, self.make = part, CaptionBatches(part, pad, part.images.resident)

    @cached_property
    def texts(self) -> list[list[str]]:
        """All captions of each image as texts."""
        texts = _read_texts(self.part.captions.folder)
        return [texts[row] for row in self.part.images.rows]

    def batches(self, rows: Rows, size: int) -> Iterator[CaptionBatch]:
        """Some of them, `size` at a time, each with the first of its captions."""
        for number, some in enumerate(in_batches(rows, size)):
            yield self.make(some, (0, number)).to(self.labels.device)
