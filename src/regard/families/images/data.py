"""Labelled images, from files or drawn, and the images of a recipe: each at the size of the model."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from regard.data.images.datasets import Example, ImageStore, open_images
from regard.data.images.reading import Pixels, png
from regard.data.sources import PARTS, Part
from regard.data.synthetic.shapes import SHAPE_NAMES, scenes
from regard.errors import DataError
from regard.training.image_task import ImageCorpus, ImageRows
from regard.training.recipe.files import SCENES
from regard.training.safeguards import Poll


class LabelledImage(NamedTuple):
    """An image, the number of its class and, of drawn images, the class of every pixel (0 is the background)."""

    image: Image.Image
    label: int
    mask: Pixels | None = None


class LabelledImages(NamedTuple):
    """Images, the names of their classes, and whether they are sorted by class. A str says why one was left out."""

    examples: Iterator[LabelledImage | str]
    names: tuple[str, ...]
    by_class: bool = False


def open_examples(
    path: str, names: Sequence[str] = (), *, size: int, part: Part, count: int, seed: int
) -> LabelledImages:
    """The labelled images of a path, or the built-in scenes.

    `size`, `part`, `count` and `seed` are of the scenes that are drawn; files are always read whole.
    """
    if path == SCENES:
        drawn = scenes(part=part, count=count, seed=seed, size=size)
        return LabelledImages((LabelledImage(scene.image, scene.label, scene.mask) for scene in drawn), SHAPE_NAMES)
    files = open_images(path, names)
    examples = (found if isinstance(found, str) else LabelledImage(*found) for found in files.examples)
    return LabelledImages(examples, files.labels, files.by_class)


def examples_of(names: Sequence[str], images: LabelledImages, path: str) -> Iterator[LabelledImage | str]:
    """Images with the numbers that a model has for their classes, which must all be among its `names`.

    Classes without names, as in the files of MNIST, are numbered in the order of the model's.
    """
    if all(name.isdecimal() for name in images.names):
        return images.examples
    if unknown := [name for name in images.names if name not in names]:
        raise DataError(f"{path} has the class {unknown[0]!r}; the model knows {', '.join(names)}")
    numbers = [names.index(name) for name in images.names]
    return (
        found if isinstance(found, str) else found._replace(label=numbers[found.label]) for found in images.examples
    )


class LabelledCorpus(ImageCorpus[ImageRows]):
    """The labelled images of a recipe; the shorter side of each is resized to the size of the model."""

    def write(self, folder: Path, skipped: list[str], poll: Poll) -> None:
        names: Sequence[str] = self.data.labels
        for part in PARTS:
            paths = [SCENES] if self.data.built_in else self.data.paths(part)
            options = {"size": self.size, "part": part, "count": self.data.scenes.of(part), "seed": self.seed}
            files = [open_examples(path, names, **options) for path in paths]
            if len({each.names for each in files}) > 1:
                raise DataError(f"{self.data.train}: the files have different classes; name them all with data.labels")
            names = files[0].names if files else names
            by_class = any(each.by_class for each in files)
            ImageStore.write(folder / part, self._examples(files, skipped, poll), names, by_class=by_class)

    def _examples(self, files: Sequence[LabelledImages], skipped: list[str], poll: Poll) -> Iterator[Example]:
        for found in (found for each in files for found in each.examples):
            poll()
            if isinstance(found, str):
                skipped.append(found)
            else:
                yield Example(self.resizing.pixels(found.image), found.label, found.mask)

    def part(self, folder: Path) -> ImageRows:
        return ImageRows.open(folder)

    @property
    def contents(self) -> str:
        return f"of {len(self.names)} classes"


EXAMPLES, EXAMPLE_SIDE = 6, 256


@cache
def examples() -> list[dict[str, str]]:
    """Built-in images to try a model with on the page: PNG files in base64, and a caption of each."""
    drawn = scenes(part="test", count=EXAMPLES, seed=1, size=EXAMPLE_SIDE)
    return [{"caption": scene.caption, "data": base64.b64encode(png(scene.pixels)).decode()} for scene in drawn]
