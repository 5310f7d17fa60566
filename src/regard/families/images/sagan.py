"""Self-attention generative adversarial networks (Zhang et al. 2018): a generator and the critic it learns from.

Presets: tiny (28 pixels, two cores), 28 and 32 (attention at maps of 14 and 16), 128 (the paper's, attention at 32).
Residual blocks as in Miyato et al. 2018, spectral norm in both networks, classes by conditional batch norm in the
generator and by projection in the critic. With `conditional = false` labels are ignored.
Deviations: the critic mirrors the generator, without the further block at the coarsest map that the authors' code has.
The two are trained in turns with the hinge loss (`training/losses.py`).
"""

from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from regard.attention.places import Argument, Result
from regard.errors import ConfigError
from regard.families.images.pixel_attention import NonLocal
from regard.layers.example import Example
from regard.layers.vision import ImageConfig

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"image_size": 28, "widths": (32, 16), "latent": 32, "attention_at": 14},
    "28": {"image_size": 28, "widths": (128, 64), "latent": 64, "attention_at": 14},
    "32": {"image_size": 32, "widths": (256, 128, 64), "attention_at": 16},
    "128": {"image_size": 128, "widths": (1024, 512, 256, 128, 64), "attention_at": 32},
}


class SaganConfig(ImageConfig):
    """Sizes and choices of the two networks; the defaults are for images of 32 pixels."""

    image_size: PositiveInt = 32
    classes: PositiveInt = 10
    conditional: bool = True  # each image is generated, and scored, for a class
    latent: PositiveInt = 128
    widths: tuple[PositiveInt, ...] = (256, 128, 64)  # of the generator's blocks, each of which doubles the map
    attention_at: NonNegativeInt = 16  # side of the map with self-attention, in both networks; 0: none

    @property
    def sides(self) -> list[int]:
        """The sides of the generator's maps: the first, and after each block."""
        return [self.image_size // 2 ** (len(self.widths) - number) for number in range(len(self.widths) + 1)]

    @model_validator(mode="after")
    def _check_maps(self) -> "SaganConfig":
        blocks = len(self.widths)
        if not blocks or self.image_size % 2**blocks:
            raise ConfigError(
                f"image_size = {self.image_size}: must divide by {2**blocks}, since each of the {blocks} blocks of "
                f"widths = {self.widths} doubles the map"
            )
        if self.attention_at not in (0, *self.sides[1:-1]):
            raise ConfigError(
                f"attention_at = {self.attention_at}: maps between blocks have {self.sides[1:-1]}, 0: none"
            )
        if self.attention_at and self.widths[self.sides[1:].index(self.attention_at)] < 2:
            raise ConfigError(f"widths = {self.widths}: attention needs at least 2 channels; set attention_at = 0")
        return self


class ClassNorm(nn.Module):
    """Batch norm with a gain and an offset for each class (Dumoulin et al. 2017)."""

    def __init__(self, channels: int, classes: int):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, affine=False)
        self.gain, self.offset = nn.Embedding(classes, channels), nn.Embedding(classes, channels)
        nn.init.ones_(self.gain.weight)
        nn.init.zeros_(self.offset.weight)

    def forward(self, x: Float[Tensor, "B C H W"], labels: Int[Tensor, "B"]) -> Float[Tensor, "B C H W"]:
        return self.norm(x) * self.gain(labels)[..., None, None] + self.offset(labels)[..., None, None]


class GrowingBlock(nn.Module):
    """Doubles the map: norm, ReLU, doubling, convolution, norm, ReLU, convolution, plus a doubled shortcut."""

    PLACES: ClassVar = {"input": Argument(channels_first=True), "residual": Result(channels_first=True)}

    def __init__(self, inputs: int, outputs: int, classes: int):
        super().__init__()
        self.first_norm, self.second_norm = ClassNorm(inputs, classes), ClassNorm(outputs, classes)
        self.first, self.second = _convolution(inputs, outputs, 3), _convolution(outputs, outputs, 3)
        self.around = _convolution(inputs, outputs, 1)

    def forward(self, x: Float[Tensor, "B C H W"], labels: Int[Tensor, "B"]) -> Float[Tensor, "B C2 H2 W2"]:
        y = self.first(_doubled(functional.relu(self.first_norm(x, labels))))
        y = self.second(functional.relu(self.second_norm(y, labels)))
        return y + self.around(_doubled(x))


class ShrinkingBlock(nn.Module):
    """Halves the map: ReLU (not on pixels), convolution, ReLU, convolution, plus a shortcut; then average pooling."""

    PLACES: ClassVar = {"input": Argument(channels_first=True), "residual": Result(channels_first=True)}

    def __init__(self, inputs: int, outputs: int, *, on_pixels: bool):
        super().__init__()
        self.on_pixels = on_pixels
        self.first, self.second = _convolution(inputs, outputs, 3), _convolution(outputs, outputs, 3)
        self.around = _convolution(inputs, outputs, 1)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        y = self.first(x if self.on_pixels else functional.relu(x))
        y = self.second(functional.relu(y))
        return functional.avg_pool2d(y + self.around(x), 2)


class Generator(nn.Module):
    """Generates images of values from -1 to 1 from random numbers and classes."""

    def __init__(self, config: SaganConfig):
        super().__init__()
        c, self.side, self.conditional = config, config.sides[0], config.conditional
        classes = c.classes if c.conditional else 1
        widths = (c.widths[0], *c.widths)
        self.seed = spectral_norm(nn.Linear(c.latent, widths[0] * self.side**2))
        self.blocks = nn.ModuleList(
            GrowingBlock(inputs, outputs, classes) for inputs, outputs in zip(widths, c.widths, strict=False)
        )
        self.look_after = c.sides[1:].index(c.attention_at) if c.attention_at else None
        self.look = _look(c.widths[self.look_after]) if self.look_after is not None else None
        self.norm = nn.BatchNorm2d(c.widths[-1])
        self.paint = _convolution(c.widths[-1], c.channels, 3)

    def forward(self, latent: Float[Tensor, "B Z"], labels: Int[Tensor, "B"]) -> Float[Tensor, "B C H W"]:
        labels = labels if self.conditional else torch.zeros_like(labels)
        x = self.seed(latent).unflatten(1, (-1, self.side, self.side))
        for number, block in enumerate(self.blocks):
            x = block(x, labels)
            if self.look is not None and number == self.look_after:
                x = self.look(x)
        return torch.tanh(self.paint(functional.relu(self.norm(x))))


class Critic(nn.Module):
    """Scores how real an image is, given its class; its blocks mirror the generator's."""

    def __init__(self, config: SaganConfig):
        super().__init__()
        c, widths = config, config.widths[::-1]
        self.blocks = nn.ModuleList(
            ShrinkingBlock(inputs, outputs, on_pixels=number == 0)
            for number, (inputs, outputs) in enumerate(zip((c.channels, *widths), widths, strict=False))
        )
        self.look_after = c.sides[-2::-1].index(c.attention_at) if c.attention_at else None
        self.look = _look(widths[self.look_after]) if self.look_after is not None else None
        self.judge = spectral_norm(nn.Linear(widths[-1], 1))
        self.classes = spectral_norm(nn.Embedding(c.classes, widths[-1])) if c.conditional else None

    def forward(self, images: Float[Tensor, "B C H W"], labels: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
        x = images
        for number, block in enumerate(self.blocks):
            x = block(x)
            if self.look is not None and number == self.look_after:
                x = self.look(x)
        x = functional.relu(x).sum(dim=(2, 3))
        score = self.judge(x)[:, 0]
        return score if self.classes is None else score + (self.classes(labels) * x).sum(dim=1)


class Sagan(nn.Module):
    """The two networks in one module, which is called like the generator."""

    def __init__(self, config: SaganConfig):
        super().__init__()
        self.config = config
        self.generator, self.critic = Generator(config), Critic(config)

    def forward(self, latent: Float[Tensor, "B Z"], labels: Int[Tensor, "B"]) -> Float[Tensor, "B C H W"]:
        """Images from random numbers, each of a class."""
        return self.generator(latent, labels)

    def draw(self, labels: Int[Tensor, "B"], generator: torch.Generator | None = None) -> Float[Tensor, "B Z"]:
        """Random numbers for one image per label. They are drawn on the device unless a generator is given, since a
        copy from the host would sync in every step."""
        where = labels.device if generator is None else generator.device
        numbers = torch.randn(len(labels), self.config.latent, generator=generator, device=where)
        return numbers.to(labels.device)


def _convolution(inputs: int, outputs: int, kernel: int) -> nn.Module:
    plain = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
    nn.init.xavier_uniform_(plain.weight)
    return spectral_norm(plain)


def _look(channels: int) -> NonLocal:
    """The paper's attention: narrow queries and keys, pooled keys and values, a gate that is zero at first."""
    return NonLocal(channels, match=max(1, channels // 8), inner=channels // 2, pool=2, bias=False, wrap=spectral_norm)


def _doubled(x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H2 W2"]:
    return functional.interpolate(x, scale_factor=2, mode="nearest")


def _make_and_judge(model: Sagan, rows: int, source: int, target: int) -> Float[Tensor, "B"]:
    """The generator's phase: every image is made and judged."""
    labels = torch.zeros(rows, dtype=torch.long)
    return model.critic(model(torch.zeros(rows, model.config.latent), labels), labels)


EXAMPLE = Example(_make_and_judge)
