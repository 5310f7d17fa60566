"""Models that build on the feature maps of another: the settings and the making of that body."""

from abc import abstractmethod
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, Shaped
from pydantic import Field, PositiveInt, field_validator, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.config import Config, Examples
from regard.errors import ConfigError
from regard.families.catalog import MODELS
from regard.layers.blocks import ACTIVATIONS, Activation

Grid = tuple[int, int]  # rows and columns of a map
Stem = Literal["patches", "convolutions"]  # how pixels become vectors: one projection, or a few convolutions
FEWEST = 16  # channels of a convolution on pixels


class ImageInputConfig(Config):
    """Settings of every model that reads images: the images it was made for."""

    image_size: PositiveInt = 224  # side of the images it was made for; other sizes may be read too
    channels: PositiveInt = 3

    @property
    def examples(self) -> Examples:
        return Examples("image", f"images of {self.image_size} x {self.image_size} pixels")


class ImageConfig(ImageInputConfig):
    """Further settings of a model that knows classes of images or of their pixels."""

    classes: PositiveInt = 1000
    class_names: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_names(self) -> "ImageConfig":
        if self.class_names and len(self.class_names) != self.classes:
            raise ConfigError(f"class_names: names {len(self.class_names)} classes, but classes = {self.classes}")
        return self


def refuse_coarse(key: str, size: int, image_size: int) -> None:
    """Refuse patches, or steps between them, that are larger than the image."""
    if size > image_size:
        raise ConfigError(f"{key} = {size}: is larger than the image, image_size = {image_size}")


def refuse_thin(ffn_ratio: float, width: int) -> None:
    """Refuse a feed-forward layer without hidden features."""
    if ffn_ratio * width < 1:
        raise ConfigError(f"ffn_ratio = {ffn_ratio}: leaves no feature of width = {width}")


class BackboneConfig(ImageConfig):
    """Settings of a model that yields feature maps of an image (`features`), on which other models can build."""

    @abstractmethod
    def map_widths(self) -> list[int]:
        """The channels of each feature map, finest map first."""

    @abstractmethod
    def map_sides(self) -> list[int]:
        """The side of each feature map, for images of `image_size`, finest map first."""


def pyramid_sides(finest: int, maps: int) -> list[int]:
    """The sides of maps of which each halves the one before, rounded up."""
    sides = [finest]
    while len(sides) < maps:
        sides.append(-(-sides[-1] // 2))
    return sides


class PatchesConfig(BackboneConfig):
    """Further settings of a model that begins with patches of pixels."""

    patch: PositiveInt = 16  # pixels of a side
    width: PositiveInt = 768  # of the vector of a patch
    stem: Stem = "patches"

    @model_validator(mode="after")
    def _check_stem(self) -> "PatchesConfig":
        if self.stem == "convolutions":
            stem_convolutions(self.channels, self.width, self.patch)
        return self


class Step(nn.Module):
    """A convolution or attention over pixels, then a norm and, unless `activation` is None, an activation."""

    def __init__(self, mix: nn.Module, norm: nn.Module, *, activation: Activation | None = "relu"):
        super().__init__()
        self.mix, self.norm = mix, norm
        self.activation = None if activation is None else ACTIVATIONS[activation]

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        x = self.norm(self.mix(x))
        return x if self.activation is None else self.activation(x)


class StemConvolution(NamedTuple):
    """One 3x3 convolution of a stem."""

    inputs: int
    outputs: int
    stride: int


def stem_convolutions(channels: int, width: int, patch: int) -> list[StemConvolution]:
    """The convolutions of a stem: the first keeps the image size, the others halve it until a patch is one pixel.

    Channels double up to `width`, which they never exceed, from at least `FEWEST`.
    """
    halvings = patch.bit_length() - 1
    if patch != 2**halvings:
        raise ConfigError(
            f"patch = {patch}: a stem of convolutions halves an image until a patch is one pixel, so it must be 1, 2, "
            "4, 8, 16 or so on; change it, or set stem to 'patches'"
        )
    first = max(FEWEST, width >> halvings)
    widths = [min(width, first << halving) for halving in range(halvings)] + [width]
    return [
        StemConvolution(inputs, outputs, 2 if number else 1)
        for number, (inputs, outputs) in enumerate(pairwise([channels, *widths]))
    ]


def convolutional_stem(channels: int, width: int, patch: int) -> nn.Sequential:
    """Convolutions in place of one projection, for stabler training (Xiao 2021) with less data (Hassani 2021). Unlike
    Xiao's stem it starts with a convolution of stride 1 and uses GELU."""
    steps = (
        Step(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            activation="gelu",
        )
        for inputs, outputs, stride in stem_convolutions(channels, width, patch)
    )
    return nn.Sequential(*steps, nn.Conv2d(width, width, 1))


class Patches(nn.Module):
    """Each patch of pixels, projected to one vector: a convolution whose stride is its kernel (Dosovitskiy 2021).

    With the stem `convolutions`, a few small convolutions have the same stride in total, and patches overlap. Pixels at
    the right and bottom that do not fill a patch are cut off or, with `pad`, zero-padded to a patch.
    """

    def __init__(self, channels: int, width: int, patch: int, *, pad: bool = False, stem: Stem = "patches"):
        super().__init__()
        self.patch, self.pad = patch, pad
        self.projection = (
            nn.Conv2d(channels, width, patch, stride=patch)
            if stem == "patches"
            else convolutional_stem(channels, width, patch)
        )

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B h w D"]:
        return self.projection(self._whole(images)).permute(0, 2, 3, 1)

    def _whole(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H2 W2"]:
        """Images of whole patches; otherwise small convolutions would make another patch of the remainder."""
        height, width = images.shape[2:]
        if self.pad:
            return functional.pad(images, (0, -width % self.patch, 0, -height % self.patch))
        if min(height, width) < self.patch:
            came = f"{height} x {width}"
            raise ConfigError(f"the images are {came} pixels, smaller than one patch of {self.patch}; enlarge them")
        return images[:, :, : height - height % self.patch, : width - width % self.patch]


class GridPositions(nn.Module):
    """One learned vector for each cell of a square grid, after those of `extra` tokens outside of the grid.

    For a grid of another size the vectors are interpolated like an image (Dosovitskiy 2021, section 3.2); `antialias`
    averages them where the grid is smaller.
    """

    def __init__(self, width: int, side: int, extra: int = 0, *, antialias: bool = False):
        super().__init__()
        self.side, self.extra, self.antialias = side, extra, antialias
        self.table = nn.Parameter(torch.empty(extra + side**2, width))
        nn.init.normal_(self.table, std=0.02)

    def forward(self, grid: Grid) -> Float[Tensor, "T D"]:
        if grid == (self.side, self.side):
            return self.table
        first, cells = self.table[: self.extra], self.table[self.extra :]
        image = cells.T.unflatten(1, (self.side, self.side))[None]  # [1 D side side]
        resized = functional.interpolate(
            image, size=grid, mode="bicubic", align_corners=False, antialias=self.antialias
        )
        return torch.cat([first, resized[0].flatten(1).T])


def drop_rates(most: float, depth: int) -> list[float]:
    """The drop-path rate of each layer, from 0 in the first to `most` in the last (Huang 2016, linear decay)."""
    return [most * layer / max(depth - 1, 1) for layer in range(depth)]


def small_weights(module: nn.Module) -> None:
    """Initialise the linear layers of vision Transformers; for `nn.Module.apply`."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def spans(depths: tuple[int, ...]) -> list[tuple[int, int]]:
    """The index of each stage's first layer, and of the layer after its last."""
    ends = [sum(depths[:stage]) for stage in range(len(depths) + 1)]
    return list(pairwise(ends))


def into_windows(x: Shaped[Tensor, "B H W D"], window: int) -> Shaped[Tensor, "BN T D"]:
    """A map cut into windows of `window` x `window` tokens, row by row; its sides must divide by `window`."""
    b, h, w, d = x.shape
    x = x.view(b, h // window, window, w // window, window, d)
    return x.transpose(2, 3).reshape(-1, window * window, d)


def out_of_windows(windows: Float[Tensor, "BN T D"], grid: Grid) -> Float[Tensor, "B H W D"]:
    """The map of windows: the inverse of `into_windows`."""
    window = int(windows.shape[1] ** 0.5)
    h, w = grid
    x = windows.view(-1, h // window, w // window, window, window, windows.shape[-1])
    return x.transpose(2, 3).reshape(-1, h, w, windows.shape[-1])


@runtime_checkable
class Windowed(Protocol):
    """A module whose attention stays within windows of a map."""

    def windows(self, grid: Grid) -> tuple[Int[Tensor, "N T"], Int[Tensor, "N Tk"]]:
        """The cell of the map of each query and key of each window, -1 for padding."""
        ...


def weights_on_map(
    weights: Float[Tensor, "BN H T Tk"], queries: Int[Tensor, "N T"], keys: Int[Tensor, "N Tk"], cells: int
) -> Float[Tensor, "B H cells cells"]:
    """Recorded attention within windows as attention between cells of the whole map, counted row by row.

    `queries` and `keys` are those of `Windowed.windows`. Attention from padding and to padding is left out.
    """
    count, (_, heads, _, _) = len(queries), weights.shape
    weights = weights.unflatten(0, (-1, count)).transpose(1, 2)  # [B H N T Tk]
    whole = weights.new_zeros(len(weights), heads, cells + 1, cells + 1)  # the last row and column take the padding
    where = queries[:, :, None] % (cells + 1), keys[:, None, :] % (cells + 1)
    whole[:, :, *torch.broadcast_tensors(*where)] = weights
    return whole[:, :, :cells, :cells]


class BodyConfig(ImageInputConfig):
    """A body by its name, preset and further values; it reads the images of the whole model."""

    body: str  # any model of the catalog that yields feature maps
    body_preset: str = ""
    body_values: dict[str, Any] = Field(default_factory=dict)

    @field_validator("body_values")
    @classmethod
    def _tuples(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Lists, as files have them, are tuples, so that a configuration equals the one it was saved from."""
        return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}

    @model_validator(mode="after")
    def _check_body(self) -> "BodyConfig":
        if not _is_backbone(self.body):
            known = ", ".join(name for name in MODELS if _is_backbone(name))
            raise ConfigError(f"body = {self.body!r}: yields no feature maps; models that do: {known}")
        presets = MODELS[self.body].presets
        if self.body_preset not in ("", *presets):
            raise ConfigError(f"body_preset = {self.body_preset!r}: is none of {self.body}: {', '.join(presets)}")
        self.body_config()
        return self

    def body_config(self) -> BackboneConfig:
        """The configuration of the body. Its own classes are not used, so it is given one."""
        entry = MODELS[self.body]
        preset = entry.presets[self.body_preset] if self.body_preset else {}
        values = {**preset, **self.body_values, "image_size": self.image_size, "channels": self.channels, "classes": 1}
        config = entry.config.parse(values, section="body_values")
        assert isinstance(config, BackboneConfig)
        return config

    def build_body(self) -> nn.Module:
        """A new body without its output layer."""
        body = MODELS[self.body].model(self.body_config())
        body.output = nn.Identity()
        return body


def _is_backbone(name: str) -> bool:
    return name in MODELS and issubclass(MODELS[name].config, BackboneConfig)
