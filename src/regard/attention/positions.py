"""Where a token stands: tables added to (or concatenated with) the embedding, and rotations of queries and keys."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

Layout = Literal["interleaved", "halves"]


def sinusoidal(length: int, width: int, layout: Layout = "interleaved") -> Float[Tensor, "T D"]:
    """PE(t, 2i) = sin(t / 10000^(2i/D)), PE(t, 2i+1) = cos of the same (Vaswani 2017, §3.5).

    `halves` holds the same columns with all sines first and all cosines after, as Marian lays them out.
    """
    t = torch.arange(length, dtype=torch.float64)[:, None]
    angle = t / 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)  # [T, ceil(D/2)]
    sines, cosines = angle.sin(), angle.cos()[:, : width // 2]
    table = torch.empty(length, width, dtype=torch.float64)
    if layout == "interleaved":
        table[:, 0::2], table[:, 1::2] = sines, cosines
    else:
        table[:, : sines.shape[1]], table[:, sines.shape[1] :] = sines, cosines
    return table.float()


class SinusoidalPositions(nn.Module):
    """The sinusoidal table, made longer whenever a longer sequence comes; holds nothing that is saved."""

    def __init__(self, width: int, layout: Layout = "interleaved", length: int = 256):
        super().__init__()
        self.width, self.layout = width, layout
        self.table: Tensor
        self.register_buffer("table", sinusoidal(length, width, layout), persistent=False)

    def forward(self, length: int, first: int = 0) -> Float[Tensor, "T D"]:
        if first + length > len(self.table):
            self.table = sinusoidal(2 * (first + length), self.width, self.layout).to(self.table)
        return self.table[first : first + length]


class LinearPositions(nn.Module):
    """a·pos + b, the simplest idea: it grows with the length, so long sequences meet values never seen in training."""

    def __init__(self, width: int):
        super().__init__()
        self.slope = nn.Parameter(torch.full((width,), 0.01))
        self.offset = nn.Parameter(torch.zeros(width))

    def forward(self, length: int, first: int = 0) -> Float[Tensor, "T D"]:
        where = torch.arange(first, first + length, device=self.slope.device, dtype=self.slope.dtype)
        return where[:, None] * self.slope + self.offset


class LearnedPositions(nn.Module):
    """One learned vector per position, up to a fixed length."""

    def __init__(self, width: int, length: int):
        super().__init__()
        self.table = nn.Parameter(torch.empty(length, width))
        nn.init.normal_(self.table, std=0.02)

    def forward(self, length: int, first: int = 0) -> Float[Tensor, "T D"]:
        if first + length > len(self.table):
            raise ValueError(
                f"position {first + length} asked for, but only {len(self.table)} were learned; "
                "raise max_length, or use sinusoidal or rotary positions"
            )
        return self.table[first : first + length]


class Added(nn.Module):
    """Positions added to the features (Vaswani 2017)."""

    def __init__(self, positions: nn.Module):
        super().__init__()
        self.positions = positions

    def forward(self, x: Float[Tensor, "B T D"], first: int = 0) -> Float[Tensor, "B T D"]:
        return x + self.positions(x.shape[1], first).to(x.dtype)


class Concatenated(nn.Module):
    """Positions appended to the features, so that content and place stay apart, and mixed back to the same width."""

    def __init__(self, positions: nn.Module, width: int):
        super().__init__()
        self.positions, self.mix = positions, nn.Linear(2 * width, width)

    def forward(self, x: Float[Tensor, "B T D"], first: int = 0) -> Float[Tensor, "B T D"]:
        where = self.positions(x.shape[1], first).to(x.dtype)
        return self.mix(torch.cat([x, where.expand_as(x)], dim=-1))


class Rotary:
    """Rotate each pair of features by an angle that grows with the position, so that q·k depends on the distance alone.

    Su 2021 (RoFormer). Pairs are (i, i + K/2), as in the Hugging Face layout. Used as `prepare` of MultiHeadAttention.
    """

    def __init__(self, head_width: int, base: float = 10000.0):
        if head_width % 2:
            raise ValueError(f"rotary positions need an even head width, got {head_width}")
        self.frequencies = base ** -(torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)

    def __call__(self, heads: Float[Tensor, "B H T K"], first: int | Tensor) -> Float[Tensor, "B H T K"]:
        where = first + torch.arange(heads.shape[2], device=heads.device, dtype=torch.float32)
        angle = where[:, None] * self.frequencies.to(heads.device)  # [T, K/2]
        cos, sin = angle.cos().to(heads.dtype), angle.sin().to(heads.dtype)
        a, b = heads.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
