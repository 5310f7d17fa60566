"""Labelled images from IDX files, CIFAR's binary files, and folders or archives with one folder per class.

`ImageStore` keeps the decoded images as bytes in memory-mapped files, at the size that the model reads.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from regard.data.columns import MappedStore, in_groups, map_values
from regard.data.formats.lines import ARCHIVES, archive_members
from regard.data.images.files import SUFFIXES
from regard.data.images.reading import Pixels, read_image
from regard.errors import DataError

PIXELS, TARGETS, MASKS = "pixels.bin", "labels.bin", "masks.bin"
IDX_IMAGES, IDX_LABELS = 2051, 2049  # the first four bytes of the files
CIFAR_SIDE, CIFAR_NAMES = 32, "batches.meta.txt"
AT_ONCE = 256  # files decoded together
DIMENSION_LIMIT = 1 << 16


class Example(NamedTuple):
    """An image [C H W] with the index of its class and, if known, the class of every pixel."""

    pixels: Pixels
    label: int
    mask: Pixels | None = None


class Files(NamedTuple):
    """A source of examples, and whether they are sorted by class."""

    examples: Iterator[tuple[Image.Image, int] | str]  # a str says why a file was left out
    labels: tuple[str, ...]
    by_class: bool = False


def open_images(path: str | Path, labels: Sequence[str] = ()) -> Files:
    """The images of a path: `…-images-idx3-ubyte[.gz]`, `*.bin` of CIFAR, a folder or tar archive of class folders.

    `labels` names the classes if the files do not; otherwise it must agree with them.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"there is no file or folder {str(path)!r}")
    if path.is_dir():
        files = _cifar(sorted(path.glob("data_batch_*.bin"))) if any(path.glob("data_batch_*.bin")) else _folder(path)
    elif "idx3-ubyte" in path.name:
        files = _idx(path)
    elif path.suffix == ".bin":
        files = _cifar([path])
    elif path.name.endswith(ARCHIVES):
        files = _archive(path)
    else:
        raise DataError(
            f"{path} is no set of images; expected a file named …-images-idx3-ubyte.gz, CIFAR's *.bin, or a folder "
            "or .tar.gz that has a folder for each class"
        )
    if not labels or files.by_class:
        if labels and tuple(labels) != files.labels:
            raise DataError(f"{path} has the classes {', '.join(files.labels)}; data.labels has {', '.join(labels)}")
        return files
    return files._replace(labels=tuple(labels))


# IDX, the format of MNIST: big-endian sizes, then bytes


def _idx(path: Path) -> Files:
    pixels = _idx_array(path, IDX_IMAGES, 3)
    other = path.with_name(path.name.replace("images-idx3", "labels-idx1"))
    if other == path or not other.exists():
        raise DataError(f"{path} has no labels: expected {other.name} beside it")
    labels = _idx_array(other, IDX_LABELS, 1)
    if len(labels) != len(pixels):
        raise DataError(f"{path.name} has {len(pixels):,} images, but {other.name} {len(labels):,} labels")
    names = tuple(str(number) for number in range(int(labels.max(initial=0)) + 1))
    return Files(((Image.fromarray(each), int(label)) for each, label in zip(pixels, labels, strict=True)), names)


def _idx_array(path: Path, magic: int, dimensions: int) -> Pixels:
    data = _bytes_of(path)
    header = np.frombuffer(data, dtype=">u4", count=min(len(data) // 4, 1 + dimensions))
    if len(header) <= dimensions or header[0] != magic:
        raise DataError(f"{path} does not begin like an IDX file of {dimensions} dimensions (magic number {magic})")
    shape = tuple(int(each) for each in header[1:])
    if any(side > DIMENSION_LIMIT for side in shape[1:]) or len(data) - header.nbytes != int(np.prod(shape)):
        raise DataError(
            f"{path} should hold {' x '.join(map(str, shape))} bytes, but has {len(data) - header.nbytes:,}"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=header.nbytes).reshape(shape)


def _bytes_of(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked ({error}); fetch it again") from None


# CIFAR's binary files: one or two bytes of labels, then 3 x 32 x 32 bytes (Krizhevsky 2009)


def _cifar(paths: Sequence[Path]) -> Files:
    picture = 3 * CIFAR_SIDE * CIFAR_SIDE
    rows = [np.frombuffer(path.read_bytes(), dtype=np.uint8) for path in paths]
    for path, each in zip(paths, rows, strict=True):
        if not len(each) or (len(each) % (1 + picture) and len(each) % (2 + picture)):
            raise DataError(f"{path} is not CIFAR's binary form: {len(each):,} bytes are no whole number of images")
    head = 1 if all(len(each) % (1 + picture) == 0 for each in rows) else 2  # CIFAR-100: coarse label, fine label
    table = np.concatenate([each.reshape(-1, head + picture) for each in rows])
    labels = table[:, head - 1]
    named = paths[0].with_name(CIFAR_NAMES)
    names = tuple(named.read_text(encoding="utf-8").split()) if named.exists() else ()
    names = names or tuple(str(number) for number in range(int(labels.max()) + 1))
    pixels = table[:, head:].reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE).transpose(0, 2, 3, 1)
    return Files(((Image.fromarray(each), int(label)) for each, label in zip(pixels, labels, strict=True)), names)


# One folder per class


def _folder(path: Path) -> Files:
    files = [file for file in sorted(path.glob("*/*")) if file.suffix.lower() in SUFFIXES]
    if not files:
        raise DataError(f"{path} has no folders with images in them; expected one folder for each class")
    labels = tuple(sorted({file.parent.name for file in files}))
    named = ((str(file), file.read_bytes, labels.index(file.parent.name)) for file in files)
    return Files(decoded(named), labels, by_class=True)


def _archive(path: Path) -> Files:
    labels = tuple(sorted({PurePosixPath(name).parent.name for name, _ in archive_members(path, SUFFIXES)}))
    if not labels:
        raise DataError(f"{path} has no images; expected a folder for each class in the archive")

    def files() -> Iterator[tuple[str, Callable[[], bytes], int]]:
        for name, data in archive_members(path, SUFFIXES, contents=True):
            yield f"{path}:{name}", partial(bytes, data), labels.index(PurePosixPath(name).parent.name)

    return Files(decoded(files()), labels, by_class=True)


def decoded(files: Iterator[tuple[str, Callable[[], bytes], int]]) -> Iterator[tuple[Image.Image, int] | str]:
    """Files (name, reader of its bytes, a number) as images with these numbers, in order; a str says why one cannot be
    read. They are decoded by several threads: Pillow releases Python's global lock."""

    def decode(file: tuple[str, Callable[[], bytes], int]) -> tuple[Image.Image, int] | str:
        name, read, label = file
        try:
            return read_image(read(), name), label
        except DataError as error:
            return str(error)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for some in in_groups(files, AT_ONCE):
            yield from pool.map(decode, some)


# The store


@dataclass(frozen=True)
class ImageStore(MappedStore):
    """Images of one size with their labels, read from disk page by page as they are needed."""

    about, contents = "images.json", "images"

    folder: Path
    pixels: Pixels  # [N C H W]
    labels: NDArray[np.int64]
    masks: Pixels | None  # [N H W]
    names: tuple[str, ...]  # of the classes
    by_class: bool

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def write(cls, folder: Path, examples: Iterable[Example], names: Sequence[str], *, by_class: bool = False) -> None:
        """Write a stream of examples into a new folder."""
        folder.mkdir(parents=True)
        shape: tuple[int, ...] = (0, 0, 0)
        count = masked = 0
        paths = [folder / name for name in (PIXELS, TARGETS, MASKS)]
        with paths[0].open("wb") as pixels, paths[1].open("wb") as labels, paths[2].open("wb") as masks:
            for example in examples:
                shape = example.pixels.shape
                pixels.write(example.pixels.tobytes())
                labels.write(int(example.label).to_bytes(8, "little"))
                if example.mask is not None:
                    masks.write(example.mask.tobytes())
                    masked += 1
                count += 1
        about = {"shape": [count, *shape], "masks": masked == count > 0, "names": list(names), "by_class": by_class}
        (folder / cls.about).write_text(json.dumps(about), encoding="utf-8")

    @classmethod
    def mapped(cls, folder: Path, about: dict[str, Any]) -> ImageStore:
        count, *picture = about["shape"]
        pixels = map_values(folder / PIXELS, "u1", count * int(np.prod(picture))).reshape(count, *picture)
        labels = map_values(folder / TARGETS, "<i8", count)
        area = count * int(np.prod(picture[1:]))
        masks = map_values(folder / MASKS, "u1", area).reshape(count, *picture[1:]) if about["masks"] else None
        return cls(folder, pixels, labels, masks, tuple(about["names"]), about["by_class"])

    def held_out(self, count: int) -> NDArray[np.bool_]:
        """A mask of the last `count` images of the file; if it is sorted by class, of the last ones of every class."""
        chosen = np.zeros(len(self), dtype=bool)
        if not self.by_class:
            chosen[len(self) - count :] = True
            return chosen
        for number, share in enumerate(np.diff(np.linspace(0, count, len(self.names) + 1).round().astype(int))):
            rows = np.flatnonzero(self.labels == number)
            chosen[rows[len(rows) - int(share) :]] = True
        return chosen
