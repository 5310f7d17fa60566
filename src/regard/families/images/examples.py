"""Built-in images to try a model with on the page."""

from __future__ import annotations

import base64
from functools import cache

from regard.data.images.reading import png
from regard.data.synthetic.shapes import scenes

COUNT, SIDE = 6, 256


@cache
def examples() -> list[dict[str, str]]:
    """PNG files in base64, and a caption of each."""
    drawn = scenes(part="test", count=COUNT, seed=1, size=SIDE)
    return [{"caption": scene.caption, "data": base64.b64encode(png(scene.pixels)).decode()} for scene in drawn]
