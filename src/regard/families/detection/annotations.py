"""Boxes of objects in images: COCO's JSON and Pascal VOC's XML, read and checked.

A box without area, or outside of its image, is rejected with the name of its file: it would turn a loss into NaN.
"""

from __future__ import annotations

import io
import json
import math
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from lxml import etree
from numpy.typing import NDArray
from PIL import ExifTags, Image

from regard.data.formats.lines import ARCHIVES
from regard.data.images.files import SUFFIXES
from regard.data.images.reading import read_image
from regard.errors import DataError

ROTATED = {5: (False, False), 6: (True, False), 7: (True, True), 8: (False, True)}  # EXIF: are x and y counted back?
ROUNDING = 1.0  # pixels by which a box may exceed its image; it is cut off there
FORMATS = "COCO's JSON, or a folder of Pascal VOC (Annotations/*.xml, JPEGImages) or a list of its ImageSets (.txt)"

Corners = tuple[float, float, float, float]  # x1, y1, x2, y2
Size = tuple[int, int]  # width and height
Fetch = Callable[[str], bytes]


class Box(NamedTuple):
    """One annotated box: x1, y1, x2, y2, its class, and whether it is left out of training and of scores."""

    corners: Corners
    label: int
    ignored: bool = False


class Annotated(NamedTuple):
    """The file of an image, its boxes, and the width and height that the annotations name, if they do."""

    file: str
    boxes: Sequence[Box]
    size: Size | None = None


class TrueBoxes(NamedTuple):
    """The boxes of an image: x1, y1, x2, y2 in pixels [N 4], classes from 0 on, and which are ignored.

    Ignored boxes, COCO's crowds and VOC's difficult objects, are left out of training and of scores.
    """

    boxes: NDArray[np.floating]
    labels: NDArray[np.integer]
    ignored: NDArray[np.bool_]


class RegionExample(NamedTuple):
    """A decoded image with checked boxes."""

    image: Image.Image
    truth: TrueBoxes


@dataclass(frozen=True)
class RegionFiles:
    """Annotated images, the names of their classes, and how to read the file of an image."""

    path: Path
    names: tuple[str, ...]
    images: Sequence[Annotated]
    fetch: Fetch

    def examples(self, skipped: list[str] | None = None) -> Iterator[RegionExample]:
        """Every image with its boxes. What is wrong with one is an error, or is added to `skipped` and left out."""

        def reject(problem: str) -> None:
            if skipped is None:
                raise DataError(f"{problem}; repair it, or leave such ones out with data.skip_bad = true")
            skipped.append(problem)

        for annotated in self.images:
            try:
                image, boxes = self._read(annotated)
            except DataError as error:
                reject(str(error))
                continue
            good = []
            for number, box in enumerate(boxes, start=1):
                if problem := _problem(box.corners, image.size):
                    reject(f"{self.path}: {annotated.file}: box {number} of {len(boxes)} {problem}")
                else:
                    good.append(box)
            corners = np.array([box.corners for box in good]).reshape(-1, 4).clip(0, image.size * 2)
            labels = np.array([box.label for box in good], dtype=np.int64)
            ignored = np.array([box.ignored for box in good], dtype=bool)
            yield RegionExample(image, TrueBoxes(corners.astype(np.float32), labels, ignored))

    def _read(self, annotated: Annotated) -> tuple[Image.Image, Sequence[Box]]:
        """An image and its boxes, both upright.

        Some annotations are of the pixels as they are stored, which their size shows if the image is on its side.
        """
        data, name = self.fetch(annotated.file), f"{self.path}: {annotated.file}"
        image = read_image(data, name)
        if annotated.size in (None, image.size):
            return image, annotated.boxes
        if annotated.size == image.size[::-1] and (turn := _orientation(data)) in ROTATED:
            return image, [box._replace(corners=_upright(box.corners, turn, image.size)) for box in annotated.boxes]
        named, real = (f"{width} x {height}" for width, height in (annotated.size, image.size))
        raise DataError(f"{name}: is annotated as {named} pixels but has {real}, so its boxes do not fit it")


def _orientation(file: bytes) -> int:
    with Image.open(io.BytesIO(file)) as image:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))


def _upright(corners: Corners, orientation: int, size: Size) -> Corners:
    """A box of the stored pixels in the upright image of this size."""
    back_x, back_y = ROTATED[orientation]
    (y1, x1, y2, x2), (width, height) = corners, size
    x1, x2 = (width - x2, width - x1) if back_x else (x1, x2)
    y1, y2 = (height - y2, height - y1) if back_y else (y1, y2)
    return x1, y1, x2, y2


def _problem(corners: Corners, size: Size) -> str:
    """What is wrong with a box; empty if nothing is."""
    x1, y1, x2, y2 = corners
    width, height = size
    shown = f"({x1:g}, {y1:g}) to ({x2:g}, {y2:g})"
    if not all(map(math.isfinite, corners)):
        return f"is {shown}, which are not finite numbers"
    if x2 <= x1 or y2 <= y1:
        return f"is {shown}, which has no area"
    exceeds = min(x1, y1) < -ROUNDING or x2 > width + ROUNDING or y2 > height + ROUNDING
    if exceeds or x1 >= width or y1 >= height or min(x2, y2) <= 0:
        return f"is {shown}, outside of the image of {width} x {height} pixels"
    return ""


def open_regions(path: str | Path, images: str | Path = "", names: Sequence[str] = ()) -> RegionFiles:
    """The annotated images of a path. `images` is the folder or tar archive of COCO's images, if it is not found.

    `names` are the classes that other files of the same data have; a class that is not among them is rejected.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"there is no file or folder {str(path)!r}")
    if path.is_dir() or path.suffix == ".txt":
        return _voc(path, tuple(names))
    if path.suffix.lower() == ".json":
        return _coco(path, Path(images) if images else _images_of(path), tuple(names))
    raise DataError(f"{path} is not a known annotation file; expected {FORMATS}")


# COCO


def _coco(path: Path, images: Path, names: tuple[str, ...]) -> RegionFiles:
    try:
        data = json.loads(path.read_bytes())
        categories = dict(sorted((int(entry["id"]), str(entry["name"])) for entry in data["categories"]))
        files = {int(entry["id"]): (str(entry["file_name"]), _size(entry.get)) for entry in data["images"]}
        annotations = [_coco_box(entry) for entry in data["annotations"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is not in COCO's form ({error!r:.60}); expected images, annotations with bbox, and categories"
        ) from None
    names = names or tuple(categories.values())
    labels = {number: _label(name, names, path) for number, name in categories.items()}
    boxes: dict[int, list[Box]] = {number: [] for number in files}
    for image, category, corners, ignored in annotations:
        if image not in boxes or category not in labels:
            missing = f"image {image}" if image not in boxes else f"category {category}"
            raise DataError(f"{path}: an annotation is of {missing}, which the file does not list")
        boxes[image].append(Box(corners, labels[category], ignored))
    annotated = [Annotated(file, boxes[number], size) for number, (file, size) in sorted(files.items())]
    return RegionFiles(path, names, annotated, fetcher(images))


def _coco_box(entry: dict[str, Any]) -> tuple[int, int, Corners, bool]:
    x, y, width, height = map(float, entry["bbox"])
    corners = x, y, x + width, y + height
    return int(entry["image_id"]), int(entry["category_id"]), corners, bool(entry.get("iscrowd", 0))


def _size(value: Callable[[str], Any]) -> Size | None:
    """The width and height of an image; None where a file leaves them out, or has zeros in their place."""
    width, height = int(value("width") or 0), int(value("height") or 0)
    return (width, height) if width and height else None


def _images_of(path: Path) -> Path:
    """Where the images of COCO's train.json are: train_images.tar, train_images, train, images, or beside it."""
    stem = path.stem
    for name in (*(f"{stem}_images{suffix}" for suffix in ARCHIVES), f"{stem}_images", stem, "images"):
        if (place := path.with_name(name)).exists():
            return place
    return path.parent


def fetcher(place: Path) -> Fetch:
    """A function that reads an image by its name from a folder or a tar archive."""
    if place.is_dir():
        return lambda name: _read(place / name)
    if not place.is_file() or not place.name.endswith(ARCHIVES):
        raise DataError(f"{place} is neither a folder nor a tar archive of images")
    pieces = _members(place)

    def read(name: str) -> bytes:
        piece = pieces.get(name) or pieces.get(PurePosixPath(name).name)
        if piece is None:
            raise DataError(f"{place} has no image {name}")
        if isinstance(piece, bytes):
            return piece
        with place.open("rb") as file:
            file.seek(piece[0])
            return file.read(piece[1])

    return read


def _members(place: Path) -> dict[str, bytes | tuple[int, int]]:
    """The files of an archive by path and by name: where they lie in it or, if it is packed, their bytes."""
    pieces: dict[str, bytes | tuple[int, int]] = {}
    try:
        with tarfile.open(place) as archive:
            for member in archive:
                if member.isfile():
                    file = archive.extractfile(member) if place.suffix != ".tar" else None
                    piece = file.read() if file else (member.offset_data, member.size)
                    pieces[member.name] = pieces[PurePosixPath(member.name).name] = piece
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{place} cannot be read as an archive ({error}); fetch it again") from None
    return pieces


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: the image cannot be read ({error.strerror})") from None


# Pascal VOC


def _voc(path: Path, names: tuple[str, ...]) -> RegionFiles:
    root = path if path.is_dir() else path.parents[2] if len(path.parents) > 2 else path.parent
    folder = root / "Annotations"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    files = [folder / f"{line.split()[0]}.xml" for line in lines if line.split()] or sorted(folder.glob("*.xml"))
    if not files:
        raise DataError(f"{path} has no annotations; expected {FORMATS}")
    if (missing := next((file for file in files if not file.is_file()), None)) is not None:
        raise DataError(f"{path} names {missing.stem!r}, but there is no file {missing}; expected {FORMATS}")
    read = [_voc_file(file) for file in files]
    names = names or tuple(sorted({name for _, boxes, _ in read for name, _, _ in boxes}))
    images = [
        Annotated(image, [Box(corners, _label(name, names, file), hard) for name, corners, hard in boxes], size)
        for file, (image, boxes, size) in zip(files, read, strict=True)
    ]
    return RegionFiles(path, names, images, fetcher(root / "JPEGImages"))


def _voc_file(path: Path) -> tuple[str, list[tuple[str, Corners, bool]], Size | None]:
    """The image of an annotation, its boxes with names and whether they are difficult, and its size.

    VOC counts pixels from 1.
    """
    try:
        root = etree.parse(str(path), etree.XMLParser(resolve_entities=False, no_network=True)).getroot()
        image = (root.findtext("filename") or path.stem).strip()
        size, boxes = _size(lambda side: root.findtext(f"size/{side}")), []
        for element in root.iterfind("object"):
            x1, y1, x2, y2 = (float(element.findtext(f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax"))
            if not (name := (element.findtext("name") or "").strip()):
                raise ValueError("an object has no name")
            boxes.append((name, (x1 - 1, y1 - 1, x2, y2), element.findtext("difficult") == "1"))
    except (OSError, etree.XMLSyntaxError, TypeError, ValueError) as error:
        raise DataError(f"{path} is not an annotation of Pascal VOC ({error!r:.80})") from None
    if root.tag != "annotation":
        raise DataError(f"{path} is not an annotation of Pascal VOC: its root is <{root.tag}>")
    return image if PurePosixPath(image).suffix.lower() in SUFFIXES else f"{path.stem}.jpg", boxes, size


def _label(name: str, names: Sequence[str], path: Path) -> int:
    if name not in names:
        raise DataError(f"{path} has the class {name!r}; the classes are {', '.join(names)}")
    return names.index(name)
