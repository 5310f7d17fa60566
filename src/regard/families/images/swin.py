"""Swin Transformers, hierarchical and with shifted windows: V1 (Liu et al. 2021) and V2 (Liu et al. 2022).

Presets: tiny (for 28-32 pixels and two cores), small-32 (for 32 pixels); t, s, b and l (V1's, windows of 7); v2-t, v2-s
and v2-b (V2's, windows of 8 for 256 pixels). V2 differs in three things: scores are cosines, the biases come from a
small network of log-spaced distances, and the norms are at the ends of the branches. With `stem = "convolutions"` a
few small convolutions make the patches' vectors (Xiao et al. 2021).
Deviations: none known at the size a model was made for. The authors' code reads no other size; here images may have any
size. A map that windows do not divide is zero-padded, as in the authors' detector. A map no wider than a window is one
window of its size, without shift, as in the authors' code for a model made for that size. V2 still measures distances
in the windows it was trained with (the authors' `pretrained_window_sizes`), V1 uses the middle of its table. On larger
images V2 keeps the windows and shifts that it has at `image_size`, as transformers does.
transformers differs for maps that are no wider than a window only because the image is smaller than
`image_size`: its V2 pads the map to a whole window and shifts it, its V1 fails if the map is smaller.
"""

import math
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.dropout import Dropout
from regard.attention.multihead import MultiHeadAttention
from regard.attention.places import Argument, Result
from regard.config import Fraction, refuse_uneven
from regard.errors import ConfigError
from regard.layers.blocks import Activation, FeedForward, NormOrder, Residual
from regard.layers.example import IMAGES
from regard.layers.vision import (
    Grid,
    GridPositions,
    Patches,
    PatchesConfig,
    drop_rates,
    into_windows,
    out_of_windows,
    pyramid_sides,
    refuse_coarse,
    refuse_thin,
    small_weights,
    spans,
)


def offsets(window: int, device: torch.device | None = None) -> Int[Tensor, "2 T T"]:
    """Row and column of each token of a window minus those of each other token."""
    rows, columns = torch.meshgrid(*[torch.arange(window, device=device)] * 2, indexing="ij")
    places = torch.stack([rows.flatten(), columns.flatten()])
    return places[:, :, None] - places[:, None, :]


class DistanceTable(nn.Module):
    """A learned number for each head and each distance in rows and columns (Liu 2021, equation 4).

    Used as `position` of MultiHeadAttention. Windows smaller than `window` use the middle of the table.
    """

    def __init__(self, heads: int, window: int):
        super().__init__()
        self.window = window
        self.table = nn.Parameter(torch.empty((2 * window - 1) ** 2, heads))
        nn.init.normal_(self.table, std=0.02)

    def forward(self, queries: Float[Tensor, "B H T K"], keys: int) -> Float[Tensor, "1 H T T"]:
        rows, columns = offsets(math.isqrt(keys), queries.device) + self.window - 1
        entry = rows * (2 * self.window - 1) + columns
        return functional.embedding(entry, self.table).permute(2, 0, 1)[None]


class DistanceNetwork(nn.Module):
    """16 σ of a small network of the log-spaced distance, which extends to larger windows (Liu 2022, section 3.3).

    Distances are divided by the size of the window used in training, so that there they lie between -1 and 1, times 8.
    """

    def __init__(self, heads: int, trained_window: int):
        super().__init__()
        self.trained_window = trained_window
        self.hidden, self.output = nn.Linear(2, 512), nn.Linear(512, heads, bias=False)

    def forward(self, queries: Float[Tensor, "B H T K"], keys: int) -> Float[Tensor, "1 H T T"]:
        window = math.isqrt(keys)
        with torch.autocast(queries.device.type, enabled=False):  # bfloat16 has steps of 0.06 between 8 and 16
            far = torch.arange(1 - window, window, device=queries.device, dtype=self.hidden.weight.dtype)
            far = 8 * far / max(self.trained_window - 1, 1)
            far = far.sign() * torch.log2(far.abs() + 1) / math.log2(8)
            numbers = self.output(functional.relu(self.hidden(torch.cartesian_prod(far, far))))
        rows, columns = offsets(window, queries.device) + window - 1
        return 16 * numbers[rows * (2 * window - 1) + columns].permute(2, 0, 1)[None].sigmoid()


class CosineHeads(nn.Module):
    """Queries and keys of norm 1, times a learned temperature: scores are scaled cosines (Liu 2022, equation 2).

    Used as `prepare` of MultiHeadAttention for both queries and keys, so each is multiplied by the temperature's root.
    The result has the type of the heads: under autocast, norms are float32, but fused kernels need one type for all.
    """

    def __init__(self, heads: int):
        super().__init__()
        self.log_scale = nn.Parameter(torch.full((heads,), math.log(10)))

    def forward(self, heads: Float[Tensor, "B H T K"], first: int) -> Float[Tensor, "B H T K"]:
        root = torch.exp(self.log_scale.clamp(max=math.log(100)) / 2)
        return (functional.normalize(heads, dim=-1) * root[:, None, None]).to(heads.dtype)


class WindowAttention(nn.Module):
    """Multi-head attention within windows of M x M tokens; `shift` moves the windows' corners to that row and column.

    The map is zero-padded to whole windows; tokens may attend to this padding, as in the authors' code. To shift the
    windows, the map is rolled. Windows then hold tokens from opposite edges, and a mask keeps these apart.
    """

    def __init__(self, attention: MultiHeadAttention, window: int, shift: int):
        super().__init__()
        self.attention, self.window, self.shift = attention, window, shift

    def forward(self, x: Float[Tensor, "B H W D"]) -> Float[Tensor, "B H W D"]:
        grid = x.shape[1], x.shape[2]
        window, shift = self._layout(grid)
        whole = _whole(grid, window)
        x = _cut(x, window, shift)
        mask = shift_mask(whole, window, shift, x.device)
        if mask is not None:
            mask = mask.repeat(len(x) // len(mask), 1, 1, 1)
        x = out_of_windows(self.attention(x, mask=mask), whole)
        return x.roll((shift, shift), (1, 2))[:, : grid[0], : grid[1]]

    def windows(self, grid: Grid) -> tuple[Int[Tensor, "N T"], Int[Tensor, "N T"]]:
        """The index in the map of each recorded query and key, -1 for padding; see `weights_on_map`."""
        numbers = 1 + torch.arange(grid[0] * grid[1]).view(1, *grid, 1)
        cells = _cut(numbers, *self._layout(grid))[..., 0] - 1
        return cells, cells

    def _layout(self, grid: Grid) -> tuple[int, int]:
        """The window and the shift. A map no wider than a window is one window without a shift."""
        if min(grid) <= self.window:
            return min(self.window, *grid), 0
        return self.window, self.shift


def _whole(grid: Grid, window: int) -> Grid:
    return grid[0] + -grid[0] % window, grid[1] + -grid[1] % window


def _cut(x: Shaped[Tensor, "B H W D"], window: int, shift: int) -> Shaped[Tensor, "BN T D"]:
    """The map padded, rolled, and divided into windows."""
    (h, w), (rows, columns) = x.shape[1:3], _whole((x.shape[1], x.shape[2]), window)
    return into_windows(functional.pad(x, (0, 0, 0, columns - w, 0, rows - h)).roll((-shift, -shift), (1, 2)), window)


def shift_mask(
    grid: Grid, window: int, shift: int, device: torch.device | None = None
) -> Bool[Tensor, "N 1 T T"] | None:
    """The mask of each window of a map rolled by `shift`: tokens attend only to tokens from the same side."""
    if shift == 0:
        return None

    def side(length: int) -> Tensor:  # True for positions that the roll took from the other side
        return torch.arange(length, device=device) >= length - shift

    regions = 2 * side(grid[0])[:, None] + side(grid[1])[None, :].int()
    regions = into_windows(regions[None, :, :, None], window)[..., 0]
    return (regions[:, :, None] == regions[:, None, :])[:, None]


T: dict[str, Any] = {"width": 96, "depths": (2, 2, 6, 2), "heads": (3, 6, 12, 24)}
S: dict[str, Any] = {"width": 96, "depths": (2, 2, 18, 2), "heads": (3, 6, 12, 24), "drop_path": 0.3}
B: dict[str, Any] = {"width": 128, "depths": (2, 2, 18, 2), "heads": (4, 8, 16, 32), "drop_path": 0.5}
L: dict[str, Any] = {"width": 192, "depths": (2, 2, 18, 2), "heads": (6, 12, 24, 48)}
V2: dict[str, Any] = {"version": 2, "image_size": 256, "window": 8}
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "image_size": 28, "patch": 2, "width": 32, "depths": (2, 2), "heads": (2, 4), "window": 7, "drop_path": 0.0
    },
    "small-32": {"image_size": 32, "patch": 2, "width": 64, "depths": (2, 4, 2), "heads": (2, 4, 8), "window": 4},
    "t": {**T, "drop_path": 0.2},
    "s": S,
    "b": B,
    "l": L,
    "v2-t": {**T, **V2, "drop_path": 0.2},
    "v2-s": {**S, **V2},
    "v2-b": {**B, **V2},
}  # fmt: skip


class SwinConfig(PatchesConfig):
    """Sizes and choices of a Swin Transformer; the defaults are Swin-T."""

    version: Literal[1, 2] = 1
    patch: PositiveInt = 4
    width: PositiveInt = 96  # of the first stage; it doubles with every stage
    depths: tuple[PositiveInt, ...] = (2, 2, 6, 2)
    heads: tuple[PositiveInt, ...] = (3, 6, 12, 24)
    window: PositiveInt = 7
    trained_windows: tuple[NonNegativeInt, ...] | None = None  # of V2's stages when biases were trained; 0: as window
    ffn_ratio: PositiveFloat = 4.0
    activation: Activation = "gelu"
    attention_bias: bool = True  # of queries, keys (in V1) and values
    positions: bool = False  # add learned positions to the patches too
    norm_eps: PositiveFloat = 1e-5
    dropout: Fraction = 0.0
    attention_dropout: Fraction = 0.0
    drop_path: Fraction = 0.1  # of the last layer

    @model_validator(mode="after")
    def _check_stages(self) -> "SwinConfig":
        if not self.depths or len(self.depths) != len(self.heads):
            raise ConfigError(f"depths = {self.depths}: as many stages are needed as in heads = {self.heads}")
        for stage, heads in enumerate(self.heads):
            refuse_uneven(f"the width of stage {stage + 1}", self.stage_width(stage), f"heads[{stage}]", heads)
        refuse_coarse("patch", self.patch, self.image_size)
        refuse_thin(self.ffn_ratio, self.width)
        if self.trained_windows and (self.version == 1 or len(self.trained_windows) < len(self.depths)):
            raise ConfigError(f"trained_windows = {self.trained_windows}: are for V2, and must name each stage")
        return self

    def map_widths(self) -> list[int]:
        return [self.stage_width(stage) for stage in range(len(self.depths))]

    def map_sides(self) -> list[int]:
        return pyramid_sides(-(-self.image_size // self.patch), len(self.depths))

    def stage_width(self, stage: int) -> int:
        return self.width * 2**stage

    def stage_window(self, stage: int) -> int:
        """The window of a stage. V2 measures distances in windows, so its window is no larger than the trained map."""
        return min(self.window, self.stage_side(stage)) if self.version == 2 else self.window

    def stage_side(self, stage: int) -> int:
        """The side of a stage's map, for images of `image_size`."""
        return max(1, self.image_size // self.patch // 2**stage)


class SwinLayer(nn.Module):
    """Attention within windows, then a feed-forward network."""

    PLACES: ClassVar = {"input": Argument(), "after_look": Result("after_look"), "residual": Result()}

    def __init__(self, config: SwinConfig, stage: int, shifted: bool, drop_path: float):
        super().__init__()
        c, width, heads = config, config.stage_width(stage), config.heads[stage]
        window = c.stage_window(stage)
        if c.version == 1:
            attention = MultiHeadAttention(
                width, heads, bias=c.attention_bias, output_bias=True, dropout=c.attention_dropout,
                position=DistanceTable(heads, window),
            )  # fmt: skip
        else:
            shifted = shifted and c.stage_side(stage) > window
            trained = c.trained_windows[stage] if c.trained_windows else 0
            attention = MultiHeadAttention(
                width, heads, bias=c.attention_bias, key_bias=False, output_bias=True, dropout=c.attention_dropout,
                scale=1.0, prepare=CosineHeads(heads), position=DistanceNetwork(heads, trained or window),
            )  # fmt: skip
        self.look = WindowAttention(attention, window, c.window // 2 if shifted else 0)
        self.feed_forward = FeedForward(width, int(c.ffn_ratio * width), c.activation)
        order: NormOrder = "pre" if c.version == 1 else "branch"
        norm = partial(nn.LayerNorm, eps=c.norm_eps)
        self.after_look = Residual(width, c.dropout, order, norm, drop_path)
        self.after_feed_forward = Residual(width, c.dropout, order, norm, drop_path)

    def forward(self, x: Float[Tensor, "B H W D"]) -> Float[Tensor, "B H W D"]:
        return self.after_feed_forward(self.after_look(x, self.look), self.feed_forward)


class PatchMerging(nn.Module):
    """2 x 2 neighbours concatenated (4C) and projected to 2C (Liu 2021, section 3.1); V2 has its norm after that."""

    def __init__(self, width: int, version: int):
        super().__init__()
        self.version = version
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)
        self.norm = nn.LayerNorm(4 * width if version == 1 else 2 * width)

    def forward(self, x: Float[Tensor, "B H W D"]) -> Float[Tensor, "B h w D2"]:
        x = functional.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        x = torch.cat([x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)], dim=-1)
        return self.reduction(self.norm(x)) if self.version == 1 else self.norm(self.reduction(x))


class Swin(nn.Module):
    """Stages of windowed attention on ever coarser maps, a mean over the last, and a linear head."""

    def __init__(self, config: SwinConfig):
        super().__init__()
        self.config = c = config
        self.patches = Patches(c.channels, c.width, c.patch, pad=True, stem=c.stem)
        self.patch_norm = nn.LayerNorm(c.width)
        self.positions = GridPositions(c.width, c.image_size // c.patch) if c.positions else None
        self.dropout = Dropout(c.dropout)
        rates = drop_rates(c.drop_path, sum(c.depths))
        self.stages = nn.ModuleList(
            nn.Sequential(*(SwinLayer(c, stage, layer % 2 == 1, rate) for layer, rate in enumerate(rates[first:last])))
            for stage, (first, last) in enumerate(spans(c.depths))
        )
        last_stage = len(c.depths) - 1
        self.merging = nn.ModuleList(PatchMerging(c.stage_width(stage), c.version) for stage in range(last_stage))
        self.norm = nn.LayerNorm(c.stage_width(last_stage), eps=c.norm_eps)
        self.output = nn.Linear(c.stage_width(last_stage), c.classes)
        self.apply(small_weights)
        if c.version == 2:  # norms begin at zero, so that branches add nothing at first, as in the authors' code
            for name, weight in self.stages.named_parameters():
                if name.endswith(("after_look.norm.weight", "after_feed_forward.norm.weight")):
                    nn.init.zeros_(weight)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B classes"]:
        return self.output(self.norm(self._stages(images)[-1]).mean(dim=(1, 2)))

    def features(self, images: Float[Tensor, "B C H W"]) -> list[Float[Tensor, "B D h w"]]:
        """The map of each stage, finest first: a pyramid."""
        maps = self._stages(images)
        return [each.permute(0, 3, 1, 2) for each in (*maps[:-1], self.norm(maps[-1]))]

    def _stages(self, images: Float[Tensor, "B C H W"]) -> list[Float[Tensor, "B h w D"]]:
        x = self.patch_norm(self.patches(images))
        if self.positions is not None:
            x = x + self.positions((x.shape[1], x.shape[2])).view(1, *x.shape[1:])
        x, maps = self.dropout(x), []
        for number, stage in enumerate(self.stages):
            x = stage(x if number == 0 else self.merging[number - 1](x))
            maps.append(x)
        return maps


EXAMPLE = IMAGES
