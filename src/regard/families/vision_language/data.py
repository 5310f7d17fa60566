"""The texts and images that training reads, prepared once per run; batches of pairs, of masked pairs for pre-training,
and of choices for retrieval.

Every example of a batch is a function of (seed, epoch, its number), as in `data/text/masking.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray

from regard.data.batch import RegionTextBatch, pad_rows
from regard.data.captions import read_captions
from regard.data.columns import Column, ColumnWriter, MappedStore, map_values
from regard.data.loader import Place, Rows
from regard.data.sources import PARTS, Part
from regard.data.synthetic.scene_texts import phrases, questions
from regard.data.synthetic.shapes import MIN_SIZE, scenes
from regard.data.text.masking import Masking
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.training import train_vocabulary
from regard.errors import DataError
from regard.families.vision_language.recipe import RegionTextRecipe
from regard.families.vision_language.regions import (
    PLACES,
    Described,
    Regions,
    TextAbout,
    TextKind,
    describe_captions,
    describe_scenes,
    places,
    region_reader,
    searched,
    true_regions,
)
from regard.training.initial_model import initial_tokenizer
from regard.training.safeguards import Poll, polled
from regard.training.stages import Stages

SHOWN = 0.1  # the share of the masked regions whose features stay; the others become zeros
MATCH, NO_MATCH = 0, 1
FEATURES, PLACED, COUNTS, CLASSES, TEXTS = "features.bin", "places.bin", "counts.bin", "classes.bin", "texts"
SKIPPED = "skipped.json"
VOCABULARY_SCENES = 2000  # scenes whose texts of all kinds make the vocabulary
CHUNK = 500  # images whose texts are encoded together
Encoded = tuple[Regions, list[tuple[list[int], int]]]  # an image, and tokens with a target for each text about it


@dataclass(frozen=True)
class RegionTextCorpus:
    """The images and texts that a model is trained, validated and tested on."""

    tokenizer: TextTokenizer
    train: RegionTexts
    valid: RegionTexts
    test: RegionTexts
    skipped: list[str]

    @classmethod
    def open(cls, folder: Path) -> RegionTextCorpus:
        """The corpus that `prepare` wrote."""
        files = [folder / f"{part}-{SKIPPED}" for part in PARTS]
        skipped = [line for file in files for line in json.loads(file.read_text(encoding="utf-8"))]
        train, valid, test = (RegionTexts.open(folder / part) for part in PARTS)
        return cls(TextTokenizer.load(folder / "tokenizer"), train, valid, test, skipped)

    @property
    def summary(self) -> str:
        counts = [
            f"{len(part):,} texts about {len(part.counts):,} images" for part in (self.train, self.valid, self.test)
        ]
        text = f"{counts[0]}; {counts[1]} for validation, {counts[2]} for testing"
        return text + (f"; {len(self.skipped):,} left out, the first: {self.skipped[0]}" if self.skipped else "")


def prepare(recipe: RegionTextRecipe, kind: TextKind, longest: int, folder: Path, poll: Poll) -> None:
    """Find the regions of all images of a recipe and encode the texts, unless `folder` exists from before."""
    if folder.exists():
        return
    stages = Stages(folder)
    learnt = stages.once("vocabulary", lambda place: _tokenizer(recipe, poll).save(place / "tokenizer"))
    tokenizer = TextTokenizer.load(learnt / "tokenizer")

    def write(part: Part, place: Path) -> None:
        skipped: list[str] = []
        described = ((each.regions, each.texts) for each in _described(recipe, kind, part, skipped))
        examples = _encoded(tokenizer, longest, polled(described, poll))
        RegionTexts.write(place / part, examples, recipe.data.regions.regions)
        (place / f"{part}-{SKIPPED}").write_text(json.dumps(skipped, ensure_ascii=False), encoding="utf-8")
        if part == "train" and not len(RegionTexts.open(place / part)):
            raise DataError(f"{recipe.data.train}: there is no text about an image to learn from")

    for part in PARTS:
        stages.once(part, partial(write, part))
    stages.gather()


def _described(recipe: RegionTextRecipe, kind: TextKind, part: Part, skipped: list[str]) -> Iterator[Described]:
    data = recipe.data
    if not data.built_in:
        path: str = getattr(data, part)
        found = skipped if data.skip_bad else None
        return describe_captions(path, region_reader(data.regions, device="auto"), skipped=found) if path else iter(())
    objects = data.regions.finder == "objects"
    find = partial(true_regions, data.regions) if objects else searched(region_reader(data.regions, device="auto"))
    return describe_scenes(
        kind, find, part=part, count=data.scenes.of(part), seed=recipe.seed, size=data.image_size, each=data.each,
        larger_first=data.larger_first,
    )  # fmt: skip


def _tokenizer(recipe: RegionTextRecipe, poll: Poll) -> TextTokenizer:
    if init := recipe.model.init or recipe.words.init:
        return initial_tokenizer(init)
    return train_vocabulary(polled(_vocabulary_texts(recipe), poll), recipe.tokenizer, "enclosed")


def _vocabulary_texts(recipe: RegionTextRecipe) -> Iterator[str]:
    """The texts of all kinds, so that a model of one kind can be trained further on another."""
    data = recipe.data
    if not data.built_in:
        yield from (text for texts in read_captions(data.train).values() for text in texts)
        return
    count = min(VOCABULARY_SCENES, data.scenes.count)
    for scene in scenes(part="train", count=count, seed=recipe.seed, size=MIN_SIZE):
        yield scene.caption
        yield from (text.text for make in (phrases, questions) for text in make(scene))


def _encoded(
    tokenizer: TextTokenizer, longest: int, described: Iterator[tuple[Regions, list[TextAbout]]]
) -> Iterator[Encoded]:
    while some := list(islice(described, CHUNK)):
        rows = iter(tokenizer.encode([about.text for _, texts in some for about in texts], longest=longest))
        for regions, texts in some:
            yield regions, [(next(rows).ids, about.target) for about in texts]


@dataclass(frozen=True)
class RegionTexts(MappedStore):
    """N images with R places for regions each, of which `counts` are real, and texts that belong to them."""

    about, contents = "store.json", "regions"

    folder: Path
    features: NDArray[np.float16]  # [N R F]
    places: NDArray[np.float32]  # [N R 5]
    counts: NDArray[np.int64]  # [N]
    classes: NDArray[np.float16] | None  # [N R C], probabilities
    texts: Column
    images: NDArray[np.int64]  # the image of each text
    targets: NDArray[np.int64]  # of each text

    def __len__(self) -> int:
        """The number of texts."""
        return len(self.images)

    @classmethod
    def write(cls, folder: Path, examples: Iterable[Encoded], most: int) -> None:
        """Write a stream of examples with at most `most` regions each into a new folder."""
        folder.mkdir(parents=True)
        widths, images, targets = (0, 0), list[int](), list[int]()
        count = 0
        paths = [folder / name for name in (FEATURES, PLACED, COUNTS, CLASSES)]
        with ExitStack() as files:
            texts = files.enter_context(closing(ColumnWriter(folder, TEXTS, "<i4")))
            features, placed, counts, classes = (files.enter_context(path.open("wb")) for path in paths)
            for regions, about in examples:
                widths = regions.features.shape[1], 0 if regions.classes is None else regions.classes.shape[1]
                features.write(_padded(regions.features, most, "<f2"))
                placed.write(_padded(places(regions.boxes), most, "<f4"))
                counts.write(len(regions.boxes).to_bytes(8, "little"))
                if regions.classes is not None:
                    classes.write(_padded(regions.classes, most, "<f2"))
                texts.write(tokens for tokens, _ in about)
                images += [count] * len(about)
                targets += [target for _, target in about]
                count += 1
        for name, values in (("images", images), ("targets", targets)):
            (folder / f"{name}.bin").write_bytes(np.array(values, dtype="<i8").tobytes())
        about_store = {"images": count, "regions": most, "features": widths[0], "classes": widths[1]}
        about_store |= {"texts": len(images), "tokens": texts.length}
        (folder / cls.about).write_text(json.dumps(about_store), encoding="utf-8")

    @classmethod
    def mapped(cls, folder: Path, about: dict[str, Any]) -> RegionTexts:
        shape, texts = (about["images"], about["regions"]), about["texts"]

        def part(name: str, dtype: str, *sizes: int) -> NDArray[Any]:
            return map_values(folder / name, dtype, int(np.prod(sizes))).reshape(sizes)

        return cls(
            folder,
            part(FEATURES, "<f2", *shape, about["features"]),
            part(PLACED, "<f4", *shape, PLACES),
            part(COUNTS, "<i8", shape[0]),
            part(CLASSES, "<f2", *shape, about["classes"]) if about["classes"] else None,
            Column.open(folder, TEXTS, "<i4", about["tokens"], texts),
            part("images.bin", "<i8", texts),
            part("targets.bin", "<i8", texts),
        )


def _padded(rows: NDArray[Any], most: int, dtype: str) -> bytes:
    padded = np.zeros((most, rows.shape[1]), dtype=dtype)
    padded[: len(rows)] = rows
    return padded.tobytes()


# Batches


@dataclass(frozen=True)
class PairMaker:
    """Makes batches of texts with their images; every text is padded to `longest` tokens."""

    store: RegionTexts
    pad: int
    longest: int

    def __call__(self, rows: Rows, place: Place = (0, 0)) -> RegionTextBatch:
        return self.pairs(rows, self.store.images[rows], targets=torch.from_numpy(self.store.targets[rows]))

    def pairs(self, texts: Rows, images: Rows, **more: Any) -> RegionTextBatch:
        """Any texts with any images, side by side."""
        inputs, mask = self.padded([self.store.texts[row] for row in texts.tolist()])
        return RegionTextBatch(inputs, mask, *self.regions(images), **more)

    def regions(self, images: Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Features and places of the regions of images, and which of them are real."""
        store = self.store
        real = np.arange(store.features.shape[1])[None] < store.counts[images][:, None]
        # Cloned, since torch aligns its memory and numpy does not: products may round by where their numbers lie.
        places = torch.from_numpy(store.places[images]).clone()
        return torch.from_numpy(store.features[images]), places, torch.from_numpy(real)

    def padded(self, rows: Sequence[NDArray[Any]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids padded to one length, the same for all batches, and a mask of the real ones."""
        return pad_rows(rows, self.pad, self.longest)


@dataclass(frozen=True)
class MaskedPairMaker:
    """Makes batches for pre-training: half of the texts belong to other images; words and regions are masked.

    What is masked is predicted only where text and image belong together (as in Lu et al. 2020): elsewhere the other
    stream says nothing about it. Region 0, the whole image, is never masked.
    """

    pairs: PairMaker
    masking: Masking
    region_share: float
    seed: int

    def __call__(self, rows: Rows, place: Place) -> RegionTextBatch:
        store, rngs = self.pairs.store, [np.random.default_rng([self.seed, place[0], row]) for row in rows.tolist()]
        other = np.array([rng.random() < 0.5 for rng in rngs])
        drawn = zip(rows.tolist(), rngs, other, strict=True)
        texts = [different(store, row, rng) if swap else row for row, rng, swap in drawn]
        true = [store.texts[row].astype(np.int64) for row in texts]
        hidden, guessed = zip(*map(self.masking, true, rngs), strict=True)
        inputs, mask = self.pairs.padded(hidden)
        labels, _ = self.pairs.padded(true)
        counted = [(words & (not swap)).astype(np.int64) for words, swap in zip(guessed, other, strict=True)]
        chosen, _ = self.pairs.padded(counted)
        features, places, real = self.pairs.regions(store.images[rows])
        masked, zeroed = self._masked_regions(rngs, real.numpy())
        targets = features.clone() if store.classes is None else torch.from_numpy(store.classes[store.images[rows]])
        features[torch.from_numpy(zeroed)] = 0
        return RegionTextBatch(
            inputs, mask, features, places, real,
            targets=torch.from_numpy(np.where(other, NO_MATCH, MATCH)),
            labels=labels, labels_mask=chosen.bool() & mask,
            region_targets=targets, region_labels_mask=torch.from_numpy(masked & ~other[:, None]),
        )  # fmt: skip

    def exchanged(self, rows: Rows) -> RegionTextBatch:
        """Pairs without masks; every text with an odd number is exchanged for one of another image."""
        store = self.pairs.store
        texts = [
            different(store, row, np.random.default_rng([self.seed, row])) if row % 2 else row for row in rows.tolist()
        ]
        matches = torch.from_numpy(np.where(rows % 2, NO_MATCH, MATCH))
        return self.pairs.pairs(np.array(texts), store.images[rows], targets=matches)

    def _masked_regions(
        self, rngs: Sequence[np.random.Generator], real: Bool[np.ndarray, "B R"]
    ) -> tuple[Bool[np.ndarray, "B R"], Bool[np.ndarray, "B R"]]:
        """The regions to predict, and those of them whose features become zeros."""
        draws = np.stack([rng.random((2, real.shape[1])) for rng in rngs])
        masked = (draws[:, 0] < self.region_share) & real
        masked[:, 0] = False
        return masked, masked & (draws[:, 1] >= SHOWN)


@dataclass(frozen=True)
class ChoiceMaker:
    """Makes batches for retrieval: every pair is followed by wrong ones, with another text or another image in turn."""

    pairs: PairMaker
    choices: int  # pairs of an example; the first is the right one
    seed: int

    def __call__(self, rows: Rows, place: Place) -> RegionTextBatch:
        store = self.pairs.store
        texts, images = np.repeat(rows, self.choices), np.repeat(store.images[rows], self.choices)
        for number, row in enumerate(rows.tolist()):
            rng = np.random.default_rng([self.seed, place[0], row])
            for wrong in range(1, self.choices):
                other = different(store, row, rng)
                if wrong % 2:
                    texts[number * self.choices + wrong] = other
                else:
                    images[number * self.choices + wrong] = store.images[other]
        return self.pairs.pairs(texts, images, targets=torch.zeros(len(rows), dtype=torch.int64))


def different(store: RegionTexts, row: int, rng: np.random.Generator) -> int:
    """A text of another image that does not say the same as text `row`; `row` itself if none is found."""
    for _ in range(100):
        other = int(rng.integers(len(store)))
        if store.images[other] != store.images[row] and not np.array_equal(store.texts[other], store.texts[row]):
            return other
    return row
