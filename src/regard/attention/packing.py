"""Tokens that only fill up rows are left out, where that saves time: the real ones lie side by side, in one row.

Norms, products and dropout take every token on its own, so they do not see the difference. Only attention needs to know
which tokens are of one text: for it the rows are laid out again, with zeros where there is no token.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

WORTH_IT = 0.95  # of the tokens, or fewer, are real: to lay out the rows for attention takes less than the others would


class _Pack(torch.autograd.Function):
    """Some rows. Each is taken once, so their gradients are put back where torch's would be added up."""

    @staticmethod
    def forward(ctx: Any, rows: Float[Tensor, "R *D"], places: Int[Tensor, "N"]) -> Float[Tensor, "N *D"]:
        ctx.save_for_backward(places)
        ctx.rows = len(rows)
        return rows.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *outer: Float[Tensor, "N *D"]) -> tuple[Float[Tensor, "R *D"], None]:
        return _put(outer[0], ctx.saved_tensors[0], ctx.rows), None


class _Unpack(torch.autograd.Function):
    """The rows put at their places among zeros."""

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
    """Where the real tokens of B texts are; at all others `mask` is False."""

    def __init__(self, mask: Bool[Tensor, "B T"]):
        self.texts, self.length = mask.shape
        self.places = mask.flatten().nonzero()[:, 0]

    def pack(self, x: Float[Tensor, "B T *D"]) -> Float[Tensor, "1 N *D"]:
        """The real tokens alone."""
        return _Pack.apply(x.flatten(0, 1), self.places)[None]

    def unpack(self, x: Float[Tensor, "1 N *D"]) -> Float[Tensor, "B T *D"]:
        """Every token at its place, and zeros at the others."""
        return _Unpack.apply(x[0], self.places, self.texts * self.length).unflatten(0, (self.texts, self.length))

    def lay_out(self, *heads: Float[Tensor, "1 H N K"]) -> list[Float[Tensor, "B H T K"]]:
        """Queries, keys or values of packed tokens as attention takes them."""
        return [self.unpack(each.transpose(1, 2)).transpose(1, 2) for each in heads]


def packed(x: Float[Tensor, "B T *D"], packing: Packing | None) -> Float[Tensor, "_ _ *D"]:
    """The real tokens alone, where there is a packing."""
    return x if packing is None else packing.pack(x)


def unpacked(x: Float[Tensor, "_ _ *D"], packing: Packing | None) -> Float[Tensor, "B T *D"]:
    """Every token at its place, if they were packed."""
    return x if packing is None else packing.unpack(x)


def packing_for(x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None) -> Packing | None:
    """How to pack what is being trained on a processor, if it pays. On a GPU to count the tokens is to wait for it."""
    if mask is None or x.device.type != "cpu" or not x.requires_grad or torch.compiler.is_compiling():
        return None
    return Packing(mask) if int(mask.sum()) <= WORTH_IT * mask.numel() else None
