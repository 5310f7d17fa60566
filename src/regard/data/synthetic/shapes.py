"""The built-in images: coloured shapes on a plain background, with a segmentation mask and a caption.

A scene is a function of (seed, part, number). Its largest object comes first; the shape of that object is the label of
the image. Captions name up to four objects and relate the first two: "a large red circle above a small blue square".
The smaller objects may be named in any order, so a scene has up to six captions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from regard.data.sources import PARTS, Part
from regard.errors import UsageError

Plane = NDArray[np.float64]

MAX_OBJECTS = 4  # objects in a scene
MIN_SIZE = 16
OVERSAMPLING = 3  # every pixel is the mean of OVERSAMPLING x OVERSAMPLING points
SMALL, LARGE = (0.11, 0.15), (0.19, 0.26)  # ranges of radii, relative to the side of the image
PLACEMENT_ATTEMPTS = 50  # attempts to place an object without overlap
COLOURS = {
    "red": (214, 48, 49), "green": (39, 174, 96), "blue": (41, 98, 214), "yellow": (244, 208, 63),
    "purple": (142, 68, 173), "orange": (230, 126, 34), "cyan": (38, 198, 218), "white": (245, 245, 245),
}  # fmt: skip
BACKGROUNDS = ((24, 26, 32), (58, 54, 48), (40, 52, 60), (70, 70, 70))


def _circle(x: Plane, y: Plane) -> Plane:
    return np.hypot(x, y)


def _square(x: Plane, y: Plane) -> Plane:
    return np.maximum(abs(x), abs(y)) / 0.85


def _triangle(x: Plane, y: Plane) -> Plane:
    return np.maximum(y * 1.7, abs(x) * 1.55 - y * 0.85)


def _cross(x: Plane, y: Plane) -> Plane:
    across, along = np.maximum(abs(x), abs(y) * 3), np.maximum(abs(x) * 3, abs(y))
    return np.minimum(across, along)


def _ring(x: Plane, y: Plane) -> Plane:
    return abs(np.hypot(x, y) - 0.72) / 0.28


def _diamond(x: Plane, y: Plane) -> Plane:
    return abs(x) + abs(y)


# A point belongs to a shape of radius 1 where its function is at most 1.
SHAPES: dict[str, Callable[[Plane, Plane], Plane]] = {
    "circle": _circle, "square": _square, "triangle": _triangle, "cross": _cross, "ring": _ring, "diamond": _diamond,
}  # fmt: skip
SHAPE_NAMES = tuple(SHAPES)
EXTENT, EXTENT_POINTS = 1.5, 3001  # of the square in which the extent of a shape of radius 1 is measured


@cache
def shape_extent(shape: str) -> tuple[float, float, float, float]:
    """The box around a shape of radius 1 at the origin: left, top, right, bottom."""
    points = np.linspace(-EXTENT, EXTENT, EXTENT_POINTS)
    inside = SHAPES[shape](points[None, :], points[:, None]) <= 1
    (across,), (along,) = (np.nonzero(inside.any(axis=axis)) for axis in (0, 1))
    left, top, right, bottom = (float(points[each]) for each in (across[0], along[0], across[-1], along[-1]))
    return left, top, right, bottom


class Thing(NamedTuple):
    """One shape; position and radius relative to the side of the image, x to the right and y down."""

    shape: str
    colour: str
    x: float
    y: float
    radius: float

    @property
    def size(self) -> str:
        return "large" if self.radius >= LARGE[0] else "small"

    @property
    def words(self) -> str:
        return f"{self.size} {self.colour} {self.shape}"

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom relative to the side of the image, cut off at its border."""
        left, top, right, bottom = shape_extent(self.shape)
        x, y, radius = self.x, self.y, self.radius
        return (
            max(0.0, x + radius * left), max(0.0, y + radius * top),
            min(1.0, x + radius * right), min(1.0, y + radius * bottom),
        )  # fmt: skip


class Scene(NamedTuple):
    """An image [3 H W], a mask with 0 for the background and 1 + the shape's index elsewhere, and the objects.

    `owners` is a mask with 1 + the index of the object in `things`.
    """

    pixels: NDArray[np.uint8]
    mask: NDArray[np.uint8]
    things: tuple[Thing, ...]
    owners: NDArray[np.uint8] | None = None

    @property
    def image(self) -> Image.Image:
        """The pixels as an image of Pillow's, as if it were read from a file."""
        return Image.fromarray(self.pixels.transpose(1, 2, 0))

    @property
    def label(self) -> int:
        """The index in SHAPE_NAMES of the largest object's shape."""
        return SHAPE_NAMES.index(self.things[0].shape)

    @property
    def caption(self) -> str:
        """The scene in words: how the first two objects are placed, and which others there are."""
        return _caption(self.things)

    @property
    def captions(self) -> tuple[str, ...]:
        """Every true caption: the smaller objects in all orders; the first names them from left to right."""
        first, *others = self.things
        orders = permutations(sorted(others, key=lambda thing: thing.x))
        return tuple(dict.fromkeys(_caption((first, *order)) for order in orders))


def scenes(*, part: Part, count: int, seed: int, size: int = 32, most: int | None = None) -> Iterator[Scene]:
    """Draw `count` scenes of `size` x `size` pixels, of at most `most` objects; no two parts share one."""
    if size < MIN_SIZE:
        raise UsageError(f"scenes of {size} pixels are too small to tell shapes apart; use {MIN_SIZE} or more")
    for number in range(count):
        yield draw_scene(np.random.default_rng([seed, PARTS.index(part), number]), size, most)


def draw_scene(rng: np.random.Generator, size: int, most: int | None = None) -> Scene:
    """One scene; the first object is large and the others are smaller."""
    things = _things(rng)[:most]
    points = (np.arange(size * OVERSAMPLING) + 0.5) / (size * OVERSAMPLING)
    x, y = points[None, :], points[:, None]
    image = np.empty((3, size, size))
    image[:] = np.array(BACKGROUNDS[rng.integers(len(BACKGROUNDS))])[:, None, None]
    mask, owners = np.zeros((2, size, size), dtype=np.uint8)
    for number, thing in reversed([*enumerate(things, start=1)]):  # the largest is drawn last, on top
        rows, columns = _reached(thing, size)
        covered = _covered(thing, x[:, _fine(columns)], y[_fine(rows)])
        pixels = image[:, rows, columns]
        pixels += covered * (np.array(COLOURS[thing.colour])[:, None, None] - pixels)
        shown = covered >= 0.5
        mask[rows, columns][shown], owners[rows, columns][shown] = 1 + SHAPE_NAMES.index(thing.shape), number
    image += rng.normal(0, 4, image.shape)  # a little noise
    return Scene(image.round().clip(0, 255).astype(np.uint8), mask, things, owners)


def _reached(thing: Thing, size: int) -> tuple[slice, slice]:
    """The rows and columns of pixels that an object may cover."""
    left, top, right, bottom = (edge * size for edge in thing.box)
    return slice(max(0, int(top) - 1), int(bottom) + 2), slice(max(0, int(left) - 1), int(right) + 2)


def _fine(pixels: slice) -> slice:
    """The points of some pixels."""
    return slice(pixels.start * OVERSAMPLING, pixels.stop * OVERSAMPLING)


def _covered(thing: Thing, x: Plane, y: Plane) -> Plane:
    """The share of every pixel that an object covers, for the points of these pixels."""
    inside = SHAPES[thing.shape]((x - thing.x) / thing.radius, (y - thing.y) / thing.radius) <= 1
    return inside.reshape(y.size // OVERSAMPLING, OVERSAMPLING, -1, OVERSAMPLING).mean(axis=(1, 3))


def _things(rng: np.random.Generator) -> tuple[Thing, ...]:
    placed: list[Thing] = []
    for number in range(int(rng.integers(1, MAX_OBJECTS + 1))):
        low, high = LARGE if number == 0 else SMALL
        for _ in range(PLACEMENT_ATTEMPTS):
            radius = rng.uniform(low, high)
            x, y = rng.uniform(radius, 1 - radius, 2)
            if all(math.hypot(x - each.x, y - each.y) > radius + each.radius for each in placed):
                shape, colour = rng.choice(SHAPE_NAMES), rng.choice(tuple(COLOURS))
                placed.append(Thing(str(shape), str(colour), float(x), float(y), float(radius)))
                break
    return tuple(placed)


def _caption(things: Sequence[Thing]) -> str:
    first, *others = (f"a {thing.words}" for thing in things)
    if not others:
        return first
    return " and ".join([f"{first} {_relation(*things[:2])} {others[0]}", *others[1:]])


def _relation(first: Thing, second: Thing) -> str:
    right, down = first.x - second.x, first.y - second.y
    if abs(right) > abs(down):
        return "right of" if right > 0 else "left of"
    return "below" if down > 0 else "above"
