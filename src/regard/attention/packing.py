"""Packing: the real tokens of a batch in one row, without padding, where that saves time.

Norms, linear layers and dropout treat every token separately, so packing does not change them. Only attention needs to
know which tokens belong to one text: for it the rows are laid out again, with zeros at padding.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

MAX_REAL_SHARE = 0.95  # of the tokens; with less padding, laying out rows for attention costs more than it saves


class _Pack(torch.autograd.Function):
    """Selects rows. Each is selected once, so gradients are copied back instead of added up, as torch would do."""

    @staticmethod
    def forward(ctx: Any, rows: Float[Tensor, "R *D"], places: Int[Tensor, "N"]) -> Float[Tensor, "N *D"]:
        ctx.save_for_backward(places)
        ctx.rows = len(rows)
        return rows.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *outer: Float[Tensor, "N *D"]) -> tuple[Float[Tensor, "R *D"], None]:
        return _put(outer[0], ctx.saved_tensors[0], ctx.rows), None


class _Unpack(torch.autograd.Function):
    """The rows at their places, and zeros elsewhere."""

    @staticmethod
    def forward(ctx: Any, packed: Float[Tensor, "N *D"], places: Int[Tensor, "N"], rows: int) -> Float[Tensor, "R *D"]:
        ctx.save_for_backward(places)
        return _put(packed, places, rows)

    @staticmethod
    def backward(ctx: Any, *outer: Float[Tensor, "R *D"]) -> tuple[Float[Tensor, "N *D"], None, None]:
        return outer[0].index_select(0, ctx.saved_tensors[0]), None, None


def _put(packed: Float[Tensor, "N *D"], places: Int[Tensor, "N"], rows: int) -> Float[Tensor, "R *D"]:
    return packed.new_zeros(rows, *packed.shape[1:]).index_copy_(0, places, packed)


class Packing:
    """The places of the real tokens of B texts; `mask` is False at padding."""

    def __init__(self, mask: Bool[Tensor, "B T"]):
        self.texts, self.length = mask.shape
        self.places = mask.flatten().nonzero()[:, 0]

    def pack(self, x: Float[Tensor, "B T *D"]) -> Float[Tensor, "1 N *D"]:
        """The real tokens in one row."""
        return _Pack.apply(x.flatten(0, 1), self.places)[None]

    def unpack(self, x: Float[Tensor, "1 N *D"]) -> Float[Tensor, "B T *D"]:
        """Every token at its place, and zeros at padding."""
        return _Unpack.apply(x[0], self.places, self.texts * self.length).unflatten(0, (self.texts, self.length))

    def lay_out(self, *heads: Float[Tensor, "1 H N K"]) -> list[Float[Tensor, "B H T K"]]:
        """Queries, keys or values of packed tokens, with one row per text as attention needs them."""
        return [self.unpack(each.transpose(1, 2)).transpose(1, 2) for each in heads]


def packed(x: Float[Tensor, "B T *D"], packing: Packing | None) -> Float[Tensor, "_ _ *D"]:
    """The real tokens in one row if there is a packing; otherwise x itself."""
    return x if packing is None else packing.pack(x)


def unpacked(x: Float[Tensor, "_ _ *D"], packing: Packing | None) -> Float[Tensor, "B T *D"]:
    """Every token at its place if they were packed; otherwise x itself."""
    return x if packing is None else packing.unpack(x)


def packing_for(x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None) -> Packing | None:
    """The packing of a batch in training, if it pays. Counting tokens forces a GPU sync, so packing is CPU-only."""
    if mask is None or x.device.type != "cpu" or not x.requires_grad or torch.compiler.is_compiling():
        return None
    return Packing(mask) if int(mask.sum()) <= MAX_REAL_SHARE * mask.numel() else None
