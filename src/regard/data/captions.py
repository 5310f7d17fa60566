"""Captions of images in files, and the images that they belong to.

Tables have a line for each caption: image TAB number TAB caption (as in `data/flickr8k`), image#number TAB caption
(Flickr8k.token.txt), or image,caption with that header (its copies on Kaggle). COCO's JSON has `images` and
`annotations`. Images are in a folder or a tar archive; they are found by their file names, whatever folder they are in.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from PIL import Image

from regard.data.formats.lines import ARCHIVES, archive_members, open_bytes, read_lines, refuse
from regard.data.images.datasets import decoded
from regard.data.images.files import SUFFIXES
from regard.errors import DataError

EXPECTED = (
    "expected image TAB number TAB caption, image#number TAB caption, the header image,caption, or COCO's JSON of "
    "captions"
)
WORD = re.compile(r"n't\b|'\w+|\w+?(?=n't\b)|\w+(?:[.-]\w+)*")


class CaptionedImage(NamedTuple):
    """An image, its file name and its captions, as words separated by spaces."""

    image: Image.Image
    name: str
    captions: list[str]


def caption_words(text: str) -> str:
    """A caption in lower case without punctuation, its words separated by spaces; clitics ('s, n't) are words.

    Metrics of captions compare such words. The Penn Treebank's tokenizer, which COCO's evaluation uses, finds the same
    in plain captions.
    """
    return " ".join(WORD.findall(text.lower().replace("\u2019", "'")))


def read_captions(path: str | Path) -> dict[str, list[str]]:
    """The captions of every image, by the file name of the image, in the order of the file."""
    path = Path(path)
    found: dict[str, list[str]] = {}
    pairs = _coco(path) if path.name.removesuffix(".gz").endswith(".json") else _table(path)
    for name, text in pairs:
        if words := caption_words(text):
            found.setdefault(PurePosixPath(name).name, []).append(words)
    if not found:
        raise DataError(f"{path} has no caption; {EXPECTED}")
    return found


def captioned_images(
    captions: str | Path, images: str | Path = "", *, problems: list[str], skip_bad: bool = False
) -> Iterator[CaptionedImage]:
    """The images that have captions, in the order of their files.

    A damaged image, an image without a caption and a caption without an image are added to `problems`. With `skip_bad`
    they are left out, else the first is an error; captions without an image are known at the end only.
    """
    texts, place = read_captions(captions), Path(images) if images else images_beside(Path(captions))
    names, left = list(texts), set(texts)
    numbers = {name: number for number, name in enumerate(names)}

    def report(problem: str) -> None:
        if not skip_bad:
            raise DataError(f"{problem}; leave such files out with data.skip_bad = true")
        problems.append(problem)

    def files() -> Iterator[tuple[str, Callable[[], bytes], int]]:
        for name, read in _image_files(place):
            short = PurePosixPath(name).name
            if short in left:
                left.remove(short)
                yield name, read, numbers[short]
            else:
                report(
                    f"{name}: {'a second image of this name' if short in texts else f'has no caption in {captions}'}"
                )

    for found in decoded(files()):
        if isinstance(found, str):
            report(found)
            continue
        image, number = found
        yield CaptionedImage(image, names[number], texts[names[number]])
    for name in sorted(left):
        report(f"{captions}: describes {name}, which is not in {place}")


def images_beside(captions: Path) -> Path:
    """The images of a file of captions: beside it, `images` in place of `captions` in its name, as a folder or an
    archive; for COCO's captions_NAME.json the folder NAME beside it or one folder higher."""
    stem = captions.name.split(".")[0]
    tried = [captions.with_name(stem.replace("captions", "images") + end) for end in ("", *ARCHIVES)]
    coco = stem.removeprefix("captions_")
    tried += [captions.parent / coco, captions.parent.parent / coco, captions.parent.parent / "images" / coco]
    for place in tried:
        if place != captions and place.exists():
            return place
    raise DataError(f"{captions}: its images are not beside it ({tried[0].name}, {tried[2].name}); say where they are")


def _image_files(place: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    if place.is_dir():
        files = (file for file in sorted(place.rglob("*")) if file.suffix.lower() in SUFFIXES)
        return ((str(file), file.read_bytes) for file in files)
    if not place.exists():
        raise DataError(f"there is no file or folder {str(place)!r}")
    if not place.name.endswith(ARCHIVES):
        raise DataError(f"{place} has no images; expected a folder or an archive ({', '.join(ARCHIVES)})")
    return ((f"{place}:{name}", partial(bytes, data)) for name, data in archive_members(place, SUFFIXES, contents=True))


def _table(path: Path) -> Iterator[tuple[str, str]]:
    lines = read_lines(path, refuse)
    first = next(lines, "")
    if first.replace(" ", "").lower() in ("image,caption", "image,caption_number,caption"):
        for number, row in enumerate(csv.reader(lines), 2):
            if len(row) < 2:
                raise DataError(f"{path}, line {number}: {len(row)} columns; {EXPECTED}")
            yield row[0], row[-1]
        return
    for number, line in enumerate(chain([first], lines), 1):
        if not line.strip():
            continue
        name, *rest = line.split("\t")
        name = re.sub(r"#\d+$", "", name)
        if not rest or len(rest) > 2 or not name.lower().endswith(SUFFIXES):
            raise DataError(f"{path}, line {number}: {line[:40]!r} is no caption of an image; {EXPECTED}")
        yield name, rest[-1]


def _coco(path: Path) -> Iterator[tuple[str, str]]:
    with open_bytes(path) as stream:
        try:
            document: Any = json.load(stream)
        except ValueError as error:
            raise DataError(f"{path} is not JSON ({error}); {EXPECTED}") from None
    try:
        names: Mapping[Any, str] = {each["id"]: each["file_name"] for each in document["images"]}
        captions = [(each["image_id"], each["caption"]) for each in document["annotations"]]
    except (KeyError, TypeError) as error:
        raise DataError(f"{path} is not COCO's JSON of captions ({error!r} is not as expected); {EXPECTED}") from None
    for number, (image, text) in enumerate(captions, 1):
        if image not in names:
            raise DataError(f"{path}: annotation {number} is of image {image!r}, which the file does not list")
        if not isinstance(text, str):
            raise DataError(f"{path}: annotation {number} has the caption {text!r}; expected a text")
        yield names[image], text
