"""Image augmentation of whole batches, on the CPU or the GPU.

The random numbers come with the batch (`draw`). They are drawn on the host from (seed, epoch, index) alone, and the
augmentations are pure functions of them. A resumed run therefore sees the same images, and there is no GPU sync.

All geometric operations (flip, shift, crop, and RandAugment's) are one affine map and one resampling. RandAugment
therefore applies its geometric operations before its colour operations; the paper draws one order for both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, NonNegativeInt
from torch import Tensor
from torch.nn import functional

from regard.config import Config

Images = Float[Tensor, "B C H W"]
Draws = Float[Tensor, "B K"]
Draw = Callable[[], Tensor]  # the next random number of every image, [B]
Change = Callable[[Images, Tensor], Images]

BASE = 20  # random numbers of an image without RandAugment
PER_OPERATION = 2
MOVES = 6  # the first MOVES operations of RandAugment are geometric; operation 0 is the identity
COLOUR_STRENGTH = 0.9
ROTATION, SHEAR, TRANSLATION = math.radians(30), 0.3, 0.45
ERASED, ERASED_ASPECT = (0.02, 0.33), 3.3
CROP_ASPECT = 4 / 3


class Mixed(NamedTuple):
    """Augmented images; each keeps `share` of its own label and gets the rest from the image before it."""

    images: Images
    share: Float[Tensor, B]
    masks: Int[Tensor, "B H W"] | None = None

    def partners(self, of: Tensor) -> Tensor:
        """Labels, or other values by image, of the images that were mixed in."""
        return of.roll(1, 0)


class Augmentation(Config):
    """[augmentation] of a recipe. By default nothing is changed."""

    flip: float = Field(default=0.0, ge=0, le=1)  # probability of a mirror image
    shift: NonNegativeInt = 0  # the most pixels in each direction; uncovered pixels are black
    crop: float = Field(default=1.0, gt=0, le=1)  # smallest share of the area that is cut out and enlarged
    brightness: float = Field(default=0.0, ge=0, le=1)
    contrast: float = Field(default=0.0, ge=0, le=1)
    saturation: float = Field(default=0.0, ge=0, le=1)
    randaugment: NonNegativeInt = 0  # operations in a row (Cubuk 2020)
    magnitude: float = Field(default=0.5, ge=0, le=1)  # of RandAugment's operations
    erase: float = Field(default=0.0, ge=0, le=1)  # probability that a rectangle is painted over (Zhong 2020)
    mixup: NonNegativeFloat = 0.0  # alpha of blending with another image (Zhang 2018)
    cutmix: NonNegativeFloat = 0.0  # alpha of pasting a part of another image (Yun 2019)
    mix: float = Field(default=1.0, ge=0, le=1)  # probability that an image is mixed at all

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float32]:
        """The random numbers that `__call__` needs, a row per image: two from beta distributions, the rest uniform."""
        uniform = rng.random((count, BASE + PER_OPERATION * self.randaugment), dtype=np.float32)
        shares = [rng.beta(alpha, alpha, count) if alpha else np.ones(count) for alpha in (self.mixup, self.cutmix)]
        return np.concatenate([np.stack(shares, 1).astype(np.float32), uniform], axis=1)

    @torch.no_grad()
    def __call__(self, images: Images, draws: Draws, masks: Int[Tensor, "B H W"] | None = None) -> Mixed:
        """Augment images of values 0 to 1. Masks, one number a pixel, get the geometric operations only."""
        draw: Draw = partial(next, iter(draws.unbind(1)))
        shares = draw(), draw()
        with torch.autocast(images.device.type, enabled=False):
            where, operations = self._map(images, draw)
            if where is not None:
                images, masks = _moved(images, where), None if masks is None else _moved_mask(masks, where)
            images = self._coloured(images, draw)
            for chosen, strength in operations:
                images = _one_of(COLOURS, chosen - MOVES, images, strength)
            images = self._erased(images, draw)
            images, share = self._mixed(images, draw, shares)
        return Mixed(images, share, masks)

    def _map(self, images: Images, draw: Draw) -> tuple[Tensor | None, list[tuple[Tensor, Tensor]]]:
        """The affine maps [B 3 3] from output to input pixels, and RandAugment's operations with their strengths."""
        height, width = images.shape[2:]
        mirrored = torch.where(draw() < self.flip, -1.0, 1.0)
        right, down = ((draw() * (2 * self.shift + 1)).floor() - self.shift for _ in range(2))
        wide, high, across, along = self._window(draw)
        zero = torch.zeros_like(wide)
        where = _matrix(wide * mirrored, zero, across + 2 * right / width, zero, high, along + 2 * down / height)
        operations = []
        for _ in range(self.randaugment):
            chosen = (draw() * (MOVES + len(COLOURS))).floor().long()
            strength = torch.where(draw() < 0.5, -self.magnitude, self.magnitude)
            where = where @ _movement(chosen, strength)
            operations.append((chosen, strength))
        moving = self.flip or self.shift or self.crop < 1 or self.randaugment
        return (where if moving else None), operations

    def _window(self, draw: Draw) -> Iterator[Tensor]:
        """Width, height and centre of a random crop; a full side is 1 and the centre lies between -1 and 1."""
        area = self.crop + (1 - self.crop) * draw()
        aspect = (CROP_ASPECT if self.crop < 1 else 1.0) ** (2 * draw() - 1)
        sides = [(area * ratio).sqrt().clamp(max=1) for ratio in (aspect, 1 / aspect)]
        yield from sides
        for side in sides:
            yield (2 * draw() - 1) * (1 - side)

    def _coloured(self, images: Images, draw: Draw) -> Images:
        changes = (_brightness, self.brightness), (_contrast, self.contrast), (_saturation, self.saturation)
        for change, most in changes:
            strength = most * (2 * draw() - 1)
            images = change(images, strength / COLOUR_STRENGTH) if most else images
        return images

    def _erased(self, images: Images, draw: Draw) -> Images:
        share = ERASED[0] + (ERASED[1] - ERASED[0]) * draw()
        inside = _rectangle(images, share, ERASED_ASPECT ** (2 * draw() - 1), draw(), draw())
        chosen, paint = draw() < self.erase, draw()
        if not self.erase:
            return images
        return torch.where((inside & chosen[:, None, None])[:, None], paint[:, None, None, None], images)

    def _mixed(self, images: Images, draw: Draw, shares: tuple[Tensor, Tensor]) -> tuple[Images, Tensor]:
        one = torch.ones_like(shares[0])
        mixing, pasting, x, y = draw() < self.mix, draw() < 0.5, draw(), draw()
        if not (self.mixup or self.cutmix):
            return images, one
        pasting = (pasting | (not self.mixup)) & bool(self.cutmix)
        others = images.roll(1, 0)
        inside = _rectangle(images, torch.where(mixing, 1 - shares[1], 0.0), one, x, y)
        blended = torch.where(mixing, shares[0], one)
        weight = torch.where(pasting[:, None, None], (~inside).float(), blended[:, None, None])
        return torch.lerp(others, images, weight[:, None]), weight.mean(dim=(1, 2))


def _matrix(*rows: Tensor) -> Float[Tensor, "B 3 3"]:
    """Six numbers of each image as an affine matrix."""
    zero, one = torch.zeros_like(rows[0]), torch.ones_like(rows[0])
    return torch.stack([*rows, zero, zero, one], dim=1).view(-1, 3, 3)


def _movement(chosen: Int[Tensor, B], strength: Float[Tensor, B]) -> Float[Tensor, "B 3 3"]:
    """RandAugment's geometric operations: identity, rotation, shear and translation in both directions."""
    zero, one = torch.zeros_like(strength), torch.ones_like(strength)
    angle = torch.where(chosen == 1, ROTATION * strength, zero)
    shear = [torch.where(chosen == number, SHEAR * strength, zero) for number in (2, 3)]
    shift = [torch.where(chosen == number, 2 * TRANSLATION * strength, zero) for number in (4, 5)]
    turn = _matrix(angle.cos(), -angle.sin(), shift[0], angle.sin(), angle.cos(), shift[1])
    return turn @ _matrix(one, shear[0], zero, shear[1], one, zero)


def _moved(images: Images, where: Float[Tensor, "B 3 3"], mode: str = "bilinear") -> Images:
    places = functional.affine_grid(where[:, :2], list(images.shape), align_corners=False)
    return functional.grid_sample(images, places, mode=mode, align_corners=False)


def _moved_mask(masks: Int[Tensor, "B H W"], where: Float[Tensor, "B 3 3"]) -> Int[Tensor, "B H W"]:
    """Masks after the affine maps; pixels from outside are 0, the background."""
    return _moved(masks[:, None].float(), where, "nearest")[:, 0].to(masks.dtype)


def _rectangle(images: Images, area: Tensor, aspect: Tensor, x: Tensor, y: Tensor) -> Bool[Tensor, "B H W"]:
    """A mask of a rectangle with this share of the area and its centre at x and y, clipped at the border."""
    inside = []
    for size, centre, stretch in ((images.shape[2], y, aspect.rsqrt()), (images.shape[3], x, aspect.sqrt())):
        half = 0.5 * area.sqrt() * stretch * size
        pixels = torch.arange(size, device=images.device) + 0.5
        inside.append((pixels - (centre * size)[:, None]).abs() < half[:, None])
    return inside[0][:, :, None] & inside[1][:, None, :]


# Colour operations. A strength lies between -1 and 1; operations without an opposite use its absolute value.


def _one_of(changes: tuple[Change, ...], chosen: Int[Tensor, B], images: Images, strength: Tensor) -> Images:
    result = images
    for number, change in enumerate(changes):
        result = torch.where((chosen == number)[:, None, None, None], change(images, strength), result)
    return result


def _blend(images: Images, other: Tensor, strength: Tensor) -> Images:
    """Move images away from `other` if the strength is positive, and towards it if it is negative."""
    factor = (1 + COLOUR_STRENGTH * strength)[:, None, None, None]
    return (other + (images - other) * factor).clamp(0, 1)


def _grey(images: Images) -> Float[Tensor, "B 1 H W"]:
    if images.shape[1] != 3:
        return images.mean(dim=1, keepdim=True)
    red, green, blue = images.split(1, dim=1)
    return 0.299 * red + 0.587 * green + 0.114 * blue  # ITU-R BT.601


def _brightness(images: Images, strength: Tensor) -> Images:
    return _blend(images, torch.zeros_like(images), strength)


def _contrast(images: Images, strength: Tensor) -> Images:
    return _blend(images, _grey(images).mean(dim=(2, 3), keepdim=True), strength)


def _saturation(images: Images, strength: Tensor) -> Images:
    return _blend(images, _grey(images), strength)


def _sharpness(images: Images, strength: Tensor) -> Images:
    padded = functional.pad(images, (1, 1, 1, 1), mode="replicate")
    # Pillow's smoothing kernel: 5 in the centre, 1 around it
    smooth = (9 * functional.avg_pool2d(padded, 3, stride=1) + 4 * images) / 13
    return _blend(images, smooth, strength)


def _posterise(images: Images, strength: Tensor) -> Images:
    levels = 2 ** (8 - (4 * strength.abs()).round())[:, None, None, None]
    return ((images * 255 / 256 * levels).floor() / levels * 256 / 255).clamp(0, 1)


def _solarise(images: Images, strength: Tensor) -> Images:
    return torch.where(images > 1 - strength.abs()[:, None, None, None], 1 - images, images)


def _autocontrast(images: Images, _: Tensor) -> Images:
    low, high = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    return torch.where(high > low, (images - low) / (high - low).clamp_min(1e-6), images)


def _equalise(images: Images, _: Tensor) -> Images:
    """Replace every level by the share of darker pixels, by channel."""
    levels = (images * 255).round().long().flatten(2)
    counts = torch.zeros(*levels.shape[:2], 256, device=images.device)
    counts.scatter_add_(2, levels, torch.ones_like(levels, dtype=torch.float32))
    darker = counts.cumsum(2) - counts
    highest = darker.gather(2, levels).amax(dim=2, keepdim=True)
    equal = (darker / highest.clamp_min(1)).gather(2, levels).view_as(images)
    return torch.where(highest[..., None] > 0, equal, images)


COLOURS: tuple[Change, ...] = (
    _brightness, _contrast, _saturation, _sharpness, _posterise, _solarise, _autocontrast, _equalise,
)  # fmt: skip
