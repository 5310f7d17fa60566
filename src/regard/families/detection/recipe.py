"""The recipe of task `detection`: where the images are, how they are augmented, and how training is measured."""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np
import pydantic
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn import functional

from regard.config import Config
from regard.data.images.augmentation import Augmentation
from regard.errors import ConfigError
from regard.training.recipe.base import Recipe
from regard.training.recipe.data_sections import DescribedImagesSection, ScenesSection, refuse_two_validations
from regard.training.recipe.sections import ExampleTrainingSection, Metric, ModelSection

AP = Metric("ap", higher_is_better=True)  # the mean over IoU thresholds .50 to .95
AP50 = Metric("ap50", higher_is_better=True)
AP75 = Metric("ap75", higher_is_better=True)
OWN_DRAWS = 6  # random numbers of an image, before those of its colours
LEAST_SIDE = 2.0  # pixels of a box that still counts


class RegionsSection(DescribedImagesSection):
    """[data]: where the annotated images are: COCO's JSON, a folder of Pascal VOC, or `scenes`."""

    count: NonNegativeInt = 0  # learn from this many of them, drawn by the seed; 0: all
    labels: tuple[str, ...] = ()  # names of the classes, in order; default: as in the training file
    skip_bad: bool = False  # leave out boxes without area or outside of their image, and unreadable images; name them
    scenes: ScenesSection = ScenesSection()

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.built_in and (self.valid or self.test or self.split or self.labels):
            raise ConfigError("the built-in scenes have parts and labels of their own; size them with [data.scenes]")
        refuse_two_validations(self)
        return self


class MovedImages(NamedTuple):
    """Images on their canvas after augmentation, with boxes that are still in sight; label 0 marks the others."""

    images: Float[Tensor, "B C H W"]
    boxes: Float[Tensor, "B M 4"]
    labels: Int[Tensor, "B M"]


class BoxAugmentation(Config):
    """[augmentation] of a detector's recipe. By default nothing is changed."""

    flip: float = Field(default=0.0, ge=0, le=1)  # probability of a mirror image
    flip_vertical: float = Field(default=0.0, ge=0, le=1)  # probability that top and bottom change places
    scale: tuple[PositiveFloat, PositiveFloat] = (1.0, 1.0)  # smallest and largest scale; larger ones are cropped
    stretch: float = Field(default=1.0, ge=1)  # the largest ratio of the scales in x and y
    visible: float = Field(default=0.3, ge=0, le=1)  # share of a box that must be in sight for it to count
    brightness: float = Field(default=0.0, ge=0, le=1)
    contrast: float = Field(default=0.0, ge=0, le=1)
    saturation: float = Field(default=0.0, ge=0, le=1)

    @property
    def colours(self) -> Augmentation:
        """The changes of colours alone."""
        return Augmentation(brightness=self.brightness, contrast=self.contrast, saturation=self.saturation)

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float32]:
        """The random numbers that `coloured` and `moved` need, a row for each image."""
        own = rng.random((count, OWN_DRAWS), dtype=np.float32)
        return np.concatenate([own, self.colours.draw(rng, count)], axis=1)

    def coloured(self, images: Float[Tensor, "B C H W"], draws: Float[Tensor, "B K"]) -> Float[Tensor, "B C H W"]:
        """Images of values 0 to 1 in other colours."""
        return self.colours(images, draws[:, OWN_DRAWS:]).images

    @torch.no_grad()
    def moved(
        self,
        images: Float[Tensor, "B C H W"],
        sizes: Float[Tensor, "B 2"],
        boxes: Float[Tensor, "B M 4"],
        labels: Int[Tensor, "B M"],
        draws: Float[Tensor, "B K"],
    ) -> MovedImages:
        """Images mirrored, scaled and placed at random on their canvas; what is uncovered is 0."""
        extent = sizes.flip(-1)  # width and height, as x and y
        canvas = torch.stack(
            [torch.full_like(extent[:, 0], side) for side in (images.shape[3], images.shape[2])], dim=1
        )
        low, high = self.scale
        scale = low * (high / low) ** draws[:, 2:3]
        aspect = self.stretch ** (draws[:, 3:4] - 0.5)
        scales = torch.cat([scale * aspect, scale / aspect], dim=1)
        mirrored = draws[:, :2] < torch.stack(
            [torch.full_like(draws[:, 0], chance) for chance in (self.flip, self.flip_vertical)], dim=1
        )
        sign = torch.where(mirrored, -1.0, 1.0)
        # x' = factor · x + shift in pixels: first the mirror image within the image itself, then scale and place
        factor = sign * scales
        shift = torch.where(mirrored, extent, 0.0) * scales
        if self.scale != (1.0, 1.0) or self.stretch > 1:
            shift = shift + draws[:, 4:6] * (canvas - scales * extent)
        corners = boxes.unflatten(-1, (2, 2)) * factor[:, None, None] + shift[:, None, None]
        corners = torch.stack([corners.amin(dim=2), corners.amax(dim=2)], dim=2)
        seen = torch.minimum(corners.clamp(min=0), canvas[:, None, None])
        sides, all_sides = (box[:, :, 1] - box[:, :, 0] for box in (seen, corners))
        counts = (sides.prod(-1) >= self.visible * all_sides.prod(-1)) & (sides >= LEAST_SIDE).all(-1)
        return MovedImages(
            _resampled(images, sizes, factor, shift, canvas), seen.flatten(2), torch.where(counts, labels, 0)
        )


def _resampled(
    images: Float[Tensor, "B C H W"],
    sizes: Float[Tensor, "B 2"],
    factor: Float[Tensor, "B 2"],
    shift: Float[Tensor, "B 2"],
    canvas: Float[Tensor, "B 2"],
) -> Float[Tensor, "B C H W"]:
    """Images under x' = factor · x + shift, in pixels; `affine_grid` maps from output to input, in -1 to 1."""
    step = 1 / factor
    offset = (step * canvas - 2 * step * shift) / canvas - 1
    zero = torch.zeros_like(step[:, 0])
    rows = torch.stack([step[:, 0], zero, offset[:, 0], zero, step[:, 1], offset[:, 1]], dim=1).view(-1, 2, 3)
    with torch.autocast(images.device.type, enabled=False):
        places = functional.affine_grid(rows, list(images.shape), align_corners=False)
        return functional.grid_sample(images, places, mode="bilinear", align_corners=False)


class DetectionTrainingSection(ExampleTrainingSection):
    """[training] of a detector."""

    batch: PositiveInt = 16
    metric: str = AP50.name


class DetectionRecipe(Recipe):
    """Everything the training of a detector depends on."""

    metrics: ClassVar = (AP, AP50, AP75)

    task: Literal["detection"]
    model: ModelSection = ModelSection(name="detector")
    data: RegionsSection
    augmentation: BoxAugmentation = BoxAugmentation()
    training: DetectionTrainingSection = DetectionTrainingSection()
