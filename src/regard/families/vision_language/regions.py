"""Images as regions, and texts about them.

Regions are found in the pixels, by a detector, or as the cells of a grid, which may have the features of a trained
image model. Texts are those of built-in scenes or of a file of captions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field, PositiveInt, model_validator
from torch import nn
from torch.nn import functional

from regard.checkpoints import load_model, save_model
from regard.checkpoints.folder import local_folder
from regard.checkpoints.models import LoadedModel
from regard.config import SavedConfig
from regard.data.captions import captioned_images
from regard.data.images.reading import Preprocessing
from regard.data.sources import PARTS, Part
from regard.data.synthetic.scene_texts import ANSWERS, Chooser, SceneText, phrases, questions
from regard.data.synthetic.shapes import SHAPE_NAMES, Scene, scenes
from regard.device import find_device
from regard.errors import ConfigError, UsageError, with_article
from regard.families.detection.pipeline import ObjectDetector, RegionSet
from regard.layers.vision import BackboneConfig, BodyConfig, ImageInputConfig
from regard.training.recipe.files import SCENES

WHOLE = (0.0, 0.0, 1.0, 1.0)
PLACES = 5  # numbers that say where a region is
SEARCHED = 64  # pixels of the longer side at which objects are searched
DIFFERENT = 48  # a channel of an object differs from the background by more than this
SAME_COLOUR = 0.95  # cosine of two differences from the background; the soft edge of an object has its direction
LEAST = 12  # pixels of the smallest object, in the image that is searched

COPY = "regions"  # the folder within a model folder that holds the model that finds its regions

Boxes = Float[np.ndarray, "R 4"]  # left, top, right, bottom, as fractions of the image


class Regions(NamedTuple):
    """The regions of an image; `classes` are probabilities, if something is known of their classes."""

    boxes: Boxes
    features: Float[np.ndarray, "R F"]
    classes: Float[np.ndarray, "R C"] | None = None


RegionReader = Callable[[Sequence[Image.Image]], list[Regions]]


class FinderConfig(SavedConfig):
    """[data.regions]: how regions are found, and what the model is given of them."""

    file_name: ClassVar[str] = "regions.json"

    finder: Literal["objects", "grid", "detector"] = "objects"
    rows: PositiveInt = 7  # of the grid
    columns: PositiveInt = 7
    most: PositiveInt = 8  # objects of an image
    detector: str = ""  # the folder of the detector that finds them; a model folder keeps a copy of it
    body: str = ""  # the folder of an image model whose features the cells of the grid get, in place of their pixels
    side: int = Field(default=8, ge=2, le=64)  # pixels of the square that a region is brought to

    @model_validator(mode="after")
    def _check_folders(self) -> Self:
        if (self.finder == "detector") != bool(self.detector):
            raise ConfigError("regions.detector = FOLDER and regions.finder = 'detector' belong together; give both")
        if self.body and self.finder != "grid":
            raise ConfigError(f"regions.body gives features to a grid; set regions.finder, {self.finder!r}, to 'grid'")
        return self

    @property
    def model(self) -> str:
        """The folder of the model that finds regions or gives them features; empty if there is none."""
        return self.detector or self.body

    def at(self, folder: str) -> Self:
        """The same with the model, if there is one, in another folder."""
        return self.replace(**{key: folder for key in ("detector", "body") if getattr(self, key)})

    @property
    def regions(self) -> int:
        """The most regions of an image, with the whole image."""
        return 1 + (self.rows * self.columns if self.finder == "grid" else self.most)

    def read(self, image: Image.Image, boxes: Boxes | None = None) -> Regions:
        """The regions of an image, or those of given boxes, with their pixels."""
        if boxes is None:
            boxes = grid_boxes(self.rows, self.columns) if self.finder == "grid" else object_boxes(image)
        boxes = np.concatenate([[WHOLE], boxes[: self.regions - 1]])
        return Regions(boxes, crops(image, boxes, self.side))


def places(boxes: Boxes) -> Float[np.ndarray, "R 5"]:
    """Where regions are: the corners of their boxes, and the share of the image that they cover."""
    size = boxes[:, 2:] - boxes[:, :2]
    return np.concatenate([boxes, size.prod(axis=1, keepdims=True)], axis=1).astype(np.float32)


def overlapping(boxes: Boxes, box: Sequence[float], least: float = 0.5) -> int | None:
    """The region, not counting the whole image, that overlaps a box most (IoU), if by `least` or more."""
    low, high = np.maximum(boxes[1:, :2], box[:2]), np.minimum(boxes[1:, 2:], box[2:])
    both = (high - low).clip(0).prod(axis=1)
    area = (boxes[1:, 2:] - boxes[1:, :2]).prod(axis=1) + (box[2] - box[0]) * (box[3] - box[1])
    shares = both / (area - both)
    return 1 + int(shares.argmax()) if len(shares) and shares.max() >= least else None


def crops(image: Image.Image, boxes: Boxes, side: int) -> Float[np.ndarray, "R F"]:
    """The pixels of every box at `side` x `side`, from -1 to 1."""
    image, scale = image.convert("RGB"), np.array([image.width, image.height] * 2)
    pixels = np.stack([
        np.asarray(image.resize((side, side), Image.Resampling.BILINEAR, box=_wide_enough(box * scale, scale)))
        for box in boxes
    ])  # fmt: skip
    return (pixels.transpose(0, 3, 1, 2).reshape(len(boxes), -1) / 127.5 - 1).astype(np.float16)


def _wide_enough(box: NDArray[np.float64], limits: NDArray[np.int64]) -> tuple[float, float, float, float]:
    """A box of at least one pixel within the image."""
    low = np.minimum(box[:2], limits[:2] - 1.0).clip(0)
    high = np.minimum(np.maximum(box[2:], low + 1.0), limits[2:])
    return float(low[0]), float(low[1]), float(high[0]), float(high[1])


def grid_boxes(rows: int, columns: int) -> Boxes:
    """The cells of a grid over the image, row by row."""
    y, x = (cell.ravel() for cell in np.mgrid[:rows, :columns])
    return np.stack([x / columns, y / rows, (x + 1) / columns, (y + 1) / rows], axis=1)


def object_boxes(image: Image.Image) -> Boxes:
    """Boxes around connected pixels of one colour other than the most frequent colour, the largest object first."""
    scale = min(1.0, SEARCHED / max(image.size))
    small = image.convert("RGB").resize([max(1, round(side * scale)) for side in image.size], Image.Resampling.BOX)
    pixels = np.asarray(small).astype(np.int64)
    rough = pixels // 16 @ np.array([256, 16, 1])
    usual = pixels[rough == np.bincount(rough.ravel()).argmax()].mean(axis=0)
    labels = connected(abs(pixels - usual).max(axis=-1) > DIFFERENT, pixels - usual)
    objects = []
    for label in np.unique(labels[labels > 0]):
        y, x = np.nonzero(labels == label)
        if len(y) >= LEAST:
            objects.append((len(y), x.min(), y.min(), x.max() + 1, y.max() + 1))
    objects.sort(key=lambda size_and_corners: -size_and_corners[0])
    corners = np.array([corners for _, *corners in objects], dtype=np.float64).reshape(-1, 4)
    return corners / np.array([small.width, small.height] * 2)


def connected(mask: Bool[np.ndarray, "H W"], colours: Float[np.ndarray, "H W C"]) -> Int[np.ndarray, "H W"]:
    """A number above 0 for every connected part of a mask, 0 elsewhere.

    Pixels are connected that touch at a side and whose colours have nearly the same direction.
    """
    unit = colours / np.linalg.norm(colours, axis=-1, keepdims=True).clip(1e-9)
    down, right = (
        np.take(mask, range(1, mask.shape[axis]), axis) & np.take(mask, range(mask.shape[axis] - 1), axis)
        & ((np.diff(unit, axis=axis) ** 2).sum(axis=-1) < 2 - 2 * SAME_COLOUR)
        for axis in (0, 1)
    )  # fmt: skip
    labels = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    while True:
        before = labels.copy()
        for linked, first, second in ((down, np.s_[:-1], np.s_[1:]), (right, np.s_[:, :-1], np.s_[:, 1:])):
            most = np.where(linked, np.maximum(labels[first], labels[second]), 0)
            labels[first] = np.maximum(labels[first], most)
            labels[second] = np.maximum(labels[second], most)
        if np.array_equal(before, labels):
            return labels


def region_reader(config: FinderConfig, home: Path = Path(), device: str = "cpu") -> RegionReader:
    """What finds the regions of images; the folder of a detector or body is relative to `home`, a model folder."""
    if not config.model:
        return lambda images: [config.read(image) for image in images]
    folder = home / local_folder(config.model)
    if config.finder == "grid":
        return CellReader(folder, config.rows, config.columns, device)
    detector = ObjectDetector.load(folder, device=device)
    return lambda images: [_with_whole(found) for found in detector.regions(images, config.most)]


def save_finder(config: FinderConfig, folder: Path) -> None:
    """Write how regions are found beside the weights of a model, with a copy of the model that is needed for it."""
    config.at(COPY).save(folder)
    if config.model:
        loaded = load_model(local_folder(config.model))
        save_model(folder / COPY, loaded.name, loaded.model, _preprocessing(loaded).save)


class CellReader:
    """Finds the cells of a grid. Their features are means of the coarsest map of an image model, each normalised.

    The model sees the whole image, stretched to a square, so that every cell is where its box says.
    """

    def __init__(self, folder: Path, rows: int, columns: int, device: str = "cpu") -> None:
        loaded = load_model(folder, find_device(device))
        self.body, self.sides, self.device = _body(loaded), (rows, columns), next(loaded.model.parameters()).device
        preprocessing = _preprocessing(loaded)
        self.preprocessing = preprocessing.replace(resize=preprocessing.size)
        self.boxes = np.concatenate([[WHOLE], grid_boxes(rows, columns)])

    @torch.inference_mode()
    def __call__(self, images: Sequence[Image.Image]) -> list[Regions]:
        pixels = torch.from_numpy(np.stack([self.preprocessing.pixels(image) for image in images]))
        maps = self.body.features(self.preprocessing.normalise(pixels.to(self.device)))  # type: ignore[operator]
        cells = functional.adaptive_avg_pool2d(maps[-1].float(), self.sides).flatten(2).transpose(1, 2)
        whole = torch.cat([cells.mean(dim=1, keepdim=True), cells], dim=1)
        features = functional.layer_norm(whole, whole.shape[-1:]).cpu().numpy().astype(np.float16)
        return [Regions(self.boxes, rows) for rows in features]


def _body(loaded: LoadedModel) -> nn.Module:
    """The part of an image model that yields feature maps."""
    if isinstance(loaded.config, BackboneConfig):
        return loaded.model
    if isinstance(loaded.config, BodyConfig):
        body = loaded.model.body
        assert isinstance(body, nn.Module)
        return body
    raise UsageError(
        f"regions.body: {loaded.folder} is {with_article(loaded.name)} model, which yields no features of images"
    )


def _preprocessing(loaded: LoadedModel) -> Preprocessing:
    assert isinstance(loaded.config, ImageInputConfig)
    return Preprocessing.load(loaded.folder, loaded.config.image_size, loaded.config.channels)


def _with_whole(found: RegionSet) -> Regions:
    """The regions of a detector after the whole image, whose features are their mean (as in Lu et al. 2019)."""
    boxes = np.concatenate([[WHOLE], found.boxes / np.array(found.size * 2)])
    features, classes = found.features, found.probabilities
    mean = features.mean(axis=0) if len(features) else np.zeros(features.shape[1])
    nothing = np.zeros((1, classes.shape[1]))
    return Regions(boxes, np.concatenate([[mean], features]).astype(np.float16), np.concatenate([nothing, classes]))


# Texts about images

TextKind = Literal["captions", "phrases", "questions"]
SIZE = 48  # pixels of a side of the scenes, where no recipe says otherwise
EACH = 3  # phrases or questions about a scene, likewise
NO_TARGET = -1  # of a caption, and of a text whose region was not found or whose answer the model does not know
AT_ONCE = 64  # images whose regions are found together


class TextAbout(NamedTuple):
    """A text about an image, and the number of the region that it means or of the answer to it."""

    text: str
    target: int = NO_TARGET
    kind: str = ""  # of phrases and questions


class Described(NamedTuple):
    """An image, its regions, and texts about it."""

    image: Image.Image
    regions: Regions
    texts: list[TextAbout]


def describe(
    path: str,
    kind: TextKind,
    find: RegionReader,
    *,
    part: Part,
    count: int,
    seed: int,
    labels: Sequence[str] = ANSWERS,
    keep_missed: bool = False,
    skipped: list[str] | None = None,
) -> Iterator[Described]:
    """The images and texts of built-in scenes or of a file of captions, as a trained model finds their regions."""
    if path == SCENES:
        return describe_scenes(
            kind, searched(find), part=part, count=count, seed=seed, labels=labels, keep_missed=keep_missed
        )
    if kind != "captions":
        raise UsageError(f"{path}: phrases and questions with known answers are only in {SCENES!r}")
    return describe_captions(path, find, skipped=skipped)


def describe_captions(path: str, find: RegionReader, *, skipped: list[str] | None = None) -> Iterator[Described]:
    """The images of a file of captions. Those that cannot be read are errors, or are named in `skipped`."""
    images = captioned_images(path, problems=[] if skipped is None else skipped, skip_bad=skipped is not None)
    while some := list(islice(images, AT_ONCE)):
        for regions, (image, _, captions) in zip(find([each.image for each in some]), some, strict=True):
            yield Described(image, regions, [TextAbout(text) for text in captions])


def describe_scenes(
    kind: TextKind,
    find: Callable[[Sequence[Scene]], list[Regions]],
    *,
    part: Part,
    count: int,
    seed: int,
    size: int = SIZE,
    each: int = EACH,
    larger_first: float | None = None,
    labels: Sequence[str] = ANSWERS,
    keep_missed: bool = False,
) -> Iterator[Described]:
    """Built-in scenes with their caption, or with `each` phrases or questions.

    `larger_first` is the share of scenes whose questions about two shapes name the larger one first; None: both orders.
    Texts whose region was not found, or whose answer is not among `labels`, are left out unless `keep_missed`.
    """
    choose = Chooser()
    drawn = enumerate(scenes(part=part, count=count, seed=seed, size=size))
    while some := list(islice(drawn, AT_ONCE)):
        for (number, scene), regions in zip(some, find([scene for _, scene in some]), strict=True):
            if kind == "captions":
                yield Described(scene.image, regions, [TextAbout(scene.caption)])
                continue
            rng = np.random.default_rng([seed, PARTS.index(part), number, 1])
            if kind == "phrases":
                options = list(phrases(scene))
                found = [overlapping(regions.boxes, thing.box) for thing in scene.things]
            else:
                first = None if larger_first is None else bool(rng.random() < larger_first)
                options = list(questions(scene, first))
                found = []

            def target(text: SceneText, found: Sequence[int | None] = found) -> int | None:
                if not isinstance(text.target, str):
                    return found[text.target]
                return labels.index(text.target) if text.target in labels else None

            if not keep_missed:
                options = [text for text in options if target(text) is not None]
            chosen = [(text, target(text)) for text in choose(options, each, rng)]
            texts = [TextAbout(text, NO_TARGET if at is None else at, kind) for (text, kind, _), at in chosen]
            yield Described(scene.image, regions, texts)


def searched(find: RegionReader) -> Callable[[Sequence[Scene]], list[Regions]]:
    """What finds the regions of scenes in their pixels."""
    return lambda some: find([scene.image for scene in some])


def true_regions(config: FinderConfig, some: Sequence[Scene]) -> list[Regions]:
    """The regions of scenes with their classes; objects are known, so they need not be searched."""
    found = []
    for scene in some:
        regions = config.read(scene.image, np.array([thing.box for thing in scene.things]))
        classes = np.zeros((len(regions.boxes), len(SHAPE_NAMES)))
        shown = range(1, len(regions.boxes))
        classes[shown, [SHAPE_NAMES.index(scene.things[number - 1].shape) for number in shown]] = 1
        found.append(regions._replace(classes=classes))
    return found
