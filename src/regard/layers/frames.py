"""Rigid frames: a rotation and a translation for each residue, from its own coordinates to those of the chain."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


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
