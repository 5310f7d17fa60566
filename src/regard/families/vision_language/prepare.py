"""From scenes or captioned images to regions and encoded texts, once per run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from PIL import Image

from regard.data.captions import captioned_images, read_captions
from regard.data.sources import PARTS, Part
from regard.data.synthetic.scene_texts import ANSWERS, Chooser, phrases, questions
from regard.data.synthetic.shapes import MIN_SIZE, SHAPE_NAMES, Scene, scenes
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.training import VocabularyConfig, train_vocabulary
from regard.errors import DataError
from regard.families.vision_language.data import NO_TARGET, RegionExample, RegionTexts, TextAbout
from regard.families.vision_language.finders import RegionReader, Regions, overlapping, region_reader
from regard.families.vision_language.recipe import RegionTextsSection
from regard.training.initial_model import initial_tokenizer
from regard.training.safeguards import Poll
from regard.training.stages import Stages

TextKind = Literal["captions", "phrases", "questions"]
VOCABULARY_SCENES = 2000  # scenes whose texts of all kinds make the vocabulary
AT_ONCE = 64  # images whose regions are found together
CHUNK = 500  # images whose texts are encoded together
SKIPPED = "skipped.json"
T = TypeVar("T")


class Described(NamedTuple):
    """Regions of an image, and texts about it with their targets."""

    regions: Regions
    texts: list[tuple[str, int]]


@dataclass(frozen=True)
class RegionTextCorpus:
    """The images and texts that a model is trained, validated and tested on."""

    tokenizer: TextTokenizer
    train: RegionTexts
    valid: RegionTexts
    test: RegionTexts
    skipped: list[str]

    @property
    def summary(self) -> str:
        counts = [
            f"{len(part):,} texts about {len(part.counts):,} images" for part in (self.train, self.valid, self.test)
        ]
        text = f"{counts[0]}; {counts[1]} for validation, {counts[2]} for testing"
        return text + (f"; {len(self.skipped):,} left out, the first: {self.skipped[0]}" if self.skipped else "")


@dataclass(frozen=True)
class RegionTextPreparation:
    """How the data of a recipe become regions and tokens; `init` is the folder that the tokenizer comes from."""

    data: RegionTextsSection
    kind: TextKind
    init: str
    vocabulary: VocabularyConfig
    longest: int
    seed: int

    def prepare(self, folder: Path, poll: Poll) -> None:
        """Write the corpus into `folder`, unless it exists from before."""
        if folder.exists():
            return
        stages = Stages(folder)
        learnt = stages.once("vocabulary", lambda place: self._tokenizer(poll).save(place / "tokenizer"))
        tokenizer = TextTokenizer.load(learnt / "tokenizer")
        for part in PARTS:
            stages.once(part, partial(self._write, tokenizer, part, poll))
        stages.gather()

    def open(self, folder: Path) -> RegionTextCorpus:
        """The corpus that was written into `folder`."""
        train, valid, test = (RegionTexts.open(folder / part) for part in PARTS)
        skipped = [
            line for part in PARTS for line in json.loads((folder / f"{part}-{SKIPPED}").read_text(encoding="utf-8"))
        ]
        return RegionTextCorpus(TextTokenizer.load(folder / "tokenizer"), train, valid, test, skipped)

    def _tokenizer(self, poll: Poll) -> TextTokenizer:
        if self.init:
            return initial_tokenizer(self.init)
        return train_vocabulary(_polled(self._vocabulary_texts(), poll), self.vocabulary, "enclosed")

    def _vocabulary_texts(self) -> Iterator[str]:
        """The texts of all kinds, so that a model of one kind can be trained further on another."""
        if not self.data.built_in:
            yield from (text for texts in read_captions(self.data.train).values() for text in texts)
            return
        count = min(VOCABULARY_SCENES, self.data.scenes.count)
        for scene in scenes(part="train", count=count, seed=self.seed, size=MIN_SIZE):
            yield scene.caption
            yield from (each.text for make in (phrases, questions) for each in make(scene))

    def _write(self, tokenizer: TextTokenizer, part: Part, poll: Poll, place: Path) -> None:
        skipped: list[str] = []
        described = self._scenes(part) if self.data.built_in else self._captioned(part, skipped)
        examples = self._encoded(tokenizer, _polled(described, poll))
        RegionTexts.write(place / part, examples, self.data.regions.regions)
        (place / f"{part}-{SKIPPED}").write_text(json.dumps(skipped, ensure_ascii=False), encoding="utf-8")
        if part == "train" and not len(RegionTexts.open(place / part)):
            raise DataError(f"{self.data.train}: there is no text about an image to learn from")

    def _encoded(self, tokenizer: TextTokenizer, described: Iterator[Described]) -> Iterator[RegionExample]:
        while some := list(islice(described, CHUNK)):
            texts = [text for each in some for text, _ in each.texts]
            rows = iter(tokenizer.encode(texts, longest=self.longest))
            for regions, about in some:
                yield RegionExample(regions, [TextAbout(next(rows).ids, target) for _, target in about])

    def _captioned(self, part: Part, skipped: list[str]) -> Iterator[Described]:
        if not (path := self.data.path(part)):
            return
        images, read = captioned_images(path, problems=skipped, skip_bad=self.data.skip_bad), self._reader()
        while some := list(islice(images, AT_ONCE)):
            for regions, (_, _, captions) in zip(read([each.image for each in some]), some, strict=True):
                yield Described(regions, [(text, NO_TARGET) for text in captions])

    def _reader(self) -> RegionReader:
        return region_reader(self.data.regions, device="auto")

    def _scenes(self, part: Part) -> Iterator[Described]:
        sizes, choose = self.data.scenes, Chooser()
        count = {"train": sizes.count, "valid": sizes.valid_count, "test": sizes.test_count}[part]
        drawn = enumerate(scenes(part=part, count=count, seed=self.seed, size=self.data.image_size))
        read = self._known if self.data.regions.finder == "objects" else self._searched(self._reader())
        while some := list(islice(drawn, AT_ONCE)):
            for (number, scene), regions in zip(some, read([scene for _, scene in some]), strict=True):
                rng = np.random.default_rng([self.seed, PARTS.index(part), number, 1])
                yield Described(regions, self._texts(scene, regions, choose, rng))

    def _known(self, some: Sequence[Scene]) -> list[Regions]:
        """The regions of scenes with their classes; objects are known, so they need not be searched."""
        found = []
        for scene in some:
            read = self.data.regions.read(_image(scene), np.array([thing.box for thing in scene.things]))
            classes = np.zeros((len(read.boxes), len(SHAPE_NAMES)))
            shown = range(1, len(read.boxes))
            classes[shown, [SHAPE_NAMES.index(scene.things[number - 1].shape) for number in shown]] = 1
            found.append(read._replace(classes=classes))
        return found

    @staticmethod
    def _searched(reader: RegionReader) -> Callable[[Sequence[Scene]], list[Regions]]:
        return lambda some: reader([_image(scene) for scene in some])

    def _texts(
        self, scene: Scene, regions: Regions, choose: Chooser, rng: np.random.Generator
    ) -> list[tuple[str, int]]:
        if self.kind == "captions":
            return [(scene.caption, NO_TARGET)]
        if self.kind == "questions":
            larger_first = bool(rng.random() < self.data.larger_first)
            drawn = choose(list(questions(scene, larger_first)), self.data.each, rng)
            return [(each.text, ANSWERS.index(str(each.target))) for each in drawn]
        places = [overlapping(regions.boxes, thing.box) for thing in scene.things]
        texts = [each for each in phrases(scene) if places[int(each.target)] is not None]  # others mean no region
        return [(each.text, places[int(each.target)] or 0) for each in choose(texts, self.data.each, rng)]


def _image(scene: Scene) -> Image.Image:
    return Image.fromarray(scene.pixels.transpose(1, 2, 0))


def _polled(items: Iterator[T], poll: Poll) -> Iterator[T]:
    for item in items:
        poll()
        yield item
