"""Images of any shape at the size of a model: the longer side is resized, and what is missing is padding."""

from __future__ import annotations

import numpy as np
from PIL import Image

from regard.data.images.reading import MODES, Pixels

MULTIPLE = 32  # canvases have sides of so many pixels, or multiples


def fit(image: Image.Image, longest: int, channels: int) -> tuple[Pixels, tuple[float, float]]:
    """The image [C H W] whose longer side is `longest`, and its scales in x and y."""
    scale = longest / max(image.size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    resized = image.convert(MODES[channels])
    if resized.size != (width, height):
        resized = resized.resize((width, height), Image.Resampling.BILINEAR)
    array = np.array(resized)
    pixels = array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))
    return pixels, (width / image.width, height / image.height)


def canvas(height: int, width: int) -> tuple[int, int]:
    """The padded height and width of an image."""
    return height + -height % MULTIPLE, width + -width % MULTIPLE


def padded(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """The image in the top left corner of a canvas."""
    _, height, width = pixels.shape
    return np.pad(pixels, ((0, 0), (0, size[0] - height), (0, size[1] - width)))
