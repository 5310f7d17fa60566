"""Boxes of photographs that are stored on their side, with an EXIF entry that says so.

Images are read upright. Most tools annotate what they show, which is upright too; others count the pixels as they are
stored. The width and height beside the boxes tell which.
"""

from __future__ import annotations

import io

from PIL import ExifTags, Image

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
