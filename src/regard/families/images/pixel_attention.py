"""Attention between the pixels of a feature map, for use inside convolutional networks.

Attention to all pixels: the non-local block (Wang 2018) and SAGAN's (Zhang 2018). Attention to a neighbourhood, in
place of a convolution: stand-alone self-attention (Ramachandran 2019) and the local relation layer (Hu 2019).
"""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.core import Attend
from regard.attention.places import Argument, Result
from regard.errors import ConfigError
from regard.layers.vision import Grid, into_windows, out_of_windows

FAR = 1e4  # a squared distance at which attention weights vanish


class NonLocal(nn.Module):
    """x plus attention over all pixels, times a gate that is zero at first.

    Queries and keys are `match` wide, values `inner`; keys and values may be max-pooled by `pool`. With `norm` the gate
    is a norm whose gain starts at zero (Wang 2018, embedded Gaussian); without, one learned number (Zhang 2018).
    `wrap` is applied to each 1x1 convolution (spectral norm).
    """

    PLACES: ClassVar = {"input": Argument(channels_first=True), "residual": Result(channels_first=True)}

    def __init__(
        self,
        channels: int,
        *,
        match: int,
        inner: int,
        pool: int = 1,
        norm: Callable[[int], nn.Module] | None = None,
        bias: bool = True,
        wrap: Callable[[nn.Module], nn.Module] | None = None,
    ):
        super().__init__()

        def convolution(inputs: int, outputs: int) -> nn.Module:
            plain = nn.Conv2d(inputs, outputs, 1, bias=bias)
            return plain if wrap is None else wrap(plain)

        self.query, self.key = convolution(channels, match), convolution(channels, match)
        self.value, self.output = convolution(channels, inner), convolution(inner, channels)
        self.pool = nn.MaxPool2d(pool, ceil_mode=True) if pool > 1 else nn.Identity()
        self.attend = Attend()
        self.norm = norm(channels) if norm is not None else None
        self.gain = nn.Parameter(torch.zeros(())) if norm is None else None
        if self.norm is not None:
            assert isinstance(self.norm.weight, Tensor)
            nn.init.zeros_(self.norm.weight)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        q, k, v = _as_tokens(self.query(x)), *(_as_tokens(self.pool(each(x))) for each in (self.key, self.value))
        seen = self.attend(q, k, v, scale=1.0)[:, 0].transpose(1, 2).unflatten(2, x.shape[2:])
        seen = self.output(seen)
        return x + (seen * self.gain if self.norm is None else self.norm(seen))


def _as_tokens(x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B 1 T C"]:
    return x.flatten(2).transpose(1, 2)[:, None].contiguous()  # fused kernels need adjacent features


def side_by_side(*parts: Float[Tensor, "B H T _"]) -> Float[Tensor, "B H T K"]:
    """The concatenated features of each token, zero-padded to a multiple of 8, as the fused kernels of GPUs need."""
    fill = -sum(part.shape[-1] for part in parts) % 8
    return torch.cat([*parts, parts[0].new_zeros(*parts[0].shape[:-1], fill)], dim=-1)


class Neighbourhoods(NamedTuple):
    """How a map is divided for local attention: blocks of queries, each with the keys around it.

    The B x B queries of a block share the (B + R - 1)² keys within reach, so that keys and values are copied a few
    times instead of R² times. A mask restricts each query to its own R x R keys.
    """

    block: int
    window: int  # R

    @property
    def reach(self) -> int:
        return self.window // 2

    @property
    def side(self) -> int:
        """The side of the square of keys of a block."""
        return self.block + 2 * self.reach

    def blocks(self, x: Shaped[Tensor, "B H W D"]) -> Shaped[Tensor, "BN T D"]:
        """The queries of each block; the map is zero-padded to whole blocks."""
        return into_windows(functional.pad(x, (0, 0, *self._filling(x))), self.block)

    def surroundings(self, x: Shaped[Tensor, "B H W D"], value: float = 0.0) -> Shaped[Tensor, "BN Tk D"]:
        """The keys of each block; they are `value` beyond the edges of the map."""
        x = functional.pad(x, (0, 0, *self._filling(x)), value=value)
        x = self._with_margins(self._with_margins(x, 1, value), 3, value)  # [B rows side columns side D]
        return x.transpose(2, 3).flatten(3, 4).flatten(0, 2)

    def _with_margins(self, x: Shaped[Tensor, "..."], axis: int, value: float) -> Shaped[Tensor, "..."]:
        """Split an axis into blocks, each with the positions within reach before and after it.

        It uses slices, whose gradients are slices too. The gradient of `Tensor.unfold` is a scatter, many times slower.
        """
        x = x.unflatten(axis, (-1, self.block))
        others = x.shape[axis] - 1
        ends, begins = (x.narrow(axis + 1, at, self.reach) for at in (self.block - self.reach, 0))
        edge = torch.full_like(begins.narrow(axis, 0, 1), value)
        before = torch.cat([edge, ends.narrow(axis, 0, others)], dim=axis)
        after = torch.cat([begins.narrow(axis, 1, others), edge], dim=axis)
        return torch.cat([before, x, after], dim=axis + 1)

    def join(self, blocks: Float[Tensor, "BN T D"], grid: Grid) -> Float[Tensor, "B H W D"]:
        """The map of the blocks, without padding: the inverse of `blocks`."""
        h, w = grid
        return out_of_windows(blocks, (h + -h % self.block, w + -w % self.block))[:, :h, :w]

    def cells(self, grid: Grid) -> tuple[Int[Tensor, "N T"], Int[Tensor, "N Tk"]]:
        """The index in the map of each query and of each key of each block; -1 for padding."""
        numbers = 1 + torch.arange(grid[0] * grid[1]).view(1, *grid, 1)
        return self.blocks(numbers)[..., 0] - 1, self.surroundings(numbers)[..., 0] - 1

    def steps(self, device: torch.device) -> Int[Tensor, "block side"]:
        """The distance along one axis from each query of a block to each of its keys."""
        there, here = torch.arange(self.side, device=device), torch.arange(self.block, device=device)
        return there - self.reach - here[:, None]

    def near(self, device: torch.device) -> Bool[Tensor, "1 1 T Tk"]:
        """Which keys of a block are within the window of each query."""
        close = self.steps(device).abs() <= self.reach
        return (close[:, None, :, None] & close[None, :, None, :]).flatten(2).flatten(0, 1)[None, None]

    def inside(self, x: Float[Tensor, "B H W D"]) -> Bool[Tensor, "BN 1 1 Tk"]:
        """Which keys of each block are on the map."""
        there = self.surroundings(x.new_ones(1, *x.shape[1:3], 1))[:, None, None, :, 0] > 0
        return there.repeat(len(x), 1, 1, 1)

    def _filling(self, x: Tensor) -> tuple[int, int, int, int]:
        return 0, -x.shape[2] % self.block, 0, -x.shape[1] % self.block


def neighbourhoods(window: int) -> Neighbourhoods:
    """Blocks as large as the window, with about three copies of each key and value. Small windows get larger blocks,
    which fill the tiles of a GPU's kernels (64 queries, 128 keys); unfilled parts would be computed too."""
    if window % 2 == 0:
        raise ConfigError(f"a window of {window} has no middle; choose an odd one, such as {window + 1}")
    return Neighbourhoods(max(window, min(8, 12 - window)), window)


class NeighbourAttention(nn.Module):
    """What both kinds of attention to the R x R pixels around a pixel share; a stride is average pooling."""

    def __init__(self, heads: int, window: int, stride: int):
        super().__init__()
        self.heads, self.places, self.attend = heads, neighbourhoods(window), Attend()
        self.pool = nn.AvgPool2d(stride, ceil_mode=True) if stride > 1 else nn.Identity()

    def windows(self, grid: Grid) -> tuple[Int[Tensor, "N T"], Int[Tensor, "N Tk"]]:
        """Which pixel each recorded query and key is; see `weights_on_map`."""
        return self.places.cells(grid)

    def _joined(self, y: Float[Tensor, "BN heads T K"], x: Float[Tensor, "B H W D"]) -> Float[Tensor, "B C2 H2 W2"]:
        """The map of what the heads read, as large as x, pooled."""
        whole = self.places.join(y.transpose(1, 2).flatten(2), (x.shape[1], x.shape[2]))
        return self.pool(whole.permute(0, 3, 1, 2))


class LocalAttention(NeighbourAttention):
    """Each pixel attends to the R x R pixels around it: softmax(q·k + q·r) v (Ramachandran 2019, equation 3).

    Half of the features of r depend on the distance in rows, half on that in columns, so q·r is a sum of a number for a
    row and one for a column. These numbers are appended to the query, and one-hot features of the key's row and column
    select them. This avoids a bias as large as the attention weights. A stride is average pooling.
    """

    def __init__(self, inputs: int, outputs: int, heads: int, window: int, stride: int = 1):
        super().__init__(heads, window, stride)
        if outputs % (2 * heads):
            raise ConfigError(f"{outputs} channels do not split into {heads} heads of an even width; change heads")
        self.head_width = outputs // heads
        self.query, self.key, self.value = (nn.Linear(inputs, outputs, bias=False) for _ in range(3))
        self.rows = nn.Parameter(torch.randn(window, self.head_width // 2))
        self.columns = nn.Parameter(torch.randn(window, self.head_width // 2))

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        x = x.permute(0, 2, 3, 1).contiguous()
        q = self._split(self.places.blocks(self.query(x)))
        k = self._split(self.places.surroundings(self.key(x)))
        v = self._split(self.places.surroundings(self.value(x)))
        q = side_by_side(q * self.head_width**-0.5, *self._fit_of_places(q))
        k = side_by_side(k, self._standing(k).expand(*k.shape[:3], -1))
        y = self.attend(q, k, v, mask=self.places.near(x.device) & self.places.inside(x), scale=1.0)
        return self._joined(y, x)

    def _fit_of_places(self, q: Float[Tensor, "BN H T K"]) -> tuple[Tensor, Tensor]:
        """q·r for each row and for each column of a block's keys: [BN H T side] twice."""
        q = q.unflatten(2, (self.places.block, self.places.block)) * self.head_width**-0.5
        of_rows, of_columns = q.chunk(2, dim=-1)
        step = self.places.steps(q.device) + self.places.reach
        step = step.clamp(0, self.places.window - 1)  # pixels further away are masked
        rows = torch.einsum("nhyxk,ysk->nhyxs", of_rows, functional.embedding(step, self.rows))
        columns = torch.einsum("nhyxk,xsk->nhyxs", of_columns, functional.embedding(step, self.columns))
        return rows.flatten(2, 3), columns.flatten(2, 3)

    def _standing(self, k: Tensor) -> Float[Tensor, "Tk places"]:
        """One-hot features of the row and of the column of each key."""
        side = self.places.side
        one = torch.eye(side, device=k.device, dtype=k.dtype)
        return torch.cat([one.repeat_interleave(side, 0), one.repeat(side, 1)], dim=1)

    def _split(self, x: Float[Tensor, "BN T D"]) -> Float[Tensor, "BN H T K"]:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class GeometricAttention(NeighbourAttention):
    """Appearance and geometry: softmax(-(q - k)² + g(Δ)) x, q and k one number each (Hu 2019, equations 2 to 4).

    g is a small network of the distance in rows and columns; all channels of a head share its weights. If the number of
    channels does not change, the values are x itself, without a projection. A stride is average pooling.
    """

    def __init__(self, inputs: int, outputs: int, heads: int, window: int, stride: int = 1):
        super().__init__(heads, window, stride)
        if outputs % heads:
            raise ConfigError(f"{outputs} channels do not split into {heads} heads; change heads")
        self.query, self.key = nn.Linear(inputs, heads), nn.Linear(inputs, heads)
        self.value = nn.Linear(inputs, outputs, bias=False) if inputs != outputs else nn.Identity()
        self.geometry = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, heads))

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        x = x.permute(0, 2, 3, 1).contiguous()
        query, key = self.query(x), self.key(x)
        # -(q - k)² is 2qk - k² minus q², which is the same for all keys; beyond the edges k² is FAR
        q = self.places.blocks(query).transpose(1, 2)[..., None]
        k = self.places.surroundings(key).transpose(1, 2)[..., None]
        far = self.places.surroundings(key**2, FAR).transpose(1, 2)[..., None]
        v = self.places.surroundings(self.value(x)).unflatten(2, (self.heads, -1)).transpose(1, 2)
        y = self.attend(
            side_by_side(2 * q, -torch.ones_like(q)), side_by_side(k, far), v,
            mask=self.places.near(x.device), bias=self._prior(x), scale=1.0,
        )  # fmt: skip
        return self._joined(y, x)

    def _prior(self, x: Tensor) -> Float[Tensor, "1 H T Tk"]:
        """g(Δ) of each query of a block and each of its keys."""
        steps = self.places.steps(x.device).to(x.dtype) / max(self.places.reach, 1)
        both = torch.broadcast_tensors(steps[:, None, :, None], steps[None, :, None, :])  # [block block side side]
        delta = torch.stack(both, dim=-1)
        return self.geometry(delta.flatten(2, 3).flatten(0, 1)).permute(2, 0, 1)[None]
