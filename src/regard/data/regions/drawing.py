"""Images with boxes and names drawn over them."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from regard.data.images.reading import GOLDEN
from regard.data.regions.coco import FoundObject


def class_colour(number: int) -> tuple[int, int, int]:
    """The colour of a class."""
    red, green, blue = colorsys.hsv_to_rgb(number * GOLDEN % 1, 0.75, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def annotated_png(image: Image.Image, objects: Sequence[FoundObject], names: Sequence[str]) -> bytes:
    """The image with the box, the class and the probability of each object, as the bytes of a PNG file."""
    drawn, file = image.convert("RGB"), io.BytesIO()
    pen = ImageDraw.Draw(drawn)
    thick = max(1, round(max(image.size) / 320))
    font = ImageFont.load_default(size=max(9, round(max(image.size) / 45)))
    for each in reversed(objects):  # the best is drawn last, on top
        colour = class_colour(list(names).index(each.label))
        pen.rectangle(each.box, outline=colour, width=thick)
        text, (x, y) = f"{each.label} {each.score:.0%}", each.box[:2]
        left, top, right, bottom = pen.textbbox((x, y), text, font=font)
        up = min(y, bottom - top + 4)  # above the box, or inside it at the top of the image
        pen.rectangle((left, top - up, right + 4, bottom - up + 2), fill=colour)
        pen.text((x + 2, y - up), text, fill=(16, 19, 26), font=font)
    drawn.save(file, "PNG")
    return file.getvalue()
