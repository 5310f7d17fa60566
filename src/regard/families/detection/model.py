"""Objects and their boxes: Faster R-CNN (Ren et al. 2015) on the feature maps of any image model.

A region proposal network scores anchors on every map; the best boxes are read from the maps by RoI align, classified
and refined. Maps come from a feature pyramid (Lin et al. 2017), from the one map of a plain Transformer at several
scales (Li et al. 2022), or from the body as they are.
Presets: tiny, tiny-swin and tiny-vit (for built-in scenes of 64 pixels), small and small-swin (for photographs of 320
pixels, trained from scratch: group norm, He et al. 2019), resnet-50-fpn (torchvision's), swin-t-fpn, vit-s.
Deviations from torchvision: the longer side of an image is resized to `image_size`, not the shorter; losses are means
over the sampled boxes of each image, not of a batch; a truth that overlaps no anchor is matched with none. Images are
padded to multiples of 32 pixels; to get the same answer in any batch, give images of one padded size together.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from pydantic import PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import ConfigError
from regard.families.detection.proposals import (
    Detections,
    ProposalNetwork,
    Proposals,
    ProposalSettings,
    RegionHead,
    RegionSettings,
    Truth,
)
from regard.layers.example import Example, blank_images
from regard.layers.vision import BodyConfig, ImageConfig

PyramidNorm = Literal["none", "group"]


def _convolution(inputs: int, outputs: int, kernel: int, norm: PyramidNorm) -> nn.Module:
    mix = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
    nn.init.kaiming_uniform_(mix.weight, a=1)
    nn.init.zeros_(mix.bias)  # type: ignore[arg-type]
    return mix if norm == "none" else nn.Sequential(mix, nn.GroupNorm(1, outputs))


class FeaturePyramid(nn.Module):
    """Every map of a body, with what the coarser maps know added to it (Lin et al. 2017)."""

    def __init__(self, inputs: Sequence[int], width: int, norm: PyramidNorm = "none"):
        super().__init__()
        self.lateral = nn.ModuleList(_convolution(each, width, 1, norm) for each in inputs)
        self.output = nn.ModuleList(_convolution(width, width, 3, norm) for _ in inputs)

    def forward(self, maps: Sequence[Float[Tensor, "B _ _ _"]]) -> list[Float[Tensor, "B D _ _"]]:
        sides = [lateral(each) for lateral, each in zip(self.lateral, maps, strict=True)]
        for finer in range(len(sides) - 2, -1, -1):
            size = sides[finer].shape[2], sides[finer].shape[3]
            sides[finer] = sides[finer] + functional.interpolate(sides[finer + 1], size=size, mode="nearest")
        return [output(each) for output, each in zip(self.output, sides, strict=True)]


class SimplePyramid(nn.Module):
    """The one map of a plain Transformer at several scales: 4, 2, 1 and ½ times its sides (Li et al. 2022)."""

    def __init__(self, inputs: int, width: int):
        super().__init__()
        half, quarter = max(1, inputs // 2), max(1, inputs // 4)
        self.scales = nn.ModuleList([
            nn.Sequential(
                nn.ConvTranspose2d(inputs, half, 2, stride=2), nn.GroupNorm(1, half), nn.GELU(),
                nn.ConvTranspose2d(half, quarter, 2, stride=2),
            ),
            nn.ConvTranspose2d(inputs, half, 2, stride=2),
            nn.Identity(),
            nn.MaxPool2d(2),
        ])  # fmt: skip
        widths = (quarter, half, inputs, inputs)
        self.output = nn.ModuleList(
            nn.Sequential(_convolution(each, width, 1, "group"), _convolution(width, width, 3, "group"))
            for each in widths
        )

    def forward(self, maps: Sequence[Float[Tensor, "B C _ _"]]) -> list[Float[Tensor, "B D _ _"]]:
        (only,) = maps
        return [output(scale(only)) for scale, output in zip(self.scales, self.output, strict=True)]


DIVISOR = 32  # images are padded to multiples of it
TINY: dict[str, Any] = {
    "image_size": 64,
    "classes": 6,
    "width": 64,
    "pooled": False,
    "proposals": {
        "sizes": ((12.0, 20.0), (20.0, 32.0), (32.0, 48.0)), "ratios": (1.0,), "sampled": 64,
        "train_before": 200, "train_after": 100, "before": 100, "after": 50,
    },
    "regions": {"canonical": 112.0, "width": 128, "sampled": 48, "positive": 0.5},
}  # fmt: skip
SMALL: dict[str, Any] = {
    "image_size": 320,
    "classes": 3,
    "width": 128,
    "norm": "group",
    "proposals": {
        "sizes": ((16.0,), (32.0,), (64.0,), (128.0,), (192.0,)), "train_before": 1000, "train_after": 500,
        "before": 500, "after": 300,
    },
    "regions": {"canonical": 112.0, "width": 512, "sampled": 256, "most": 100},
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        **TINY, "body": "resnet", "body_preset": "tiny",
        "body_values": {"stem": "large", "stem_width": 32, "widths": (32, 64, 128), "norm": "group"},
    },
    "tiny-swin": {
        **TINY, "body": "swin", "body_preset": "tiny",
        "body_values": {"patch": 4, "width": 48, "depths": (2, 2, 2), "heads": (2, 4, 8), "window": 4,
                        "stem": "convolutions"},
    },
    "tiny-vit": {
        **TINY, "body": "vit", "body_preset": "tiny", "body_values": {"patch": 8, "pool": "mean"},
        "pyramid": "simple",
        "proposals": {**TINY["proposals"], "sizes": ((12.0, 20.0), (16.0, 24.0), (24.0, 32.0), (32.0, 48.0))},
    },
    "small": {
        **SMALL, "body": "resnet", "body_preset": "18",
        "body_values": {"norm": "group", "widths": (48, 96, 192, 384)},
    },
    "small-swin": {
        **SMALL, "body": "swin", "body_preset": "t",
        "body_values": {"stem": "convolutions", "width": 64, "depths": (2, 2, 4, 2), "heads": (2, 4, 8, 16),
                        "window": 8, "drop_path": 0.1},
    },
    "resnet-50-fpn": {"body": "resnet", "body_preset": "50"},
    "swin-t-fpn": {"body": "swin", "body_preset": "t"},
    "vit-s": {
        "body": "vit", "body_preset": "s-16", "body_values": {"pool": "mean"}, "pyramid": "simple",
        "pooled": True,
    },
}  # fmt: skip


class DetectorConfig(BodyConfig, ImageConfig):
    """The body, what is made of its maps, and the settings of both stages; the defaults are torchvision's."""

    body: str = "resnet"
    image_size: PositiveInt = 800  # the longer side of an image
    classes: PositiveInt = 90  # of objects; the background is one more
    width: PositiveInt = 256  # of the maps of the pyramid
    pyramid: Literal["fpn", "simple", "none"] = "fpn"
    pooled: bool = True  # one more map, from every second cell of the coarsest, for anchors alone
    norm: PyramidNorm = "none"  # after the convolutions of the pyramid
    proposals: ProposalSettings = ProposalSettings()
    regions: RegionSettings = RegionSettings()

    @model_validator(mode="after")
    def _check_maps(self) -> "DetectorConfig":
        widths = self.body_config().map_widths()
        if self.pyramid == "simple" and len(widths) != 1:
            raise ConfigError(f"pyramid = 'simple': is for a body with one map; {self.body} has {len(widths)}")
        maps = (4 if self.pyramid == "simple" else len(widths)) + self.pooled
        sizes = self.proposals.sizes
        if len(sizes) != maps or len({len(each) for each in sizes}) > 1:
            raise ConfigError(
                f"proposals.sizes = {sizes}: there are {maps} maps; give each of them equally many sizes of anchors"
            )
        if self.pyramid == "none" and len(set(widths)) > 1:
            raise ConfigError(f"pyramid = 'none': the maps of {self.body} have several widths, {widths}")
        return self

    @property
    def map_width(self) -> int:
        """The width of the maps that both stages read."""
        return self.body_config().map_widths()[0] if self.pyramid == "none" else self.width


class DetectionLosses(NamedTuple):
    """The four losses of every image: does an anchor hold an object, where is it; what is a region, where is it."""

    objectness: Float[Tensor, "B"]
    anchor_boxes: Float[Tensor, "B"]
    classes: Float[Tensor, "B"]
    boxes: Float[Tensor, "B"]


class Regions(NamedTuple):
    """Both stages on a batch: proposals, a vector and class probabilities (background first) of each, and objects."""

    proposals: Proposals
    features: Float[Tensor, "B R F"]
    probabilities: Float[Tensor, "B R K"]
    detections: Detections


class Detector(nn.Module):
    """A body that yields feature maps, region proposals from them, and a head that classifies the regions."""

    def __init__(self, config: DetectorConfig):
        super().__init__()
        self.config = c = config
        self.body = c.build_body()
        self.pyramid = self._pyramid()
        self.proposals = ProposalNetwork(c.map_width, c.proposals)
        self.regions = RegionHead(c.map_width, c.classes, c.regions)

    def forward(
        self, images: Float[Tensor, "B C H W"], sizes: Float[Tensor, "B 2"] | None = None, truth: Truth | None = None
    ) -> Detections | DetectionLosses:
        """The objects in images or, given the `truth`, the losses of training.

        `sizes` are the heights and widths of the images without padding at the right and bottom.
        """
        if truth is None:
            return self.look(images, sizes).detections
        maps, strides, sizes = self._maps(images, sizes)
        scored = self.proposals(maps, strides)
        first = self.proposals.losses(scored, truth)
        sampled = self.regions.sampled(self.proposals.proposals(scored, sizes), truth)
        features = self.regions.features(*self._read(maps, strides), sampled.boxes)
        return DetectionLosses(*first, *self.regions.losses(features, sampled))

    def look(self, images: Float[Tensor, "B C H W"], sizes: Float[Tensor, "B 2"] | None = None) -> Regions:
        """The objects in images, with all that led to them."""
        maps, strides, sizes = self._maps(images, sizes)
        proposals = self.proposals.proposals(self.proposals(maps, strides), sizes)
        features = self.regions.features(*self._read(maps, strides), proposals.boxes)
        detections = self.regions.detect(features, proposals, sizes)
        return Regions(proposals, features, self.regions(features)[0].softmax(dim=-1), detections)

    def _maps(
        self, images: Float[Tensor, "B C H W"], sizes: Float[Tensor, "B 2"] | None
    ) -> tuple[list[Tensor], list[int], Float[Tensor, "B 2"]]:
        """The maps of padded images, their strides, and the sizes of the images."""
        height, width = images.shape[2:]
        if sizes is None:
            sizes = torch.stack([images.new_full((len(images),), side) for side in (height, width)], dim=1)
        images = functional.pad(images, (0, -width % DIVISOR, 0, -height % DIVISOR))
        if images.is_cuda:  # convolutions are faster so, and regions are read from maps without a copy
            images = images.contiguous(memory_format=torch.channels_last)
        maps: list[Tensor] = self.pyramid(self.body.features(images))  # type: ignore[operator]
        strides = [round(images.shape[2] / each.shape[2]) for each in maps]
        if self.config.pooled:  # its cells lie two apart, also where the last of an odd number stands alone
            maps, strides = [*maps, functional.max_pool2d(maps[-1], 1, stride=2)], [*strides, 2 * strides[-1]]
        return maps, strides, sizes

    def _read(self, maps: list[Tensor], strides: list[int]) -> tuple[list[Tensor], list[int]]:
        """The maps that regions are read from: all but the one that only anchors use."""
        last = len(maps) - self.config.pooled
        return maps[:last], strides[:last]

    def _pyramid(self) -> nn.Module:
        c, widths = self.config, self.config.body_config().map_widths()
        if c.pyramid == "fpn":
            return FeaturePyramid(widths, c.width, c.norm)
        return SimplePyramid(widths[0], c.width) if c.pyramid == "simple" else nn.Identity()


def _detect(model: Detector, rows: int, source: int, target: int) -> Any:
    """Both stages without suppression and the drawing of samples, which depend on values: as many regions of no
    area are read as training draws."""
    maps, strides, _ = model._maps(blank_images(model.config, rows), None)
    scored, regions = model.proposals(maps, strides), torch.zeros(rows, model.config.regions.sampled, 4)
    return scored.logits, scored.deltas, model.regions(model.regions.features(*model._read(maps, strides), regions))


EXAMPLE = Example(_detect)
