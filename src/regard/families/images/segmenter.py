"""The class of every pixel: any image model as the body, its maps brought to one size, summed and read.

The head is a small semantic branch of panoptic feature pyramids (Kirillov et al. 2019): each map of the body passes a
1x1 convolution and is enlarged to the finest; their sum passes a 3x3 convolution and a linear classifier of each pixel.
Presets: tiny (a tiny Swin, for two cores), swin-t, vit-s, resnet-50.
Deviations: one enlargement instead of steps of two; group norm once, after the sum.
"""

from typing import Any

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from regard.layers.example import Example, blank_images
from regard.layers.vision import BodyConfig, ImageConfig

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"image_size": 32, "body": "swin", "body_preset": "tiny", "body_values": {"window": 4}, "width": 32},
    "swin-t": {"body": "swin", "body_preset": "t"},
    "vit-s": {"body": "vit", "body_preset": "s-16"},
    "resnet-50": {"body": "resnet", "body_preset": "50"},
}


class SegmenterConfig(BodyConfig, ImageConfig):
    """The body, the classes of pixels, and the width of the head."""

    body: str = "swin"
    width: PositiveInt = 128


class Segmenter(nn.Module):
    """A body that yields feature maps, and a head that computes logits of every pixel."""

    def __init__(self, config: SegmenterConfig):
        super().__init__()
        self.config = config
        body = config.body_config()
        self.body = config.build_body()
        self.lateral = nn.ModuleList(nn.Conv2d(each, config.width, 1) for each in body.map_widths())
        self.norm = nn.GroupNorm(1, config.width)
        self.mix = nn.Conv2d(config.width, config.width, 3, padding=1)
        self.output = nn.Conv2d(config.width, config.classes, 1)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B classes H W"]:
        """Logits of the classes of every pixel."""
        maps: list[Tensor] = self.body.features(images)  # type: ignore[operator]
        summed = sum(_enlarged(side(each), maps[0].shape[2:]) for side, each in zip(self.lateral, maps, strict=True))
        mixed = functional.relu(self.mix(functional.relu(self.norm(summed))))
        return _enlarged(self.output(mixed), images.shape[2:])


def _enlarged(x: Float[Tensor, "B D h w"], size: torch.Size) -> Float[Tensor, "B D H W"]:
    return functional.interpolate(x, size=tuple(size), mode="bilinear", align_corners=False)


def _segment(model: Segmenter, rows: int, source: int, target: int) -> Tensor:
    """The loss keeps the log-probabilities of all pixels."""
    return model(blank_images(model.config, rows)).log_softmax(dim=1)


EXAMPLE = Example(_segment)
