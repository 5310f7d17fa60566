"""Scaled dot-product attention: the fast path, and the readable reference it must agree with.

Only this file calls torch's fused attention, and it hides four pitfalls: `is_causal` aligns the mask at the top left
(wrong as soon as keys are cached), it may refuse a mask together with `is_causal`, it adds a 0/1 float mask as a bias,
and its backends disagree on rows in which every key is masked. Here `causal` always means "the last query sees the last
key", masks are bool, biases are float, and a fully masked row yields zeros.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import masks, short_rows
from regard.attention.dropout import drop

Mask = Bool[Tensor, "#B #H #Tq #Tk"]  # True = may attend
Bias = Float[Tensor, "#B #H #Tq #Tk"]  # added to the scores; masking is done by Mask


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
    """softmax(q kᵀ · scale + bias) v by torch's fused kernels, or by `short_rows` (Vaswani 2017, equation 1)."""
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


def _check(mask: Tensor | None, bias: Tensor | None) -> None:
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"mask is {mask.dtype}; masks are bool, True = may look. For scores pass bias=.")
    if bias is not None and not bias.is_floating_point():
        raise TypeError(f"bias is {bias.dtype}; a bias is float and added to the scores. To forbid keys pass mask=.")


class Attend(nn.Module):
    """`attend` as a module without parameters, on which `record` puts its hooks."""

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
