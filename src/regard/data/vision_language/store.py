"""Images as regions with texts about them, in memory-mapped files: nothing is held in memory that is not in use."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.columns import Column, ColumnWriter, map_values
from regard.data.vision_language.finders import PLACES, Regions, places
from regard.errors import DataError

ABOUT, FEATURES, PLACED, COUNTS, CLASSES, TEXTS = (
    "store.json", "features.bin", "places.bin", "counts.bin", "classes.bin", "texts"
)  # fmt: skip
NO_TARGET = -1


class TextAbout(NamedTuple):
    """A text about an image as tokens, and the number of the region that it means or of the answer to it."""

    tokens: list[int]
    target: int = NO_TARGET


class RegionExample(NamedTuple):
    """An image and the texts about it."""

    regions: Regions
    texts: list[TextAbout]


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

    def texts_of(self, images: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of all texts about these images."""
        return np.flatnonzero(np.isin(self.images, images))

    @classmethod
    def write(cls, folder: Path, examples: Iterable[RegionExample], most: int) -> None:
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
                texts.write(text.tokens for text in about)
                images += [count] * len(about)
                targets += [text.target for text in about]
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

            column = Column(
                mapped(f"{TEXTS}.bin", "<i4", about["tokens"]), mapped(f"{TEXTS}.offsets", "<i8", texts + 1)
            )
            return cls(
                folder,
                mapped(FEATURES, "<f2", *shape, about["features"]),
                mapped(PLACED, "<f4", *shape, PLACES),
                mapped(COUNTS, "<i8", shape[0]),
                mapped(CLASSES, "<f2", *shape, about["classes"]) if about["classes"] else None,
                column,
                mapped("images.bin", "<i8", texts),
                mapped("targets.bin", "<i8", texts),
            )
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{folder} is not a complete set of regions ({error}); prepare it again") from error


def _padded(rows: NDArray[Any], most: int, dtype: str) -> bytes:
    padded = np.zeros((most, rows.shape[1]), dtype=dtype)
    padded[: len(rows)] = rows
    return padded.tobytes()
