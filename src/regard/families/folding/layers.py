"""The layers of an Evoformer (Jumper et al. 2021): an alignment and a pair representation that update each other, and
the structure module: residues as rigid frames in space, moved by invariant point attention.

M is the width of the alignment [B N T M] of N rows and T residues, Z that of the pairs [B T T Z]. A mask is True for
what is there: [B N T] of the alignment, or [B 1 T] if all rows have the same residues. Every layer here is one branch,
to be added to its input. What stands at places that are not there has no meaning, and reaches no place that is there.
"""

import math
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.core import AttendPairs
from regard.attention.dropout import Dropout, drop
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


# The structure module


class Frames(NamedTuple):
    """x -> R x + t for each of N residues."""

    rotation: Float[Tensor, "*B N 3 3"]
    translation: Float[Tensor, "*B N 3"]

    @classmethod
    def identity(cls, like: Float[Tensor, "*B N D"]) -> "Frames":
        """Every residue at the origin, without a rotation."""
        shape = like.shape[:-1]
        eye = torch.eye(3, device=like.device, dtype=like.dtype)
        return cls(eye.expand(*shape, 3, 3), like.new_zeros(*shape, 3))

    @classmethod
    def of_backbone(cls, atoms: Float[Tensor, "*B N 3 3"]) -> "Frames":
        """From the places of N, CA and C: the origin is CA, C lies on the first axis, N in the plane of the first two
        (Jumper 2021, algorithm 21)."""
        nitrogen, alpha, carbon = atoms.unbind(dim=-2)
        first = _unit(carbon - alpha)
        toward = nitrogen - alpha
        second = _unit(toward - (first * toward).sum(dim=-1, keepdim=True) * first)
        return cls(torch.stack([first, second, torch.linalg.cross(first, second)], dim=-1), alpha)

    def apply(self, points: Float[Tensor, "*B N P 3"]) -> Float[Tensor, "*B N P 3"]:
        """Points in the coordinates of each residue, in those of the chain."""
        return points @ self.rotation.transpose(-1, -2) + self.translation[..., None, :]

    def invert(self, points: Float[Tensor, "*B N P 3"]) -> Float[Tensor, "*B N P 3"]:
        """Points of the chain, in the coordinates of each residue."""
        return (points - self.translation[..., None, :]) @ self.rotation

    def moved(self, update: Float[Tensor, "*B N 6"]) -> "Frames":
        """Turned and moved within its own coordinates: the quaternion (1, b, c, d), normalised, and a translation
        (Jumper 2021, algorithm 23)."""
        turn, move = update.split(3, dim=-1)
        rotation = self.rotation @ quaternion_rotation(turn)
        return Frames(rotation, (self.rotation @ move[..., None])[..., 0] + self.translation)


def quaternion_rotation(bcd: Float[Tensor, "*B 3"]) -> Float[Tensor, "*B 3 3"]:
    """The rotation of the quaternion (1, b, c, d), normalised."""
    b, c, d = bcd.unbind(dim=-1)
    rows = [
        1 + b * b - c * c - d * d, 2 * (b * c - d), 2 * (b * d + c),
        2 * (b * c + d), 1 - b * b + c * c - d * d, 2 * (c * d - b),
        2 * (b * d - c), 2 * (c * d + b), 1 - b * b - c * c + d * d,
    ]  # fmt: skip
    size = 1 + (bcd * bcd).sum(dim=-1)
    return (torch.stack(rows, dim=-1) / size[..., None]).unflatten(-1, (3, 3))


def _unit(x: Float[Tensor, "*B 3"]) -> Float[Tensor, "*B 3"]:
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6)


NORM_EPSILON = 1e-8  # below the root of the length of a point
PARTS = 3  # of a score: products, pairs, distances of points; each has the same weight


class PointAttention(nn.Module):
    """Attention by products, by pairs, and by the distances of points that residues carry with them (algorithm 22).

    Distances do not change if all frames are turned and moved together, and the answer is in the coordinates of each
    residue, so it is invariant. -½|a - b|² is computed as a·b - ½|b|²: the part of the query alone does not change the
    softmax. So all scores are products of queries and keys, with a bias.
    """

    def __init__(self, width: int, pair_width: int, *, heads: int, head_width: int, points: int, value_points: int):
        super().__init__()
        self.heads, self.head_width, self.points, self.value_points = heads, head_width, points, value_points
        self.query, self.key = nn.Linear(width, heads * head_width), nn.Linear(width, heads * head_width)
        self.value = nn.Linear(width, heads * head_width)
        self.query_points = nn.Linear(width, heads * points * 3)
        self.key_points = nn.Linear(width, heads * points * 3)
        self.value_points_of = nn.Linear(width, heads * value_points * 3)
        self.pair_bias = nn.Linear(pair_width, heads)
        self.log_weight = nn.Parameter(torch.full((heads,), math.log(math.e - 1)))  # softplus of it is 1
        self.output = closed(nn.Linear(heads * (head_width + 4 * value_points + pair_width), width))
        self.attend = AttendPairs()

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        pairs: Float[Tensor, "B T T Z"],
        frames: Frames,
        mask: Bool[Tensor, "B T"],
    ) -> Float[Tensor, "B T D"]:
        weight = functional.softplus(self.log_weight) / math.sqrt(PARTS * self.points * 9 / 2)
        near = weight.sqrt()[:, None, None]
        key_points = self._placed(self.key_points, x, frames) * near
        q = torch.cat([
            self._split(self.query(x)) / math.sqrt(PARTS * self.head_width),
            self._placed(self.query_points, x, frames) * near,
        ], dim=-1)  # fmt: skip
        k = torch.cat([self._split(self.key(x)), key_points], dim=-1)
        v = torch.cat([self._split(self.value(x)), self._placed(self.value_points_of, x, frames)], dim=-1)
        bias = self.pair_bias(pairs).permute(0, 3, 1, 2) / math.sqrt(PARTS)
        bias = bias - 0.5 * key_points.square().sum(dim=-1)[:, :, None]
        found, of_pairs = self.attend(q, k, v, pairs, mask=mask[:, None, None], bias=bias, scale=1.0)
        values, points = found.transpose(1, 2).split([self.head_width, 3 * self.value_points], dim=-1)
        points = frames.invert(points.reshape(*x.shape[:2], -1, 3))
        lengths = (points.square().sum(dim=-1) + NORM_EPSILON).sqrt()
        read = [values.flatten(2), points.flatten(2), lengths, of_pairs.transpose(1, 2).flatten(2)]
        return self.output(torch.cat(read, dim=-1))

    def _split(self, x: Float[Tensor, "B T HK"]) -> Float[Tensor, "B H T K"]:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _placed(self, layer: nn.Module, x: Float[Tensor, "B T D"], frames: Frames) -> Float[Tensor, "B H T P3"]:
        """The points of every residue and head, in the coordinates of the chain."""
        points = frames.apply(layer(x).unflatten(-1, (-1, 3)))
        return self._split(points.flatten(2))


class StructureModule(nn.Module):
    """Frames that start at the origin and are moved in several passes of one layer (algorithm 20, backbone alone).

    Frames are in units of `unit` ångströms inside, and in ångströms outside.
    """

    PLACES: ClassVar = {
        "after_attention": Result("after_attention"),
        "hidden": Argument("transition.4"),
        "residual": Result("after_transition"),
    }

    unit = 10.0

    def __init__(self, width: int, pair_width: int, attention: PointAttention, *, passes: int, dropout: float):
        super().__init__()
        self.passes, self.attention = passes, attention
        self.norm, self.norm_pairs = nn.LayerNorm(width), nn.LayerNorm(pair_width)
        self.input = nn.Linear(width, width)
        self.dropout = Dropout(dropout)
        self.after_attention, self.after_transition = nn.LayerNorm(width), nn.LayerNorm(width)
        self.transition = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), closed(nn.Linear(width, width))
        )
        self.move = closed(nn.Linear(width, 6))  # residues begin at the origin

    def forward(
        self, single: Float[Tensor, "B T D"], pairs: Float[Tensor, "B T T Z"], mask: Bool[Tensor, "B T"]
    ) -> tuple[Float[Tensor, "B T D"], list[Frames]]:
        """The last state of each residue, and its frame after every pass, in ångströms."""
        with torch.autocast(single.device.type, enabled=False):  # places in space need single precision
            x, pairs = self.input(self.norm(single.float())), self.norm_pairs(pairs.float())
            frames, found = Frames.identity(x[..., :3]), list[Frames]()
            for _ in range(self.passes):
                x = self.after_attention(self.dropout(x + self.attention(x, pairs, frames, mask)))
                x = self.after_transition(self.dropout(x + self.transition(x)))
                frames = frames.moved(self.move(x))
                found.append(Frames(frames.rotation, frames.translation * self.unit))
                frames = Frames(frames.rotation.detach(), frames.translation)  # gradients pass not through rotations
        return x, found
