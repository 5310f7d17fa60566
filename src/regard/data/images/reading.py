"""Reading image files safely, and preprocessing images for a model.

`Preprocessing` is written as `preprocessor_config.json` with Hugging Face's keys, so that both libraries can read each
other's folders.
"""

from __future__ import annotations

import colorsys
import io
import json
import math
import warnings
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from PIL import Image, ImageOps
from pydantic import PositiveInt
from torch import Tensor

from regard.config import Config
from regard.data.images.files import PREPROCESSING
from regard.errors import CheckpointError, DataError

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
OTHERS = {  # what files of other kinds have in their first bytes
    b"ftyphei": "an HEIC image", b"ftypmif1": "an HEIC image", b"ftypavi": "an AVIF image",
    b"jP  ": "a JPEG 2000 image", b"%PDF-": "a PDF", b"<svg": "an SVG drawing",
}  # fmt: skip
MOST_PIXELS = 1 << 26  # 8,192 x 8,192: larger images are refused before they are decoded
BILINEAR = int(Image.Resampling.BILINEAR)
GOLDEN = (math.sqrt(5) - 1) / 2  # hues at multiples of the golden ratio stay distinct, however many there are
MODES = {1: "L", 3: "RGB"}  # Pillow's names, by channels

Pixels = NDArray[np.uint8]


def read_image(source: Path | bytes, name: str = "") -> Image.Image:
    """The image in a file or in its bytes, upright and in 8 bits: grey (L) or colour (RGB).

    Of an animation only the first frame is read, with a warning. Transparent pixels are put on white.
    """
    name = name or str(source if isinstance(source, Path) else "the file")
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise _too_large(name, f"{image.width:,} x {image.height:,} pixels")
            frames = getattr(image, "n_frames", 1)
            image.load()
            upright = _eight_bits(ImageOps.exif_transpose(image), name)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large(name, "far more pixels than an image should have") from None
    except FileNotFoundError:
        raise DataError(f"there is no file {name!r}") from None
    except IsADirectoryError:
        raise DataError(f"{name} is a folder; give the images in it") from None
    except Image.UnidentifiedImageError:
        raise _unread(source, name) from None
    except DataError:
        raise
    except Exception as error:  # decoders raise many errors for damaged files: OSError, SyntaxError, struct.error, …
        raise DataError(f"{name} is damaged or cut short ({error}); save it again") from None
    if frames > 1:
        warnings.warn(f"{name} has {frames} frames; only the first is looked at", stacklevel=2)
    return upright


def _too_large(name: str, came: str) -> DataError:
    return DataError(f"{name} has {came}; at most {MOST_PIXELS:,} are read: make it smaller")


def _unread(source: Path | bytes, name: str) -> DataError:
    """Why none of the formats was recognised."""
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        head = file.read(32)
    if not head:
        return DataError(f"{name} is empty (0 bytes); save it again")
    if (form := next((form for start, form in OTHERS.items() if start in head), None)) is not None:
        return DataError(f"{name} is {form}, which is not read; save it as PNG or JPEG")
    return DataError(f"{name} is no image; expected {', '.join(FORMATS)}")


def _eight_bits(image: Image.Image, name: str) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits of grey
        return Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
    if image.mode == "F":
        raise DataError(f"{name} has pixels that are fractions, whose white is unknown; save it with 8 or 16 bits")
    transparent = "A" in image.getbands() or "transparency" in image.info
    if image.mode in ("1", "L") and not transparent:
        return image.convert("L")
    if transparent:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image.convert("RGB")


class Preprocessing(Config):
    """Resize, crop the centre, scale to 0..1, subtract the mean and divide by the deviation of every channel."""

    size: tuple[PositiveInt, PositiveInt]  # height and width that the model reads
    resize: PositiveInt | tuple[PositiveInt, PositiveInt] | None = None  # the shorter side, or both; None: no resizing
    resample: int = BILINEAR
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def channels(self) -> int:
        return len(self.mean)

    def pixels(self, image: Image.Image) -> Pixels:
        """The image [C H W] at the size that the model reads."""
        image = image.convert(MODES[self.channels])
        height, width = self.size
        if self.resize is not None:
            image = image.resize(self._resized(image), Image.Resampling(self.resample))
        if image.size != (width, height):
            left, top = (image.width - width) // 2, (image.height - height) // 2
            image = image.crop((left, top, left + width, top + height))  # black where the image is too small
        array = np.array(image)
        return array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))

    def in_detail(self, image: Image.Image, most: int) -> Pixels:
        """The same part of an image as `pixels`, at a higher resolution for display, with sides of at most `most`."""
        times = max(1, min(most // max(self.size), min(image.size) // min(self.size)))
        if self.resize is None or times == 1:
            return self.pixels(image)
        height, width = self.size
        resize = (
            (self.resize[0] * times, self.resize[1] * times) if isinstance(self.resize, tuple) else self.resize * times
        )
        return self.replace(size=(height * times, width * times), resize=resize).pixels(image)

    def _resized(self, image: Image.Image) -> tuple[int, int]:
        """Width and height after resizing."""
        if isinstance(self.resize, tuple):
            return self.resize[1], self.resize[0]
        assert self.resize is not None
        shorter = min(image.size)
        return int(self.resize * image.width / shorter), int(self.resize * image.height / shorter)

    def normalise(self, pixels: UInt8[Tensor, "B C H W"] | Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """The model's input: bytes, or numbers from 0 to 1, normalised by channel."""
        scaled = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels
        mean, std = (_by_channel(each, pixels.device) for each in (self.mean, self.std))
        return (scaled - mean) / std

    def restored(self, images: Float[Tensor, "B C H W"]) -> UInt8[Tensor, "B C H W"]:
        """Bytes from a model's input or generated images: the inverse of `normalise`."""
        mean, std = (_by_channel(each, images.device) for each in (self.mean, self.std))
        return ((images.float() * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)

    def save(self, folder: Path) -> None:
        """Write `preprocessor_config.json`."""
        height, width = self.size
        values: dict[str, Any] = {
            "image_processor_type": "ViTImageProcessor" if isinstance(self.resize, tuple) else "CLIPImageProcessor",
            "do_resize": self.resize is not None,
            "resample": self.resample,
            "do_center_crop": not isinstance(self.resize, tuple),
            "crop_size": {"height": height, "width": width},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }
        if isinstance(self.resize, tuple):
            values["size"] = {"height": self.resize[0], "width": self.resize[1]}
        elif self.resize is not None:
            values["size"] = {"shortest_edge": self.resize}
        (folder / PREPROCESSING).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, image_size: int, channels: int) -> Self:
        """The preprocessing of a folder, even if its size is not the model's `image_size`. The default without a file:
        resize the shorter side to `image_size` and scale from 0..1 to -1..1."""
        half = (0.5,) * channels
        path = folder / PREPROCESSING
        if not path.is_file():
            return cls(size=(image_size, image_size), resize=image_size, mean=half, std=half)
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            read = cls._from_theirs(values, image_size, half)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} says no preprocessing that is understood ({error!r})") from None
        if read.channels != channels or len(read.std) != channels:
            raise CheckpointError(f"{path} is for {read.channels} channels; the model reads {channels}")
        return read

    @classmethod
    def _from_theirs(cls, values: dict[str, Any], image_size: int, half: tuple[float, ...]) -> Self:
        size, side = values.get("size", image_size), (image_size, image_size)
        resize = side if isinstance(size, int) else _side(size)
        if values.get("crop_pct") and isinstance(resize, int):  # ConvNeXt and ResNet crop the border of small images
            resize = int(resize / values["crop_pct"]) if resize < 384 else (resize, resize)
        if values.get("do_center_crop"):
            cut = values.get("crop_size", image_size)
            cut = cut if isinstance(cut, int) else _side(cut)
            side = (cut, cut) if isinstance(cut, int) else cut
        elif isinstance(resize, tuple):
            side = resize
        normalised = values.get("do_normalize", True)
        return cls(
            size=side,
            resize=resize if values.get("do_resize", True) else None,
            resample=values.get("resample", BILINEAR),
            mean=tuple(values.get("image_mean", half)) if normalised else (0.0,) * len(half),
            std=tuple(values.get("image_std", half)) if normalised else (1.0,) * len(half),
        )


@cache
def _by_channel(values: tuple[float, ...], device: torch.device) -> Float[Tensor, "C 1 1"]:
    """Cached on the device, since a copy in every step would sync. Not an inference tensor, so that training can use it
    too."""
    with torch.inference_mode(False):
        return torch.tensor(values, device=device).view(-1, 1, 1)


def _side(size: dict[str, int]) -> int | tuple[int, int]:
    return size["shortest_edge"] if "shortest_edge" in size else (size["height"], size["width"])


def png(pixels: UInt8[Tensor, "C H W"] | Pixels) -> bytes:
    """An image [C H W] as the bytes of a PNG file."""
    array = np.asarray(pixels)
    file = io.BytesIO()
    Image.fromarray(array[0] if len(array) == 1 else array.transpose(1, 2, 0)).save(file, "PNG")
    return file.getvalue()


def mask_png(mask: UInt8[np.ndarray, "H W"]) -> bytes:
    """Class indices as a PNG file; its palette shows class 0 in black and every other class in its own colour."""
    image, file = Image.fromarray(mask, "P"), io.BytesIO()
    hues = (colorsys.hsv_to_rgb(number * GOLDEN % 1, 0.75, 0.95) for number in range(255))
    image.putpalette([0, 0, 0, *(round(255 * part) for hue in hues for part in hue)])
    image.save(file, "PNG")
    return file.getvalue()


def grid(images: UInt8[Tensor, "N C H W"], columns: int) -> UInt8[Tensor, "C Y X"]:
    """Images in a grid, with white lines between them."""
    rows = -(-len(images) // columns)
    channels, height, width = images.shape[1:]
    sheet = torch.full((channels, rows * (height + 1) - 1, columns * (width + 1) - 1), 255, dtype=torch.uint8)
    for number, image in enumerate(images.cpu()):
        top, left = (number // columns) * (height + 1), (number % columns) * (width + 1)
        sheet[:, top : top + height, left : left + width] = image
    return sheet
