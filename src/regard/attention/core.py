"""Scaled dot-product attention: the fast path, and the readable reference it must agree with.

Only this file calls torch's fused attention, and it hides four pitfalls: `is_causal` aligns the mask at the top left
(wrong as soon as keys are cached), it may refuse a mask together with `is_causal`, it adds a 0/1 float mask as a bias,
and its backends disagree on rows in which every key is masked. Here `causal` always means "the last query sees the last
key", masks are bool, biases are float, and a fully masked row yields zeros.

A mask or a bias of G batch elements, where G divides the batch B, serves B / G successive elements each: the rows of an
alignment and of a pair representation have one bias together, of which no copy is made.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import core as masks
from regard.attention import short_rows
from regard.attention.dropout import drop
from regard.attention.places import Argument, Result


def padding(real: Bool[Tensor, "B T"]) -> Bool[Tensor, "B 1 1 T"]:
    """Every query of a sequence may attend to its real tokens, but not to padding."""
    return real[:, None, None, :]


def causal(queries: int, keys: int, device: torch.device | None = None) -> Bool[Tensor, "1 1 Tq Tk"]:
    """No query attends to later keys. The last query sees the last key, so cached keys before the first are visible."""
    ones = torch.ones(queries, keys, dtype=torch.bool, device=device)
    return ones.tril(diagonal=keys - queries)[None, None]


def window(size: int, queries: Int[Tensor, "#B #Tq"], keys: Int[Tensor, "#B #Tk"]) -> Bool[Tensor, "B 1 #Tq #Tk"]:
    """Each query attends only to keys less than `size` positions before it, given the positions of both (Mistral)."""
    return (keys[:, None] > queries[..., None] - size)[:, None]


def combine(*parts: Bool[Tensor, "#B #H #Tq #Tk"] | None) -> Bool[Tensor, "#B #H #Tq #Tk"] | None:
    """Attend only where every given mask allows it; None allows everything."""
    allowed = None
    for part in parts:
        if part is not None:
            allowed = part if allowed is None else allowed & part
    return allowed


def attend(
    q: Float[Tensor, "B H Tq K"],
    k: Float[Tensor, "B G Tk K"],
    v: Float[Tensor, "B G Tk Kv"],
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "B H Tq Kv"]:
    """softmax(q kᵀ · scale + bias) v by torch's fused kernels, or by `short_rows` (Vaswani 2017, equation 1).

    Mask and bias broadcast to [B H Tq Tk]. A mask is bool, True = may attend; a bias is float and is added to scores.
    """
    if groups := _groups(q.shape[0], mask, bias):
        parts = _divided(groups, q, k, v, mask, bias)
        return torch.cat([
            attend(*each[:3], mask=each[3], bias=each[4], causal=causal, scale=scale, dropout=dropout)
            for each in parts
        ])  # fmt: skip
    if short_rows.applies(q, k, v, mask, bias, dropout):
        scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        return short_rows.attend_short(q, k, v, mask, bias, causal, scale)
    if _better_written_out(q, k, bias, dropout):
        weights = attention_weights(q, k, mask=mask, bias=bias, causal=causal, scale=scale)
        return drop(weights, dropout).to(v.dtype) @ v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    _check(mask, bias)
    queries, keys = q.shape[-2], k.shape[-2]
    grouped = False  # set by `if`: under a compiler a comparison gives a symbol where a bool is needed
    if q.shape[1] != k.shape[1]:
        grouped = True
    if queries == 1:  # the last query may see every key
        causal = False
    if mask is None and bias is None and (not causal or queries == keys):
        return functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=scale, dropout_p=dropout, enable_gqa=grouped
        )
    if causal:
        mask = masks.combine(mask, masks.causal(queries, keys, q.device))
    if bias is not None:
        bias = bias.to(q.dtype)  # under autocast the bias may be float32 and the queries bfloat16
    where = mask if bias is None else bias if mask is None else torch.where(mask, bias, -math.inf)
    out = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=where, scale=scale, dropout_p=dropout, enable_gqa=grouped
    )
    if mask is not None and q.is_cuda:  # CUDA backends differ on fully masked rows; on CPU all give zeros
        out = torch.where(mask.any(-1, keepdim=True), out, 0.0)  # two kernels a layer; masked_fill would be four
    return out


def _better_written_out(q: Tensor, k: Tensor, bias: Tensor | None, dropout: float) -> bool:
    """Whether explicit weights are faster, because torch's fused kernels would compute them too, more slowly."""
    if torch.compiler.is_compiling():
        # With a learned bias, torch multiplies rows of some lengths (Swin's 49) in 32 bits; a compiler fuses the rest.
        return q.is_cuda and bias is not None and k.shape[-2] <= short_rows.LONGEST
    return dropout > 0 and q.device.type == "cpu"  # no CPU kernel has dropout, and torch draws random numbers slowly


def attention_weights(
    q: Float[Tensor, "B H Tq K"],
    k: Float[Tensor, "B G Tk K"],
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "B H Tq Tk"]:
    """The weights that `attend` uses but does not return, computed step by step; a fully masked row is all zeros."""
    _check(mask, bias)
    if groups := _groups(q.shape[0], mask, bias):
        parts = _divided(groups, q, k, mask, bias)
        found = [attention_weights(*each[:2], mask=each[2], bias=each[3], causal=causal, scale=scale) for each in parts]
        return torch.cat(found)
    scores = attention_scores(q, k, bias=bias, scale=scale)
    if causal:
        mask = masks.combine(mask, masks.causal(q.shape[-2], k.shape[-2], q.device))
    if mask is None:
        return scores.softmax(dim=-1)
    weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
    return weights.masked_fill(~mask, 0.0)  # also replaces the NaN of fully masked rows


def attention_scores(
    q: Float[Tensor, "B H Tq K"],
    k: Float[Tensor, "B G Tk K"],
    *,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Float[Tensor, "B H Tq Tk"]:
    """The score of each query and key, before the softmax: q kᵀ / √K (+ bias)."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = q @ k.transpose(-2, -1) * scale
    return scores if bias is None else scores + bias


def _groups(batch: int, *parts: Tensor | None) -> int:
    """The number of groups of batch elements that share a mask or a bias; 0 if all or none share it."""
    groups = 0
    for part in parts:
        # Sizes are only compared: under a compiler they are symbols, and a number would be a graph for each batch.
        if part is None or part.shape[0] == 1 or part.shape[0] == batch:
            continue
        if batch % part.shape[0] or (groups and groups != part.shape[0]):
            raise ValueError(f"masks and biases of {part.shape[0]} batch elements do not divide a batch of {batch}")
        groups = part.shape[0]
    return groups


def _divided(groups: int, *tensors: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """The tensors of each group."""

    def parts(tensor: Tensor | None) -> Sequence[Tensor | None]:
        return [tensor] * groups if tensor is None or len(tensor) == 1 else tensor.chunk(groups)

    return zip(*map(parts, tensors), strict=True)


def _check(mask: Tensor | None, bias: Tensor | None) -> None:
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"mask is {mask.dtype}; masks are bool, True = may look. For scores pass bias=.")
    if bias is not None and not bias.is_floating_point():
        raise TypeError(f"bias is {bias.dtype}; a bias is float and added to the scores. To forbid keys pass mask=.")


class Attend(nn.Module):
    """`attend` as a module without parameters, on which `record` puts its hooks."""

    PLACES: ClassVar = {
        "queries": Argument(headed=True),
        "keys": Argument(headed=True, whole=True, index=1),
        "values": Argument(headed=True, whole=True, index=2),
        "heads": Result(headed=True),
    }

    def forward(
        self,
        q: Float[Tensor, "B H Tq K"],
        k: Float[Tensor, "B G Tk K"],
        v: Float[Tensor, "B G Tk Kv"],
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> Float[Tensor, "B H Tq Kv"]:
        dropout = dropout if self.training else 0.0
        return attend(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale, dropout=dropout)


class AttendPairs(Attend):
    """Attention to keys that also reads a vector of each pair of query and key (Jumper 2021, algorithm 22).

    No fused kernel reads pairs, so the weights are written out.
    """

    PLACES: ClassVar = Attend.PLACES | {
        "heads": Result(headed=True, index=0),
        "heads_of_pairs": Result(headed=True, index=1),
    }

    def forward(  # type: ignore[override]
        self,
        q: Float[Tensor, "B H Tq K"],
        k: Float[Tensor, "B H Tk K"],
        v: Float[Tensor, "B H Tk Kv"],
        pairs: Float[Tensor, "B Tq Tk C"],
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        scale: float | None = None,
    ) -> tuple[Float[Tensor, "B H Tq Kv"], Float[Tensor, "B H Tq C"]]:
        """The weighted sums of the values, and of the pairs."""
        weights = attention_weights(q, k, mask=mask, bias=bias, scale=scale)
        return weights @ v, (weights.transpose(1, 2) @ pairs).transpose(1, 2)
