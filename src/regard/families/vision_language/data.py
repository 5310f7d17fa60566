"""Texts about images: examples of scenes or captioned images, and the corpus of them that training reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from regard.data.captions import captioned_images, read_captions
from regard.data.columns import Column, ColumnWriter, map_values
from regard.data.sources import PARTS, Part
from regard.data.synthetic.scene_texts import ANSWERS, Chooser, SceneText, phrases, questions
from regard.data.synthetic.shapes import MIN_SIZE, SHAPE_NAMES, Scene, scenes
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.training import train_vocabulary
from regard.errors import DataError, UsageError
from regard.families.vision_language.finders import (
    PLACES,
    FinderConfig,
    RegionReader,
    Regions,
    overlapping,
    places,
    region_reader,
)  # fmt: skip
from regard.families.vision_language.recipe import RegionTextRecipe
from regard.training.initial_model import initial_tokenizer
from regard.training.recipe.files import SCENES
from regard.training.safeguards import Poll
from regard.training.stages import Stages

T = TypeVar("T")

# Examples

TextKind = Literal["captions", "phrases", "questions"]
SIZE = 48  # pixels of a side of the scenes, where no recipe says otherwise
EACH = 3  # phrases or questions about a scene, likewise
NO_TARGET = -1  # of a caption, and of a text whose region was not found or whose answer the model does not know
AT_ONCE = 64  # images whose regions are found together


class TextAbout(NamedTuple):
    """A text about an image, and the number of the region that it means or of the answer to it."""

    text: str
    target: int = NO_TARGET
    kind: str = ""  # of phrases and questions


class Described(NamedTuple):
    """An image, its regions, and texts about it."""

    image: Image.Image
    regions: Regions
    texts: list[TextAbout]


def describe(
    path: str,
    kind: TextKind,
    find: RegionReader,
    *,
    part: Part,
    count: int,
    seed: int,
    labels: Sequence[str] = ANSWERS,
    keep_missed: bool = False,
    skipped: list[str] | None = None,
) -> Iterator[Described]:
    """The images and texts of built-in scenes or of a file of captions, as a trained model finds their regions."""
    if path == SCENES:
        return describe_scenes(
            kind, searched(find), part=part, count=count, seed=seed, labels=labels, keep_missed=keep_missed
        )
    if kind != "captions":
        raise UsageError(f"{path}: phrases and questions with known answers are only in {SCENES!r}")
    return describe_captions(path, find, skipped=skipped)


def describe_captions(path: str, find: RegionReader, *, skipped: list[str] | None = None) -> Iterator[Described]:
    """The images of a file of captions. Those that cannot be read are errors, or are named in `skipped`."""
    images = captioned_images(path, problems=[] if skipped is None else skipped, skip_bad=skipped is not None)
    while some := list(islice(images, AT_ONCE)):
        for regions, (image, _, captions) in zip(find([each.image for each in some]), some, strict=True):
            yield Described(image, regions, [TextAbout(text) for text in captions])


def describe_scenes(
    kind: TextKind,
    find: Callable[[Sequence[Scene]], list[Regions]],
    *,
    part: Part,
    count: int,
    seed: int,
    size: int = SIZE,
    each: int = EACH,
    larger_first: float | None = None,
    labels: Sequence[str] = ANSWERS,
    keep_missed: bool = False,
) -> Iterator[Described]:
    """Built-in scenes with their caption, or with `each` phrases or questions.

    `larger_first` is the share of scenes whose questions about two shapes name the larger one first; None: both orders.
    Texts whose region was not found, or whose answer is not among `labels`, are left out unless `keep_missed`.
    """
    choose = Chooser()
    drawn = enumerate(scenes(part=part, count=count, seed=seed, size=size))
    while some := list(islice(drawn, AT_ONCE)):
        for (number, scene), regions in zip(some, find([scene for _, scene in some]), strict=True):
            if kind == "captions":
                yield Described(scene_image(scene), regions, [TextAbout(scene.caption)])
                continue
            rng = np.random.default_rng([seed, PARTS.index(part), number, 1])
            if kind == "phrases":
                options = list(phrases(scene))
                found = [overlapping(regions.boxes, thing.box) for thing in scene.things]
            else:
                first = None if larger_first is None else bool(rng.random() < larger_first)
                options = list(questions(scene, first))
                found = []

            def target(text: SceneText, found: Sequence[int | None] = found) -> int | None:
                if not isinstance(text.target, str):
                    return found[text.target]
                return labels.index(text.target) if text.target in labels else None

            if not keep_missed:
                options = [text for text in options if target(text) is not None]
            chosen = [(text, target(text)) for text in choose(options, each, rng)]
            texts = [TextAbout(text, NO_TARGET if at is None else at, kind) for (text, kind, _), at in chosen]
            yield Described(scene_image(scene), regions, texts)


def searched(find: RegionReader) -> Callable[[Sequence[Scene]], list[Regions]]:
    """What finds the regions of scenes in their pixels."""
    return lambda some: find([scene_image(scene) for scene in some])


def true_regions(config: FinderConfig, some: Sequence[Scene]) -> list[Regions]:
    """The regions of scenes with their classes; objects are known, so they need not be searched."""
    found = []
    for scene in some:
        regions = config.read(scene_image(scene), np.array([thing.box for thing in scene.things]))
        classes = np.zeros((len(regions.boxes), len(SHAPE_NAMES)))
        shown = range(1, len(regions.boxes))
        classes[shown, [SHAPE_NAMES.index(scene.things[number - 1].shape) for number in shown]] = 1
        found.append(regions._replace(classes=classes))
    return found


def scene_image(scene: Scene) -> Image.Image:
    """The pixels of a scene as an image."""
    return Image.fromarray(scene.pixels.transpose(1, 2, 0))


# The corpus of a run

ABOUT, FEATURES, PLACED, COUNTS, CLASSES, TEXTS = (
    "store.json", "features.bin", "places.bin", "counts.bin", "classes.bin", "texts"
)  # fmt: skip
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
        examples = _encoded(tokenizer, longest, _polled(described, poll))
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
    sizes = data.scenes
    count = {"train": sizes.count, "valid": sizes.valid_count, "test": sizes.test_count}[part]
    return describe_scenes(
        kind, find, part=part, count=count, seed=recipe.seed, size=data.image_size, each=data.each,
        larger_first=data.larger_first,
    )  # fmt: skip


def _tokenizer(recipe: RegionTextRecipe, poll: Poll) -> TextTokenizer:
    if init := recipe.model.init or recipe.words.init:
        return initial_tokenizer(init)
    return train_vocabulary(_polled(_vocabulary_texts(recipe), poll), recipe.tokenizer, "enclosed")


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


def _polled(items: Iterator[T], poll: Poll) -> Iterator[T]:
    for item in items:
        poll()
        yield item


@dataclass(frozen=True)
class RegionTexts:
    """N images with R places for regions each, of which `counts` are real, and texts that belong to them."""

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

    def __reduce__(self) -> tuple[Callable[[Path], RegionTexts], tuple[Path]]:
        return RegionTexts.open, (self.folder,)  # a loader's worker maps the files itself

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
        (folder / ABOUT).write_text(json.dumps(about_store), encoding="utf-8")

    @classmethod
    def open(cls, folder: Path) -> RegionTexts:
        """Map the files of a written store."""
        try:
            about: dict[str, Any] = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
            shape, texts = (about["images"], about["regions"]), about["texts"]

            def mapped(name: str, dtype: str, *sizes: int) -> NDArray[Any]:
                return map_values(folder / name, dtype, int(np.prod(sizes))).reshape(sizes)

            return cls(
                folder,
                mapped(FEATURES, "<f2", *shape, about["features"]),
                mapped(PLACED, "<f4", *shape, PLACES),
                mapped(COUNTS, "<i8", shape[0]),
                mapped(CLASSES, "<f2", *shape, about["classes"]) if about["classes"] else None,
                Column(mapped(f"{TEXTS}.bin", "<i4", about["tokens"]), mapped(f"{TEXTS}.offsets", "<i8", texts + 1)),
                mapped("images.bin", "<i8", texts),
                mapped("targets.bin", "<i8", texts),
            )
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{folder} is not a complete set of regions ({error}); prepare it again") from error


def _padded(rows: NDArray[Any], most: int, dtype: str) -> bytes:
    padded = np.zeros((most, rows.shape[1]), dtype=dtype)
    padded[: len(rows)] = rows
    return padded.tobytes()
