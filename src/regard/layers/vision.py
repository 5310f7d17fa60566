"""What image models share: their common settings, patches, positions on a grid, and windows of tokens.

A feature map is [B C H W] where convolutions work on it and [B H W D] where tokens do.
"""

from itertools import pairwise

import torch
from jaxtyping import Float, Int, Shaped
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.config import Config
from regard.errors import ConfigError

Grid = tuple[int, int]  # rows and columns of a map


class ImageConfig(Config):
    """What every model of images is told: the pictures it was made for, and the classes it tells apart."""

    image_size: int = Field(224, gt=0)  # side of the pictures it was made for; others may come
    channels: int = Field(3, gt=0)
    classes: int = Field(1000, gt=0)
    class_names: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_names(self) -> "ImageConfig":
        if self.class_names and len(self.class_names) != self.classes:
            raise ConfigError(f"class_names names {len(self.class_names)} classes, but classes = {self.classes}")
        return self


class Patches(nn.Module):
    """Each patch of pixels, projected to one vector: a convolution whose stride is its kernel (Dosovitskiy 2021).

    What is left at the right and at the bottom, too narrow for a patch, is cut off, or filled up with `pad`.
    """

    def __init__(self, channels: int, width: int, patch: int, *, pad: bool = False):
        super().__init__()
        self.patch, self.pad = patch, pad
        self.projection = nn.Conv2d(channels, width, patch, stride=patch)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B h w D"]:
        if self.pad:
            images = functional.pad(images, (0, -images.shape[3] % self.patch, 0, -images.shape[2] % self.patch))
        elif min(images.shape[2:]) < self.patch:
            came = " x ".join(map(str, images.shape[2:]))
            raise ConfigError(f"the pictures are {came} pixels, smaller than one patch of {self.patch}; enlarge them")
        return self.projection(images).permute(0, 2, 3, 1)


class GridPositions(nn.Module):
    """One learned vector for each cell of a square grid, after those of `extra` tokens that stand on no cell.

    For a grid of another size the vectors are interpolated, as a picture would be (Dosovitskiy 2021, section 3.2).
    """

    def __init__(self, width: int, side: int, extra: int = 0):
        super().__init__()
        self.side, self.extra = side, extra
        self.table = nn.Parameter(torch.empty(extra + side**2, width))
        nn.init.normal_(self.table, std=0.02)

    def forward(self, grid: Grid) -> Float[Tensor, "T D"]:
        if grid == (self.side, self.side):
            return self.table
        first, cells = self.table[: self.extra], self.table[self.extra :]
        picture = cells.T.unflatten(1, (self.side, self.side))[None]  # [1 D side side]
        resized = functional.interpolate(picture, size=grid, mode="bicubic", align_corners=False)
        return torch.cat([first, resized[0].flatten(1).T])


def drop_rates(most: float, depth: int) -> list[float]:
    """Drop path's rate of each layer: none at the bottom, `most` at the top (Huang 2016, linear decay)."""
    return [most * layer / max(depth - 1, 1) for layer in range(depth)]


def small_weights(module: nn.Module) -> None:
    """How the linear layers of vision Transformers begin; for `nn.Module.apply`."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def spans(depths: tuple[int, ...]) -> list[tuple[int, int]]:
    """The numbers of the first layer of each stage, and of the one after its last."""
    ends = [sum(depths[:stage]) for stage in range(len(depths) + 1)]
    return list(pairwise(ends))


def into_windows(x: Shaped[Tensor, "B H W D"], window: int) -> Shaped[Tensor, "BN T D"]:
    """A map cut into windows of `window` x `window` tokens, row by row; its sides must divide by `window`."""
    b, h, w, d = x.shape
    x = x.view(b, h // window, window, w // window, window, d)
    return x.transpose(2, 3).reshape(-1, window * window, d)


def out_of_windows(windows: Float[Tensor, "BN T D"], grid: Grid) -> Float[Tensor, "B H W D"]:
    """The map that was cut: the inverse of `into_windows`."""
    window = int(windows.shape[1] ** 0.5)
    h, w = grid
    x = windows.view(-1, h // window, w // window, window, window, windows.shape[-1])
    return x.transpose(2, 3).reshape(-1, h, w, windows.shape[-1])


def on_the_map(
    weights: Float[Tensor, "BN H T Tk"], queries: Int[Tensor, "N T"], keys: Int[Tensor, "N Tk"], cells: int
) -> Float[Tensor, "B H cells cells"]:
    """Recorded attention of windows as attention of the whole map: who looked at whom, both counted row by row.

    `queries` and `keys` say which cell of the map each token of each window is, -1 for padding; a model's `windows`
    gives them. What padding looked at is left out, and so is what was looked at in padding.
    """
    count, (_, heads, _, _) = len(queries), weights.shape
    weights = weights.unflatten(0, (-1, count)).transpose(1, 2)  # [B H N T Tk]
    whole = weights.new_zeros(len(weights), heads, cells + 1, cells + 1)  # the last row and column take the padding
    where = queries[:, :, None] % (cells + 1), keys[:, None, :] % (cells + 1)
    whole[:, :, *torch.broadcast_tensors(*where)] = weights
    return whole[:, :, :cells, :cells]
