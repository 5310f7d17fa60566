"""From the files of a recipe to images of one size and their captions as token ids, once per run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from regard.checkpoints import write_folder
from regard.data.batch import CaptionBatch, Ids, decoder_inputs, pad_rows
from regard.data.captions import captioned_images
from regard.data.columns import Column, ColumnWriter, in_groups, map_values
from regard.data.images.augmentation import Augmentation
from regard.data.images.datasets import Example, ImageStore
from regard.data.images.reading import Preprocessing
from regard.data.loader import Place, Rows
from regard.data.sources import PARTS, Part
from regard.data.synthetic.shapes import scenes
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.training import VocabularyConfig, train_vocabulary
from regard.data.tokenizers.unknown_words import unknown_tokens
from regard.errors import DataError
from regard.families.captions.recipe import CaptionsSection
from regard.training.image_task import SKIPPED, ImageRows
from regard.training.safeguards import Poll

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


TOKENIZER = "tokenizer"


@dataclass(frozen=True)
class CaptionedRows:
    """Some captioned images: where they are, and their captions as texts."""

    images: ImageRows
    captions: CaptionStore

    def __len__(self) -> int:
        return len(self.images)

    def only(self, rows: slice) -> CaptionedRows:
        """Some of them."""
        return CaptionedRows(ImageRows(self.images.store, self.images.rows[rows]), self.captions)

    def texts(self) -> list[list[str]]:
        """The captions of each image."""
        texts = self.captions.texts()
        return [texts[row] for row in self.images.rows]

    def batches(
        self, augmentation: Augmentation, seed: int, *, each: int, round_lengths: int, pad: int
    ) -> CaptionBatches:
        """What makes a batch of them."""
        store, rows, resident = self.images.store, self.images.rows, self.images.resident
        return CaptionBatches(store, self.captions, rows, augmentation, seed, each, round_lengths, pad, resident)

    def first_captions(self, pad: int) -> CaptionBatches:
        """What makes a batch of them as they are, each with the first of its captions."""
        return replace(self.batches(Augmentation(), 0, each=1, round_lengths=1, pad=pad), draws=False)


@dataclass(frozen=True)
class CaptionCorpus:
    """The captioned images that a model is trained, validated and tested on."""

    tokenizer: TextTokenizer
    train: CaptionedRows
    valid: CaptionedRows
    test: CaptionedRows
    preprocessing: Preprocessing
    skipped: list[str]

    @property
    def summary(self) -> str:
        counts = [f"{len(part):,}" for part in (self.train, self.valid, self.test)]
        captions, unknown = len(self.train.captions.tokens.offsets) - 1, self.tokenizer.only_unknown
        told = "" if unknown is None else unknown_tokens({"captions": self.train.captions.tokens.share(unknown)})
        left_out = f"; {len(self.skipped):,} left out, the first: {self.skipped[0]}" if self.skipped else ""
        return (
            f"{counts[0]} images with {captions:,} captions; {counts[1]} for validation, {counts[2]} for testing; "
            f"{self.tokenizer.size:,} different words{told}{left_out}"
        )


@dataclass(frozen=True)
class CaptionPreparation:
    """How the files of a recipe become a corpus of captioned images of one size.

    Images are resized to a square as a whole, so that nothing that a caption names is cut off.
    """

    data: CaptionsSection
    vocabulary: VocabularyConfig
    size: int
    channels: int
    seed: int
    tokenizer: TextTokenizer | None = None  # that of the model that training starts from
    preprocessing: Preprocessing | None = None  # the same

    def prepare(self, folder: Path, poll: Poll) -> None:
        """Write the corpus into `folder`, unless it exists from before."""
        if not folder.exists():
            write_folder(folder, lambda temporary: self._write(temporary, poll))

    def open(self, folder: Path) -> CaptionCorpus:
        """The corpus that was written into `folder`."""
        train, valid, test = (_rows(folder / part) for part in PARTS)
        if aside := self.data.split:
            if aside >= len(train):
                raise DataError(f"data.split sets {aside:,} images aside, but there are only {len(train):,}; lower it")
            train, valid = train.only(slice(-aside)), train.only(slice(-aside, None))
        return CaptionCorpus(
            TextTokenizer.load(folder / TOKENIZER),
            train,
            valid,
            test,
            Preprocessing.load(folder, self.size, self.channels),
            json.loads((folder / SKIPPED).read_text(encoding="utf-8")),
        )

    def _write(self, folder: Path, poll: Poll) -> None:
        skipped: list[str] = []
        for part in PARTS:
            texts: list[list[str]] = []
            ImageStore.write(folder / part, self._examples(part, texts, skipped, poll), ())
            CaptionStore.write_texts(folder / part, texts)
        (folder / SKIPPED).write_text(json.dumps(skipped, ensure_ascii=False), encoding="utf-8")
        if not CaptionStore.read_texts(folder / "train"):
            raise DataError(f"{self.data.train}: there is no captioned image to learn from")
        tokenizer = self.tokenizer or self._learnt(CaptionStore.read_texts(folder / "train"))
        tokenizer.save(folder / TOKENIZER)

        def encode(some: list[str]) -> list[Ids]:
            return [each.ids for each in tokenizer.encode(some)]

        for part in PARTS:
            poll()
            CaptionStore.write(folder / part, CaptionStore.read_texts(folder / part), encode, tokenizer.size)
        mean, deviation = _rows(folder / "train").images.mean_and_deviation()
        (self.preprocessing or self._resizing(tuple(mean), tuple(deviation))).save(folder)

    def _learnt(self, texts: list[list[str]]) -> TextTokenizer:
        return train_vocabulary((text for some in texts for text in some), self.vocabulary, "terminated")

    def _resizing(self, mean: tuple[float, ...], deviation: tuple[float, ...]) -> Preprocessing:
        side = (self.size, self.size)
        return Preprocessing(size=side, resize=side, mean=mean, std=deviation)

    def _examples(self, part: Part, texts: list[list[str]], skipped: list[str], poll: Poll) -> Iterator[Example]:
        """The images of a part; their captions are added to `texts` as they stream by."""
        if self.data.built_in:
            sizes = self.data.scenes
            count = {"train": sizes.count, "valid": sizes.valid_count, "test": sizes.test_count}[part]
            for scene in scenes(part=part, count=count, seed=self.seed, size=self.size):
                poll()
                texts.append(list(scene.captions[:1] if part == "train" else scene.captions))
                grey = scene.pixels.mean(axis=0, keepdims=True).round().astype(np.uint8)
                yield Example(grey if self.channels == 1 else scene.pixels, 0)
            return
        captions, images = self.data.files(part)
        resizing = self.preprocessing or self._resizing((0.0,) * self.channels, (1.0,) * self.channels)
        if captions:
            for found in captioned_images(captions, images, problems=skipped, skip_bad=self.data.skip_bad):
                poll()
                texts.append(found.captions)
                yield Example(resizing.pixels(found.image), 0)


def _rows(folder: Path) -> CaptionedRows:
    store = ImageStore.open(folder)
    return CaptionedRows(ImageRows(store, np.arange(len(store))), CaptionStore.open(folder))
