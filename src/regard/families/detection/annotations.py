"""Boxes of objects in images: COCO's JSON and Pascal VOC's XML, read and checked.

A box without area, or outside of its image, is refused with the name of its file: it would turn a loss into NaN.
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

from regard.data.formats.archives import ARCHIVES
from regard.data.images.reading import SUFFIXES, read_image
from regard.errors import DataError

Corners = tuple[float, float, float, float]  # x1, y1, x2, y2
ON_THEIR_SIDE = {5: (False, False), 6: (True, False), 7: (True, True), 8: (False, True)}  # are x and y counted back?


def upright(corners: Corners, orientation: int, size: tuple[int, int]) -> Corners:
    """A box of the stored pixels in the upright image of this size."""
    back_x, back_y = ON_THEIR_SIDE[orientation]
    (y1, x1, y2, x2), (width, height) = corners, size
    x1, x2 = (width - x2, width - x1) if back_x else (x1, x2)
    y1, y2 = (height - y2, height - y1) if back_y else (y1, y2)
    return x1, y1, x2, y2


def annotated_side(file: bytes, image: Image.Image, annotated: tuple[int, int] | None) -> int | None:
    """The orientation of a stored image whose pixels were annotated as they are stored; None for an upright one.

    `image` is upright, and `annotated` the width and height that the annotations name, if they do. Another size is an
    error, because the boxes are then those of another image.
    """
    if annotated is None or annotated == image.size:
        return None
    if annotated == image.size[::-1] and (turn := _orientation(file)) in ON_THEIR_SIDE:
        return turn
    (width, height), (there_x, there_y) = annotated, image.size
    raise DataError(
        f"is annotated as {width} x {height} pixels but has {there_x} x {there_y}, so its boxes do not fit it"
    )


def _orientation(file: bytes) -> int:
    with Image.open(io.BytesIO(file)) as image:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))


ROUNDING = 1.0  # pixels by which a box may exceed its image; it is cut off there
FORMATS = "COCO's JSON, or a folder of Pascal VOC (Annotations/*.xml, JPEGImages) or a list of its ImageSets (.txt)"

BoxArray = NDArray[np.float32]  # x1, y1, x2, y2 in pixels
Fetch = Callable[[str], bytes]


class Box(NamedTuple):
    """One annotated box: x1, y1, x2, y2, its class, and whether it is left out of training and of scores."""

    corners: Corners
    label: int
    ignored: bool = False


class Annotated(NamedTuple):
    """The file of an image, its number in the annotations, its boxes, and its width and height if they are named."""

    file: str
    number: int
    boxes: tuple[Box, ...]
    size: tuple[int, int] | None = None


class RegionExample(NamedTuple):
    """A decoded image with checked boxes."""

    file: str
    number: int
    image: Image.Image
    boxes: BoxArray  # [N 4]
    labels: NDArray[np.int64]  # classes from 0 on
    ignored: NDArray[np.bool_]


@dataclass(frozen=True)
class RegionFiles:
    """Annotated images, the names of their classes, and how to read the file of an image."""

    path: Path
    names: tuple[str, ...]
    numbers: tuple[int, ...]  # of the classes in the annotations
    images: Sequence[Annotated]
    fetch: Fetch

    def examples(self, skipped: list[str] | None = None) -> Iterator[RegionExample]:
        """Every image with its boxes. What is wrong with one is an error, or is added to `skipped` and left out."""
        for each in self.images:
            try:
                image, boxes = self._read(each)
            except DataError as error:
                _refuse(str(error), skipped)
                continue
            good = []
            for number, box in enumerate(boxes, start=1):
                if problem := _problem(box.corners, image.size):
                    _refuse(f"{self.path}: {each.file}: box {number} of {len(each.boxes)} {problem}", skipped)
                else:
                    good.append(box)
            limits = (*image.size, *image.size)
            corners = [
                [min(max(side, 0.0), most) for side, most in zip(box.corners, limits, strict=True)] for box in good
            ]
            yield RegionExample(
                each.file,
                each.number,
                image,
                np.array(corners, dtype=np.float32).reshape(-1, 4),
                np.array([box.label for box in good], dtype=np.int64),
                np.array([box.ignored for box in good], dtype=bool),
            )

    def _read(self, annotated: Annotated) -> tuple[Image.Image, Sequence[Box]]:
        """An image and its boxes, both upright."""
        data, name = self.fetch(annotated.file), f"{self.path}: {annotated.file}"
        image = read_image(data, name)
        try:
            side = annotated_side(data, image, annotated.size)
        except DataError as error:
            raise DataError(f"{name}: {error}") from None
        if side is None:
            return image, annotated.boxes
        return image, [box._replace(corners=upright(box.corners, side, image.size)) for box in annotated.boxes]


def _refuse(problem: str, skipped: list[str] | None) -> None:
    if skipped is None:
        raise DataError(f"{problem}; mend it, or leave such ones out with data.skip_bad = true")
    skipped.append(problem)


def _problem(corners: Sequence[float], size: tuple[int, int]) -> str:
    """What is wrong with a box, or nothing."""
    x1, y1, x2, y2 = corners
    shown = f"({x1:g}, {y1:g}) to ({x2:g}, {y2:g})"
    if not all(map(math.isfinite, corners)):
        return f"is {shown}, which are no finite numbers"
    width, height = size
    inside = min(x2, width) - max(x1, 0), min(y2, height) - max(y1, 0)
    if x2 <= x1 or y2 <= y1:
        return f"is {shown}, which has no area"
    if min(x1, y1) < -ROUNDING or x2 > width + ROUNDING or y2 > height + ROUNDING or min(inside) <= 0:
        return f"is {shown}, outside of the image of {width} x {height} pixels"
    return ""


def open_regions(path: str | Path, images: str | Path = "", names: Sequence[str] = ()) -> RegionFiles:
    """The annotated images of a path. `images` is the folder or tar archive of COCO's images, if it is not found.

    `names` are the classes that other files of the same data have; a class that is not among them is refused.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"there is no file or folder {str(path)!r}")
    if path.is_dir() or path.suffix == ".txt":
        return _voc(path, tuple(names))
    if path.suffix.lower() == ".json":
        return _coco(path, Path(images) if images else _images_of(path), tuple(names))
    raise DataError(f"{path} is no annotation file that is known; expected {FORMATS}")


# COCO


def _coco(path: Path, images: Path, names: tuple[str, ...]) -> RegionFiles:
    try:
        data = json.loads(path.read_bytes())
        categories = sorted((int(each["id"]), str(each["name"])) for each in data["categories"])
        files = {int(each["id"]): str(each["file_name"]) for each in data["images"]}
        sizes = {int(each["id"]): _size(each.get("width"), each.get("height")) for each in data["images"]}
        annotations = [_coco_box(each) for each in data["annotations"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is not in COCO's form ({error!r:.60}); expected images, annotations with bbox, and categories"
        ) from None
    found = tuple(name for _, name in categories)
    names = names or found
    place = {number: _known(name, names, path) for number, name in categories}
    boxes: dict[int, list[Box]] = {number: [] for number in files}
    for image, category, corners, ignored in annotations:
        if image not in boxes or category not in place:
            missing = f"image {image}" if image not in boxes else f"category {category}"
            raise DataError(f"{path}: an annotation is of {missing}, which the file does not list")
        boxes[image].append(Box(corners, place[category], ignored))
    numbers = {name: number for number, name in categories}
    return RegionFiles(
        path,
        names,
        tuple(numbers.get(name, -1) for name in names),
        [Annotated(file, number, tuple(boxes[number]), sizes[number]) for number, file in sorted(files.items())],
        fetcher(images),
    )


def _coco_box(each: dict[str, Any]) -> tuple[int, int, Corners, bool]:
    x, y, width, height = map(float, each["bbox"])
    return int(each["image_id"]), int(each["category_id"]), (x, y, x + width, y + height), bool(each.get("iscrowd", 0))


def _size(width: Any, height: Any) -> tuple[int, int] | None:
    """The width and height of an image; None where a file leaves them out, or has zeros in their place."""
    found = int(width or 0), int(height or 0)
    return found if all(found) else None


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
    stems = (
        [line.split()[0] for line in path.read_text(encoding="utf-8").splitlines() if line.split()]
        if path.is_file()
        else []
    )
    files = [folder / f"{stem}.xml" for stem in stems] or sorted(folder.glob("*.xml"))
    if not files:
        raise DataError(f"{path} has no annotations; expected {FORMATS}")
    if (missing := next((file for file in files if not file.is_file()), None)) is not None:
        raise DataError(f"{path} names {missing.stem!r}, but there is no file {missing}; expected {FORMATS}")
    read = [_voc_file(file) for file in files]
    names = names or tuple(sorted({name for _, boxes, _ in read for name, _, _ in boxes}))
    images = [
        Annotated(
            image, number, tuple(Box(corners, _known(name, names, file), hard) for name, corners, hard in boxes), size
        )
        for number, (file, (image, boxes, size)) in enumerate(zip(files, read, strict=True), start=1)
    ]
    return RegionFiles(path, names, tuple(range(1, len(names) + 1)), images, fetcher(root / "JPEGImages"))


def _voc_file(path: Path) -> tuple[str, list[tuple[str, Corners, bool]], tuple[int, int] | None]:
    """The image of an annotation, names, boxes and whether they are difficult, and its size. VOC counts pixels from
    1."""
    try:
        root = etree.parse(str(path), etree.XMLParser(resolve_entities=False, no_network=True)).getroot()
        image = (root.findtext("filename") or path.stem).strip()
        size, boxes = _size(root.findtext("size/width"), root.findtext("size/height")), []
        for each in root.iterfind("object"):
            x1, y1, x2, y2 = (float(each.find("bndbox").findtext(side)) for side in ("xmin", "ymin", "xmax", "ymax"))
            if not (name := (each.findtext("name") or "").strip()):
                raise ValueError("an object has no name")
            boxes.append((name, (x1 - 1, y1 - 1, x2, y2), each.findtext("difficult") == "1"))
    except (OSError, etree.XMLSyntaxError, AttributeError, TypeError, ValueError) as error:
        raise DataError(f"{path} is no annotation of Pascal VOC ({error!r:.80})") from None
    if root.tag != "annotation":
        raise DataError(f"{path} is no annotation of Pascal VOC: its root is <{root.tag}>")
    return image if PurePosixPath(image).suffix.lower() in SUFFIXES else f"{path.stem}.jpg", boxes, size


def _known(name: str, names: Sequence[str], path: Path) -> int:
    if name not in names:
        raise DataError(f"{path} has the class {name!r}; the classes are {', '.join(names)}")
    return tuple(names).index(name)
