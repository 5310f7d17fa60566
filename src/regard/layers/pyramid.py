"""Pyramids of feature maps of one width, for models that read objects of different sizes from different maps."""

from collections.abc import Sequence
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

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
