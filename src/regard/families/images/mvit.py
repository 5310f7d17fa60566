"""Multiscale Vision Transformers: MViT (Fan et al. 2021) and its improved form MViTv2 (Li et al. 2022), for images.

Presets: tiny (for 28-32 pixels and two cores), small-32 (for 32 pixels); v1-b (MViT-B-16 for images); v2-t, v2-s, v2-b
and v2-l (Li 2022, table 1). Attention pools its queries, which makes the map coarser from stage to stage, and its keys
and values, which makes it cheap. Version 2 adds relative positions, decomposed into rows and columns; adds the pooled
queries to the output of attention; and widens the tokens in attention instead of the feed-forward.
Deviations: images only, so there is no pooling over time.
"""

from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from pydantic import PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.core import Attend
from regard.attention.places import Argument, Computed, Result
from regard.config import Fraction, refuse_uneven
from regard.errors import ConfigError
from regard.layers.blocks import DropPath, FeedForward
from regard.layers.example import IMAGES
from regard.layers.vision import (
    BackboneConfig,
    Grid,
    GridPositions,
    drop_rates,
    pyramid_sides,
    refuse_coarse,
    refuse_thin,
    small_weights,
    spans,
)

V1: dict[str, Any] = {
    "positions": "absolute", "residual_pooling": False, "widen": "feed_forward", "class_token": True,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "image_size": 28, "patch_kernel": 3, "patch_stride": 2, "width": 32, "heads": 1, "depths": (1, 2),
        "key_stride": 2, "drop_path": 0.0,
    },
    "small-32": {
        "image_size": 32, "patch_kernel": 3, "patch_stride": 2, "width": 64, "heads": 1, "depths": (1, 2, 5),
        "key_stride": 2,
    },
    "v1-b": {**V1, "depths": (1, 2, 11, 2)},
    "v2-t": {"depths": (1, 2, 5, 2)},
    "v2-s": {},
    "v2-b": {"depths": (2, 3, 16, 3), "drop_path": 0.3},
    "v2-l": {"depths": (2, 6, 36, 4), "width": 144, "heads": 2, "drop_path": 0.5, "widen": "feed_forward"},
}  # fmt: skip


class LayerShape(NamedTuple):
    """The widths of a layer's input, attention and output, and how it pools a map of `side` x `side`."""

    inputs: int
    inner: int
    outputs: int
    heads: int
    side: int
    query_stride: int
    key_stride: int


class MvitConfig(BackboneConfig):
    """Sizes and choices of a multiscale Transformer; the defaults are MViTv2-S."""

    patch_kernel: PositiveInt = 7  # patches overlap
    patch_stride: PositiveInt = 4
    width: PositiveInt = 96  # of the first stage; it doubles with every stage, and so do the heads
    heads: PositiveInt = 1
    # the first layer of each stage but the first pools its queries by 2
    depths: tuple[PositiveInt, ...] = (1, 2, 11, 2)
    key_stride: PositiveInt = 4  # of keys and values in the first stage; it halves with every stage
    ffn_ratio: PositiveFloat = 4.0
    class_token: bool = False
    positions: Literal["relative", "absolute"] = "relative"
    residual_pooling: bool = True  # add the pooled queries to the output of attention
    widen: Literal["attention", "feed_forward"] = "attention"  # the part of a layer that widens the tokens
    norm_eps: PositiveFloat = 1e-6
    drop_path: Fraction = 0.1  # of the last layer

    @model_validator(mode="after")
    def _check_stages(self) -> "MvitConfig":
        if not self.depths:
            raise ConfigError("depths = (): names no stage; give a number of layers for each")
        refuse_uneven("width", self.width, "heads", self.heads)
        refuse_coarse("patch_stride", self.patch_stride, self.image_size)
        finest = self.image_size // self.patch_stride
        if finest < 2 ** (len(self.depths) - 1):
            raise ConfigError(
                f"depths = {self.depths}: all stages but the first halve the map, but patches of {self.patch_stride} "
                f"pixels make one of {finest} x {finest}; take fewer stages or smaller patches"
            )
        refuse_thin(self.ffn_ratio, self.width)
        return self

    def map_widths(self) -> list[int]:
        return [self.layer(stage, depth - 1).outputs for stage, depth in enumerate(self.depths)]

    def map_sides(self) -> list[int]:
        return pyramid_sides(-(-self.image_size // self.patch_stride), len(self.depths))

    def layer(self, stage: int, number: int) -> LayerShape:
        """The shape of one layer of one stage."""
        last = len(self.depths) - 1
        first = stage > 0 and number == 0
        if self.widen == "attention":
            widths = self.width * 2 ** (stage - first), self.width * 2**stage, self.width * 2**stage
        else:
            widens = number == self.depths[stage] - 1 and stage < last
            widths = self.width * 2**stage, self.width * 2**stage, self.width * 2 ** (stage + widens)
        side = self.image_size // self.patch_stride // 2 ** max(0, stage - first)
        return LayerShape(*widths, self.heads * 2**stage, side, 2 if first else 1, max(1, self.key_stride // 2**stage))


class Pool(nn.Module):
    """One filter for each feature of a head, the same in all heads, and a norm; a class token is only normalised."""

    def __init__(self, head_width: int, stride: int, extra: int, norm_eps: float):
        super().__init__()
        self.extra = extra
        self.filter = nn.Conv2d(head_width, head_width, 3, stride, padding=1, groups=head_width, bias=False)
        self.norm = nn.LayerNorm(head_width, eps=norm_eps)

    def forward(self, heads: Float[Tensor, "B H T K"], grid: Grid) -> tuple[Float[Tensor, "B H T2 K"], Grid]:
        first, cells = heads[:, :, : self.extra], heads[:, :, self.extra :]
        maps = self.filter(cells.flatten(0, 1).transpose(1, 2).unflatten(2, grid))  # [BH K h w]
        cells = maps.flatten(2).transpose(1, 2).unflatten(0, heads.shape[:2])
        return self.norm(torch.cat([first, cells], dim=2)), (maps.shape[2], maps.shape[3])


class RelativePlaces(nn.Module):
    """q·(r of the distance in rows + r of that in columns) (Li 2022, equation 4); zero for tokens outside of the grid.

    If queries and keys have different grids, distances are counted in cells of the finer one. For maps of another size
    than `finest` the tables are interpolated.
    """

    def __init__(self, head_width: int, finest: int, extra: int):
        super().__init__()
        self.extra = extra
        self.rows = nn.Parameter(torch.empty(2 * finest - 1, head_width))
        self.columns = nn.Parameter(torch.empty(2 * finest - 1, head_width))
        for table in (self.rows, self.columns):
            nn.init.normal_(table, std=0.02)

    def forward(self, q: Float[Tensor, "B H Tq K"], of_queries: Grid, of_keys: Grid) -> Float[Tensor, "B H Tq Tk"]:
        cells = q[:, :, self.extra :].unflatten(2, of_queries)
        rows = torch.einsum("bhyxk,ysk->bhyxs", cells, _between(self.rows, of_queries[0], of_keys[0]))
        columns = torch.einsum("bhyxk,xsk->bhyxs", cells, _between(self.columns, of_queries[1], of_keys[1]))
        bias = (rows[..., :, None] + columns[..., None, :]).flatten(4).flatten(2, 3)
        return functional.pad(bias, (self.extra, 0, self.extra, 0)) if self.extra else bias


def _between(table: Float[Tensor, "R K"], queries: int, keys: int) -> Float[Tensor, "Tq Tk K"]:
    """The vector of the distance between each query and each key along one axis."""
    longest = 2 * max(queries, keys) - 1
    if longest != len(table):
        table = functional.interpolate(table.T[None], size=longest, mode="linear")[0].T
    here = torch.arange(queries, device=table.device)[:, None] * max(keys / queries, 1.0)
    there = torch.arange(keys, device=table.device) * max(queries / keys, 1.0)
    return functional.embedding((here - there + (keys - 1) * max(queries / keys, 1.0)).long(), table)


class PoolingAttention(nn.Module):
    """Multi-head attention whose queries, keys and values are pooled on the grid (Fan 2021, section 3.1)."""

    def __init__(self, config: MvitConfig, shape: LayerShape):
        super().__init__()
        c, (inputs, inner), head_width = config, shape[:2], shape.inner // shape.heads
        extra = 1 if c.class_token else 0
        self.heads, self.residual = shape.heads, c.residual_pooling
        self.query, self.key, self.value = (nn.Linear(inputs, inner) for _ in range(3))
        self.query_pool = Pool(head_width, shape.query_stride, extra, c.norm_eps)
        self.key_pool = Pool(head_width, shape.key_stride, extra, c.norm_eps)
        self.value_pool = Pool(head_width, shape.key_stride, extra, c.norm_eps)
        finest = max(shape.side // shape.query_stride, shape.side // shape.key_stride)
        self.places = RelativePlaces(head_width, finest, extra) if c.positions == "relative" else None
        self.output = nn.Linear(inner, inner)
        self.attend = Attend()

    def forward(self, x: Float[Tensor, "B T D"], grid: Grid) -> tuple[Float[Tensor, "B T2 D2"], Grid]:
        q, of_queries = self.query_pool(self._split(self.query(x)), grid)
        k, of_keys = self.key_pool(self._split(self.key(x)), grid)
        v, _ = self.value_pool(self._split(self.value(x)), grid)
        bias = None if self.places is None else self.places(q, of_queries, of_keys)
        y = self.attend(q, k, v, bias=bias)
        y = y + q if self.residual else y
        return self.output(y.transpose(1, 2).flatten(2)), of_queries

    def _split(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B H T K"]:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class MvitLayer(nn.Module):
    """Pooling attention, which may make tokens fewer and wider, then a feed-forward network.

    The shortcut around a branch that changes the width is a projection of the normalised tokens, as in the authors'
    code.
    """

    PLACES: ClassVar = {
        "input": Argument(),
        "after_attention": Computed("feed_forward_norm", read=lambda module, args, options, output: args[0]),
        "residual": Result(index=0),
    }

    def __init__(self, config: MvitConfig, shape: LayerShape, drop_path: float):
        super().__init__()
        c, (inputs, inner, outputs), stride = config, shape[:3], shape.query_stride
        self.extra = 1 if c.class_token else 0
        self.attention = PoolingAttention(c, shape)
        self.attention_norm = nn.LayerNorm(inputs, eps=c.norm_eps)
        self.around_attention = nn.Linear(inputs, inner) if inputs != inner else None
        self.pool = nn.MaxPool2d(stride + 1, stride, padding=(stride + 1) // 2) if stride > 1 else None
        self.feed_forward = FeedForward(inner, int(c.ffn_ratio * inner), "gelu", outputs=outputs)
        self.feed_forward_norm = nn.LayerNorm(inner, eps=c.norm_eps)
        self.around_feed_forward = nn.Linear(inner, outputs) if inner != outputs else None
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Float[Tensor, "B T D"], grid: Grid) -> tuple[Float[Tensor, "B T2 D2"], Grid]:
        even = self.attention_norm(x)
        seen, coarser = self.attention(even, grid)
        around = x if self.around_attention is None else self.around_attention(even)
        x = self._pooled(around, grid) + self.drop_path(seen)
        even = self.feed_forward_norm(x)
        around = x if self.around_feed_forward is None else self.around_feed_forward(even)
        return around + self.drop_path(self.feed_forward(even)), coarser

    def _pooled(self, x: Float[Tensor, "B T D"], grid: Grid) -> Float[Tensor, "B T2 D"]:
        if self.pool is None:
            return x
        cells = self.pool(x[:, self.extra :].transpose(1, 2).unflatten(2, grid))
        return torch.cat([x[:, : self.extra], cells.flatten(2).transpose(1, 2)], dim=1)


class Mvit(nn.Module):
    """Stages of pooling attention on ever coarser maps, and a linear head on the class token or the mean."""

    def __init__(self, config: MvitConfig):
        super().__init__()
        self.config = c = config
        self.extra = 1 if c.class_token else 0
        self.patches = nn.Conv2d(c.channels, c.width, c.patch_kernel, c.patch_stride, padding=c.patch_kernel // 2)
        self.class_token = nn.Parameter(torch.zeros(c.width)) if c.class_token else None
        absolute = c.positions == "absolute"
        self.positions = GridPositions(c.width, c.image_size // c.patch_stride, self.extra) if absolute else None
        rates = drop_rates(c.drop_path, sum(c.depths))
        self.stages = nn.ModuleList(
            nn.ModuleList(MvitLayer(c, c.layer(stage, n), rate) for n, rate in enumerate(rates[first:last]))
            for stage, (first, last) in enumerate(spans(c.depths))
        )
        width = c.layer(len(c.depths) - 1, c.depths[-1] - 1).outputs
        self.norm = nn.LayerNorm(width, eps=c.norm_eps)
        self.output = nn.Linear(width, c.classes)
        self.apply(small_weights)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B classes"]:
        tokens, _ = self._stages(images)[-1]
        tokens = self.norm(tokens)
        return self.output(tokens[:, 0] if self.class_token is not None else tokens.mean(dim=1))

    def features(self, images: Float[Tensor, "B C H W"]) -> list[Float[Tensor, "B D h w"]]:
        """The map of each stage, finest first: a pyramid."""
        stages = self._stages(images)
        tokens, grid = stages[-1]
        stages[-1] = self.norm(tokens), grid
        return [tokens[:, self.extra :].transpose(1, 2).unflatten(2, grid) for tokens, grid in stages]

    def _stages(self, images: Float[Tensor, "B C H W"]) -> list[tuple[Tensor, Grid]]:
        maps = self.patches(images)
        x, grid, found = maps.flatten(2).transpose(1, 2), (maps.shape[2], maps.shape[3]), []
        if self.class_token is not None:
            x = torch.cat([self.class_token.expand(len(x), 1, -1), x], dim=1)
        if self.positions is not None:
            x = x + self.positions(grid)
        for stage in self.stages:
            assert isinstance(stage, nn.ModuleList)
            for layer in stage:
                x, grid = layer(x, grid)
            found.append((x, grid))
        return found


EXAMPLE = IMAGES
