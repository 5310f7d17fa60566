"""Attention inside windows of a map, shifted in every other layer, with biases by distance (Liu 2021, Liu 2022)."""

import math

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.multihead import MultiHeadAttention
from regard.layers.vision import Grid, into_windows, out_of_windows


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
