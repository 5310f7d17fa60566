"""The structure module: residues as rigid frames in space, moved by invariant point attention (Jumper et al. 2021)."""

import math
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.core import AttendPairs
from regard.attention.dropout import Dropout
from regard.attention.places import Argument, Result
from regard.layers.blocks import closed


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

    def scaled(self, factor: float) -> "Frames":
        """The same rotations, with other units of length."""
        return Frames(self.rotation, self.translation * factor)

    def fixed_rotation(self) -> "Frames":
        """The same frames; gradients do not pass through the rotations."""
        return Frames(self.rotation.detach(), self.translation)


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
                found.append(frames.scaled(self.unit))
                frames = frames.fixed_rotation()
        return x, found
