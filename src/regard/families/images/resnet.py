"""Residual networks (He et al. 2016), with attention between their stages or in place of their convolutions.

Presets: tiny and small (for 28-32 pixels: a 3x3 stem and no pooling), 18, 34 and 50 (the paper's); small-nonlocal,
small-local and small-geometric (the same with attention); 50-bit and 101-bit (Big Transfer, Kolesnikov et al. 2020:
norm and activation before each convolution as in He et al. 2016b, group norm, standardised weights). `nonlocal_after`
puts a non-local block (Wang et al. 2018) after the stages it names; `spatial` replaces every 3x3 convolution by
stand-alone self-attention (Ramachandran et al. 2019) or by local relations (LR-Net, Hu et al. 2019).
Deviations: strides are those of the later versions (in the 3x3 convolution of a bottleneck); attention in place of a
convolution keeps the network's norms around it.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.places import Argument, Result
from regard.config import refuse_even
from regard.errors import ConfigError
from regard.families.images.pixel_attention import GeometricAttention, LocalAttention, NonLocal
from regard.layers.example import IMAGES
from regard.layers.vision import BackboneConfig, Step, pyramid_sides

SMALL: dict[str, Any] = {
    "image_size": 32, "stem": "small", "block": "basic", "stem_width": 64, "widths": (64, 128, 256), "depths": (2, 2, 2)
}  # fmt: skip
BASIC: dict[str, Any] = {"block": "basic", "widths": (64, 128, 256, 512)}
BIT: dict[str, Any] = {"order": "pre", "norm": "group", "standardise": True}
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {**SMALL, "image_size": 28, "stem_width": 16, "widths": (16, 32, 64), "depths": (1, 1, 1), "heads": 4},
    "small": SMALL,
    "small-nonlocal": {**SMALL, "nonlocal_after": (2,)},
    "small-local": {**SMALL, "spatial": "local"},
    "small-geometric": {**SMALL, "spatial": "geometric"},
    "18": {**BASIC, "depths": (2, 2, 2, 2)},
    "34": {**BASIC, "depths": (3, 4, 6, 3)},
    "50": {},
    "50-bit": BIT,
    "101-bit": {**BIT, "depths": (3, 4, 23, 3)},
}


class ResnetConfig(BackboneConfig):
    """Sizes and choices of a residual network; the defaults are ResNet-50."""

    stem: Literal["large", "small"] = "large"  # 7x7 with stride 2 and pooling, or 3x3 for small images
    stem_width: PositiveInt = 64
    block: Literal["bottleneck", "basic"] = "bottleneck"
    widths: tuple[PositiveInt, ...] = (256, 512, 1024, 2048)  # of each stage; all but the first halve the map
    depths: tuple[PositiveInt, ...] = (3, 4, 6, 3)
    order: Literal["post", "pre"] = "post"  # norm and activation after each convolution, or before it
    norm: Literal["batch", "group"] = "batch"
    groups: PositiveInt = 32  # of channels, in group norm; where they do not divide the channels, fewer
    standardise: bool = False  # the weights of each convolution, before use (Qiao et al. 2019)
    spatial: Literal["convolution", "local", "geometric"] = "convolution"  # the operation over pixels in a block
    window: PositiveInt = 7  # of local attention
    heads: PositiveInt = 8  # of local attention
    nonlocal_after: tuple[int, ...] = ()  # stages, counted from 1

    @model_validator(mode="after")
    def _check_stages(self) -> "ResnetConfig":
        if not self.depths or len(self.depths) != len(self.widths):
            raise ConfigError(f"depths = {self.depths}: as many stages are needed as in widths = {self.widths}")
        if wrong := [stage for stage in self.nonlocal_after if not 1 <= stage <= len(self.depths)]:
            raise ConfigError(
                f"nonlocal_after = {self.nonlocal_after}: names stage {wrong[0]}; stages are 1 to {len(self.depths)}"
            )
        inner = 4 if self.block == "bottleneck" else 2 if self.nonlocal_after else 1
        if min(self.widths) < inner:
            raise ConfigError(f"widths = {self.widths}: each stage must be at least {inner} wide")
        return self

    @model_validator(mode="after")
    def _check_attention(self) -> "ResnetConfig":
        if self.spatial == "convolution":
            return self
        refuse_even("window", self.window)
        for stage, width in enumerate(self.widths, start=1):
            looking = width // 4 if self.block == "bottleneck" else width
            each = 2 * self.heads if self.spatial == "local" else self.heads  # local attention halves each head
            if looking % each:
                raise ConfigError(f"heads = {self.heads}: {each} must divide the {looking} channels of stage {stage}")
        return self

    @model_validator(mode="after")
    def _check_order(self) -> "ResnetConfig":
        if self.order == "post" or self.block == "basic":
            return self
        if any(width % 32 for width in self.widths):
            raise ConfigError(f"widths = {self.widths}: with order = 'pre', bottlenecks need multiples of 32")
        normed = (self.stem_width, *self.widths, *(width // 4 for width in self.widths))
        if self.norm == "group" and any(width % self.groups for width in normed):
            raise ConfigError(f"groups = {self.groups}: must divide all of {sorted(set(normed))} channels")
        return self

    def map_widths(self) -> list[int]:
        return list(self.widths)

    def map_sides(self) -> list[int]:
        stem = 4 if self.stem == "large" else 1  # its convolution and its pooling halve the side, rounded up
        return pyramid_sides(-(-self.image_size // stem), len(self.depths))


class StandardisedConv2d(nn.Conv2d):
    """A convolution whose every filter has mean 0 and variance 1 (Qiao et al. 2019)."""

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        weight = (self.weight - mean) * torch.rsqrt(variance + 1e-8)
        return functional.conv2d(x, weight, self.bias, self.stride, self.padding)


class Block(nn.Module):
    """x plus the output of the steps, with a projected shortcut if the shape changes."""

    PLACES: ClassVar = {"input": Argument(channels_first=True), "residual": Result(channels_first=True)}

    def __init__(self, steps: list[Step], shortcut: Step | None):
        super().__init__()
        self.steps, self.shortcut = nn.Sequential(*steps), shortcut

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        around = x if self.shortcut is None else self.shortcut(x)
        return functional.relu(self.steps(x) + around)


class PreBlock(nn.Module):
    """A block with pre-activation (He et al. 2016b): x plus the output of the steps on the normalised x.

    Nothing follows the sum. A projected shortcut reads the normalised x too.
    """

    PLACES: ClassVar = Block.PLACES

    def __init__(self, norm: nn.Module, steps: list[nn.Module], shortcut: nn.Module | None):
        super().__init__()
        self.norm, self.steps, self.shortcut = norm, nn.Sequential(*steps), shortcut

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        ready = functional.relu(self.norm(x))
        return self.steps(ready) + (x if self.shortcut is None else self.shortcut(ready))


class Stage(nn.Module):
    """Blocks on maps of one size, and optionally a non-local block after them."""

    def __init__(self, blocks: list[nn.Module], look: NonLocal | None):
        super().__init__()
        self.blocks, self.look = nn.Sequential(*blocks), look

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        x = self.blocks(x)
        return x if self.look is None else self.look(x)


class Resnet(nn.Module):
    """Stages of residual blocks, a mean over the last map, and a linear head."""

    def __init__(self, config: ResnetConfig):
        super().__init__()
        self.config = c = config
        large, pre = c.stem == "large", c.order == "pre"
        stem = self._convolution(c.channels, c.stem_width, 7 if large else 3, 2 if large else 1)
        self.stem = stem if pre else Step(stem, self._norm(c.stem_width))
        self.pool = _pool(pre) if large else nn.Identity()
        inputs = (c.stem_width, *c.widths)
        self.stages = nn.ModuleList(self._stage(number, inputs[number]) for number in range(len(c.depths)))
        self.norm = self._norm(c.widths[-1]) if pre else None
        self.output = nn.Linear(c.widths[-1], c.classes)
        self._initialise()

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B classes"]:
        return self.output(self.features(images)[-1].mean(dim=(2, 3)))

    def features(self, images: Float[Tensor, "B C H W"]) -> list[Float[Tensor, "B D h w"]]:
        """The map after each stage, finest first; the last with the norm that ends a network of pre-activation."""
        x, maps = self.pool(self.stem(images)), []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps if self.norm is None else [*maps[:-1], functional.relu(self.norm(x))]

    def _stage(self, number: int, inputs: int) -> Stage:
        c = self.config
        width, stride = c.widths[number], 1 if number == 0 else 2
        blocks = [self._block(inputs, width, stride, first=True)]
        blocks += [self._block(width, width, 1, first=False) for _ in range(c.depths[number] - 1)]
        look = None
        if number + 1 in c.nonlocal_after:
            look = NonLocal(width, match=width // 2, inner=width // 2, norm=self._norm)
        return Stage(blocks, look)

    def _block(self, inputs: int, width: int, stride: int, *, first: bool) -> nn.Module:
        """A block. With pre-activation, the first of a stage always projects its shortcut, as in Big Transfer."""
        pre = self.config.order == "pre"
        shortcut = None
        if inputs != width or stride > 1 or (pre and first):
            shortcut = self._convolution(inputs, width, 1, stride)
        if self.config.block == "basic":
            mixes = [(self._spatial(inputs, width, stride), width), (self._spatial(width, width, 1), width)]
        else:
            inner = width // 4
            mixes = [
                (self._convolution(inputs, inner, 1, 1), inner),
                (self._spatial(inner, inner, stride), inner),
                (self._convolution(inner, width, 1, 1), width),
            ]
        steps = [Step(mix, self._norm(outputs)) for mix, outputs in mixes[:-1]]
        last = mixes[-1][0]
        if pre:
            return PreBlock(self._norm(inputs), [*steps, last], shortcut)
        around = None if shortcut is None else Step(shortcut, self._norm(width), activation=None)
        return Block([*steps, Step(last, self._norm(width), activation=None)], around)

    def _spatial(self, inputs: int, outputs: int, stride: int) -> nn.Module:
        c = self.config
        if c.spatial == "convolution":
            return self._convolution(inputs, outputs, 3, stride)
        attention: Callable[..., nn.Module] = LocalAttention if c.spatial == "local" else GeometricAttention
        return attention(inputs, outputs, c.heads, c.window, stride)

    def _convolution(self, inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
        kind = StandardisedConv2d if self.config.standardise else nn.Conv2d
        return kind(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)

    def _norm(self, channels: int) -> nn.Module:
        if self.config.norm == "batch":
            return nn.BatchNorm2d(channels)
        return nn.GroupNorm(math.gcd(self.config.groups, channels), channels)

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _pool(pre: bool) -> nn.Module:
    """The pooling after a large stem. With pre-activation it reads negative numbers too; Big Transfer pads with 0."""
    if pre:
        return nn.Sequential(nn.ZeroPad2d(1), nn.MaxPool2d(3, stride=2))
    return nn.MaxPool2d(3, stride=2, padding=1)


EXAMPLE = IMAGES
