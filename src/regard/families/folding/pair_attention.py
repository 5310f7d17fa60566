"""The layers of an Evoformer: an alignment and a pair representation that update each other (Jumper et al. 2021).

M is the width of the alignment [B N T M] of N rows and T residues, Z that of the pairs [B T T Z]. A mask is True for
what is there: [B N T] of the alignment, or [B 1 T] if all rows have the same residues. Every layer here is one branch,
to be added to its input. What stands at places that are not there has no meaning, and reaches no place that is there.
"""

from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention.dropout import drop
from regard.attention.multihead import MultiHeadAttention, side_by_side
from regard.attention.places import Argument, Computed, Result
from regard.layers.blocks import closed, opened

EPSILON = 1e-3  # added to the number of rows of an outer product mean


def gated_attention(width: int, heads: int, head_width: int) -> MultiHeadAttention:
    """Attention as AlphaFold has it: a gate on every head, and no biases but that of the output."""
    attention = MultiHeadAttention(width, heads, head_width=head_width, bias=False, output_bias=True, gated=True)
    closed(attention.output)
    return attention


class PairBias(nn.Module):
    """A bias of each head for each pair, a linear map of the normalised pair representation."""

    def __init__(self, pair_width: int, heads: int):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(pair_width), nn.Linear(pair_width, heads, bias=False)

    def forward(self, pairs: Float[Tensor, "B T T Z"]) -> Float[Tensor, "B H T T"]:
        return self.linear(self.norm(pairs)).permute(0, 3, 1, 2)


class RowAttention(nn.Module):
    """Residues of each row of an alignment attend to each other, with a bias from the pairs (algorithm 7)."""

    def __init__(self, width: int, pair_width: int, heads: int, head_width: int):
        super().__init__()
        self.norm, self.bias = nn.LayerNorm(width), PairBias(pair_width, heads)
        self.attention = gated_attention(width, heads, head_width)

    def forward(
        self, rows: Float[Tensor, "B N T M"], pairs: Float[Tensor, "B T T Z"], mask: Bool[Tensor, "B #N T"]
    ) -> Float[Tensor, "B N T M"]:
        looked = self.attention(
            self.norm(rows).flatten(0, 1), mask=mask.flatten(0, 1)[:, None, None], bias=self.bias(pairs)
        )
        return looked.unflatten(0, rows.shape[:2])


class ColumnAttention(nn.Module):
    """The rows of each column of an alignment attend to each other (algorithm 8)."""

    def __init__(self, width: int, heads: int, head_width: int):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), gated_attention(width, heads, head_width)

    def forward(self, rows: Float[Tensor, "B N T M"], mask: Bool[Tensor, "B N #T"]) -> Float[Tensor, "B N T M"]:
        """With a mask of [B N 1], all columns have the same rows."""
        columns = self.norm(rows).transpose(1, 2)
        looked = self.attention(columns.flatten(0, 1), mask=mask.transpose(1, 2).flatten(0, 1)[:, None, None])
        return looked.unflatten(0, columns.shape[:2]).transpose(1, 2)


class OuterProductMean(nn.Module):
    """The mean over the rows of the outer products of two columns, for each pair of columns (algorithm 10)."""

    def __init__(self, width: int, pair_width: int, hidden: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.left, self.right = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.output = closed(nn.Linear(hidden * hidden, pair_width))

    def forward(self, rows: Float[Tensor, "B N T M"], mask: Bool[Tensor, "B N T"]) -> Float[Tensor, "B T T Z"]:
        rows, there = self.norm(rows), mask[..., None]
        left, right = (layer(rows).masked_fill(~there, 0.0) for layer in (self.left, self.right))
        products = torch.einsum("bnic,bnjd->bijcd", left, right).flatten(-2)
        known = mask.to(left.dtype)
        count = torch.einsum("bni,bnj->bij", known, known)[..., None]
        return self.output(products) / (count + EPSILON)


class PairProducts(nn.Module):
    """Products and differences of the vectors of two residues of the first row, for each pair (Lin et al. 2022)."""

    def __init__(self, width: int, pair_width: int, hidden: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.left, self.right = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.output = closed(nn.Linear(2 * hidden, pair_width))

    def forward(self, rows: Float[Tensor, "B N T M"], mask: Bool[Tensor, "B N T"]) -> Float[Tensor, "B T T Z"]:
        first = self.norm(rows[:, 0])
        left, right = self.left(first)[:, None, :], self.right(first)[:, :, None]
        return self.output(torch.cat([left * right, left - right], dim=-1))


class TriangleMultiplication(nn.Module):
    """Each pair i, j from the pairs of both with every third residue k: edges i, k and j, k that go out of the two, or
    edges k, i and k, j that come in (algorithms 11 and 12)."""

    PLACES: ClassVar = {
        "gate": Computed(read=lambda module, args, options, output: module.gate(module.norm(args[0])).sigmoid()),
        "hidden": Argument("output"),
    }

    def __init__(self, pair_width: int, hidden: int, *, outgoing: bool):
        super().__init__()
        self.equation = "bikc,bjkc->bijc" if outgoing else "bkic,bkjc->bijc"
        self.norm, self.norm_products = nn.LayerNorm(pair_width), nn.LayerNorm(hidden)
        self.left, self.right = nn.Linear(pair_width, hidden), nn.Linear(pair_width, hidden)
        self.left_gate, self.right_gate = (opened(nn.Linear(pair_width, hidden)) for _ in range(2))
        self.gate, self.output = opened(nn.Linear(pair_width, pair_width)), closed(nn.Linear(hidden, pair_width))

    def forward(self, pairs: Float[Tensor, "B T T Z"], mask: Bool[Tensor, "B T T"]) -> Float[Tensor, "B T T Z"]:
        pairs, there = self.norm(pairs), mask[..., None]
        left, left_gate, right, right_gate, gate = side_by_side(
            pairs, self.left, self.left_gate, self.right, self.right_gate, self.gate
        )
        left = (left * torch.sigmoid(left_gate)).masked_fill(~there, 0.0)
        right = (right * torch.sigmoid(right_gate)).masked_fill(~there, 0.0)
        products = torch.einsum(self.equation, left, right)
        return self.output(self.norm_products(products)) * torch.sigmoid(gate)


class TriangleAttention(nn.Module):
    """Pairs i, j attend to the pairs i, k that start at the same residue, with the bias of the third edge j, k; or, for
    the end, pairs j, i attend to pairs k, i, with the bias of j, k (algorithms 13 and 14)."""

    def __init__(self, pair_width: int, heads: int, head_width: int, *, starting: bool):
        super().__init__()
        self.starting = starting
        self.norm, self.bias = nn.LayerNorm(pair_width), nn.Linear(pair_width, heads, bias=False)
        self.attention = gated_attention(pair_width, heads, head_width)

    def forward(self, pairs: Float[Tensor, "B T T Z"], mask: Bool[Tensor, "B #T T"]) -> Float[Tensor, "B T T Z"]:
        """The mask is [B T T] of pairs, or [B 1 T] of residues."""
        pairs = pairs if self.starting else pairs.transpose(1, 2)
        mask = mask if self.starting or mask.shape[1] == 1 else mask.transpose(1, 2)
        pairs = self.norm(pairs)
        looked = self.attention(
            pairs.flatten(0, 1), mask=mask.flatten(0, 1)[:, None, None], bias=self.bias(pairs).permute(0, 3, 1, 2)
        ).unflatten(0, pairs.shape[:2])
        return looked if self.starting else looked.transpose(1, 2)


class Transition(nn.Module):
    """A normalised feed-forward network of one hidden layer (algorithms 9 and 15)."""

    PLACES: ClassVar = {"hidden": Argument("down")}

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, hidden), closed(nn.Linear(hidden, width))

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        return self.down(torch.relu(self.up(self.norm(x))))


class SharedDropout(nn.Module):
    """Dropout with one mask for all places along a dimension."""

    def __init__(self, rate: float, dimension: int):
        super().__init__()
        self.rate, self.dimension = rate, dimension

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        if not (self.training and self.rate):
            return x
        shape = list(x.shape)
        shape[self.dimension] = 1
        return x * drop(x.new_ones(shape), self.rate)


class EvoformerBlock(nn.Module):
    """One block of an Evoformer (algorithm 6); `columns` if there are several rows to look at."""

    PLACES: ClassVar = {
        "input": Argument(),
        "input_pairs": Argument(index=1),
        "residual": Result(index=0),
        "residual_pairs": Result(index=1),
    }

    def __init__(
        self,
        width: int,
        pair_width: int,
        *,
        heads: int,
        head_width: int,
        pair_heads: int,
        pair_head_width: int,
        outer: nn.Module,
        triangle_width: int,
        growth: int = 4,
        columns: bool = True,
        dropout: float = 0.0,
        pair_dropout: float = 0.0,
    ):
        super().__init__()
        self.row = RowAttention(width, pair_width, heads, head_width)
        self.column = ColumnAttention(width, heads, head_width) if columns else None
        self.transition = Transition(width, growth * width)
        self.outer = outer
        self.outgoing = TriangleMultiplication(pair_width, triangle_width, outgoing=True)
        self.incoming = TriangleMultiplication(pair_width, triangle_width, outgoing=False)
        self.starting = TriangleAttention(pair_width, pair_heads, pair_head_width, starting=True)
        self.ending = TriangleAttention(pair_width, pair_heads, pair_head_width, starting=False)
        self.pair_transition = Transition(pair_width, growth * pair_width)
        self.drop_rows = SharedDropout(dropout, 1)
        self.drop_pair_rows, self.drop_pair_columns = SharedDropout(pair_dropout, 2), SharedDropout(pair_dropout, 1)

    def forward(
        self,
        rows: Float[Tensor, "B N T M"],
        pairs: Float[Tensor, "B T T Z"],
        residues: Bool[Tensor, "B T"],
        depth: Bool[Tensor, "B N"],
    ) -> tuple[Float[Tensor, "B N T M"], Float[Tensor, "B T T Z"]]:
        """`residues` and `depth` say which residues and which rows are there."""
        line, square = residues[:, None], residues[:, :, None] & residues[:, None]
        rows = rows + self.drop_rows(self.row(rows, pairs, line))
        if self.column is not None:
            rows = rows + self.column(rows, depth[..., None])
        rows = rows + self.transition(rows)
        pairs = pairs + self.outer(rows, depth[..., None] & line)
        pairs = pairs + self.drop_pair_rows(self.outgoing(pairs, square))
        pairs = pairs + self.drop_pair_columns(self.incoming(pairs, square))
        pairs = pairs + self.drop_pair_rows(self.starting(pairs, line))
        pairs = pairs + self.drop_pair_columns(self.ending(pairs, line))
        return rows, pairs + self.pair_transition(pairs)
