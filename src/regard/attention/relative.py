"""Relative positions after Transformer-XL (Dai et al. 2019), as a bias of the scores."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.positions import sinusoidal


class DistanceTable(nn.Module):
    """Sinusoids of distances, from far before a query to far after it. All layers share one; it grows for longer
    sequences and is not saved with the model."""

    def __init__(self, width: int, length: int = 512):
        super().__init__()
        self.width = width
        self.outgrown: list[Tensor] = []  # kept, since captured steps go on reading them
        self.table: Tensor
        self.register_buffer("table", self._of(length), persistent=False)

    def forward(self, length: int) -> Float[Tensor, "R D"]:
        """Rows for the distances `length`, `length` - 1, ... 1 - `length` of a key before its query."""
        if 2 * length > len(self.table):
            self.outgrown.append(self.table)
            self.table = self._of(2 * length).to(self.table)
        middle = len(self.table) // 2
        return self.table[middle - length : middle + length]

    def _of(self, length: int) -> Float[Tensor, "R D"]:
        after = sinusoidal(length + 1, self.width)
        before = after[1:].flip(0)
        signs = torch.ones(self.width)
        signs[0::2] = -1.0  # sin(-x) = -sin(x), cos(-x) = cos(x)
        return torch.cat([before, after[:length] * signs])


class RelativePositions(nn.Module):
    """(q_i + v - u) · W p_{i-j} for every query and key, with sinusoids p of their distance.

    It is the `position` of MultiHeadAttention, so together the score is (q_i + u) · k_j + (q_i + v) · W p_{i-j}. The
    bias of the query's projection contains u already, so only the difference of the two is learned here.
    """

    def __init__(self, width: int, heads: int, table: DistanceTable):
        super().__init__()
        self.heads, self.scale = heads, 1 / math.sqrt(width // heads)
        self.project = nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.zeros(heads, 1, width // heads))
        self.table = table

    def forward(self, q: Float[Tensor, "B H T K"], keys: int) -> Float[Tensor, "B H T T"]:
        if q.shape[2] != keys:
            raise ValueError(f"{q.shape[2]} queries and {keys} keys: relative positions are those of self-attention")
        places = self.project(self.table(keys)).unflatten(-1, (self.heads, -1))  # [R H K]
        scores = torch.einsum("bhtk,rhk->bhtr", (q + self.bias) * self.scale, places)
        return by_distance(scores)


def by_distance(scores: Float[Tensor, "B H T R"]) -> Float[Tensor, "B H T T"]:
    """From scores of the distances T, T - 1, ... 1 - T to scores of keys: key j of query i is at distance i - j.

    Its column is T - i + j. In the flat matrix of 2T columns, the wanted columns of successive rows are 2T - 1 apart,
    so a view shows them without any index.
    """
    length = scores.shape[2]
    flat = scores.flatten(-2)[..., length:]
    return flat.unflatten(-1, (length, 2 * length - 1))[..., :length]
