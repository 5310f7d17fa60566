"""Matrices as int8 rows with a float32 scale each: a quarter of the bytes, and the numbers that int8 inference uses.

A stored matrix `X` is two tensors: `X` in int8 and `X_scale`. Quantizing the restored matrix gives the same integers
and scales again, bit by bit. So inference in int8 computes with the stored numbers, whatever was between.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import CheckpointError

WEIGHT, SCALE = "weight", "_scale"  # how the names of matrices end, and what the names of their scales have more
LARGEST = 127  # of a signed byte, used symmetrically
SMALLEST = 1e-30  # as in native_products.h: a row with only smaller numbers becomes zeros


def quantize_rows(x: Float[Tensor, "*B K"]) -> tuple[Float[Tensor, "*B K"], Float[Tensor, "*B 1"]]:
    """Integers from -127 to 127, and the scale of each row."""
    largest = x.abs().amax(dim=-1, keepdim=True).clamp_(min=SMALLEST)
    steps = torch.full_like(largest, LARGEST).div_(largest)  # LARGEST / largest would round a reciprocal first
    return (x * steps).round_(), largest / LARGEST


def to_int8(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors with every matrix of weights as int8 rows and their scales."""
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and tensor.is_floating_point() and name.endswith(WEIGHT):
            rows, scales = _stable_rows(tensor.float())
            stored |= {name: rows.to(torch.int8), name + SCALE: scales[:, 0]}
        else:
            stored[name] = tensor
    return stored


def from_int8(stored: Mapping[str, Tensor], where: object) -> dict[str, Tensor]:
    """The tensors of `to_int8` in float32."""
    tensors = dict(stored)
    for name in [each for each in stored if each.endswith(WEIGHT + SCALE)]:
        scales, rows = tensors.pop(name), tensors.get(name.removesuffix(SCALE))
        if rows is None or rows.dtype != torch.int8 or scales.shape != rows.shape[:1]:
            given = "no rows" if rows is None else f"rows of {rows.dtype}, {list(rows.shape)}"
            raise CheckpointError(f"{name} of {where} has {given}; expected int8, one row for each of {len(scales)}")
        tensors[name.removesuffix(SCALE)] = rows.float().mul_(scales[:, None])
    return tensors


def _stable_rows(matrix: Float[Tensor, "N K"]) -> tuple[Float[Tensor, "N K"], Float[Tensor, "N 1"]]:
    """Rows and scales that come out again when the restored matrix is quantized.

    A scale s of which 127 s is just between two floats is restored as its neighbour, which restores as itself.
    """
    rows, scales = quantize_rows(matrix)
    return quantize_rows(rows * scales)
