"""Layers that compute steps of a few tokens in one call of compiled code, and everything else with torch.

The result is the same: the weights are the layer's own, and the cache is the same object. A layer that is
being recorded runs twice: with torch on a copy of the cache, for the recorder, and with compiled code for its answer.
So recording does not change a bit of the answer. Where only the weights of its cross-attention are recorded, compiled
code hands them over, and the layer runs once. A layer inside which something is changed runs with torch alone.
"""

from collections.abc import Sequence
from ctypes import byref
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention.cache import GrowingCache, LayerCache
from regard.attention.multihead import Memory
from regard.attention.packing import Packing
from regard.attention.places import Hooks, are_changed, hook_tables
from regard.attention.positions import Rotary
from regard.layers.blocks import ACTIVATIONS, DecoderLayer, EncoderLayer, FeedForward, Residual
from regard.runtime import compiled
from regard.runtime.linear import FastLinear

NOTHING = compiled.Bias()
MAX_REAL_SHARE = 0.85  # of the tokens; with more padding, skipping it gains more than torch's faster products
MAX_TOKENS = 4096  # intermediate results take memory that is kept
MAX_TEXT = 128  # tokens of a text that is read at once; for more, torch's attention is faster


class CompiledStep:
    """A layer as a struct for native.cpp, and one step through it."""

    def __init__(self, layer: Any):
        own, self.cross = layer.attention, getattr(layer, "cross", None)
        self.library, self.groups, self.head_width = compiled.library(), own.kv_heads, own.head_width
        self.rotates, self.most = own.prepare is not None, min(own.output.most, MAX_TOKENS)
        self.hooks = hook_tables(module for module in layer.modules() if module is not layer)
        self.cross_hooks: Hooks = {} if self.cross is None else self.cross.attend._forward_hooks
        self.layer = compiled.Layer(
            own=_look(own, own.together, layer.after_attention),
            cross=compiled.Look() if self.cross is None else _look(self.cross, self.cross.query, layer.after_cross),
            feed=_feed(layer.feed_forward, layer.after_feed_forward),
            pre=layer.after_attention.order == "pre",
            looks_across=self.cross is not None,
        )

    def fits(
        self,
        x: Float[Tensor, "R T D"],
        cache: LayerCache | None,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> bool:
        """Whether compiled code can compute this step: few tokens, and a mask that is the same for all queries, with
        contiguous rows."""
        if mask is not None and (mask.shape[1:3] != (1, 1) or mask.stride(3) != 1):
            return False
        if bias is not None and len(bias) > 1:
            return False
        few = x.shape[0] * x.shape[1] <= self.most
        if cache is None:
            few = x.shape[1] <= MAX_TEXT and (few or self._skips_enough(x, mask))
        known = x.dtype == torch.float32 and (cache is None or isinstance(cache, GrowingCache))
        return few and known

    @property
    def recorded(self) -> bool:
        """Whether the layer is being recorded."""
        return any(self.hooks)

    @property
    def weight_hooks(self) -> list[Any]:
        """The hooks of the layer, if all of them want the weights of its cross-attention and nothing else."""
        hooks = list(self.cross_hooks.values())
        only_these = len(hooks) == sum(map(len, self.hooks))
        return hooks if only_these and all(hasattr(hook, "take_weights") for hook in hooks) else []

    @property
    def changed(self) -> bool:
        """Whether something inside of the layer is changed by an intervention."""
        return any(self.hooks) and are_changed(self.hooks)

    def _skips_enough(self, x: Float[Tensor, "R T D"], mask: Bool[Tensor, "R 1 1 T"] | None) -> bool:
        """Whether there is so much padding that compiled code, which skips it, is faster than torch."""
        if mask is None or self.cross is not None:
            return False
        return int(mask.sum()) <= min(MAX_TOKENS, MAX_REAL_SHARE * x.shape[0] * x.shape[1])

    def __call__(
        self,
        x: Float[Tensor, "R T D"],
        cache: Any = None,
        *,
        causal: bool = True,
        mask: Bool[Tensor, "R 1 1 Tk"] | None = None,
        bias: Float[Tensor, "1 H T Tk"] | None = None,
        first: int | Int[Tensor, "R"] | None = None,
        memory: Memory | None = None,
        told: Float[Tensor, "N H Tk"] | None = None,
    ) -> Float[Tensor, "R T D"]:
        x = x.clone(memory_format=torch.contiguous_format)
        rows, tokens, _ = x.shape
        new = x.new_empty(rows, self.groups, tokens, self.head_width)
        real = real_token_rows(mask) if cache is None else None  # a cache holds padding too
        if cache is None:
            cache = GrowingCache(rows, tokens)
        keys, values = cache.storage(new, new)
        own = _keys(keys, values, cache.length, mask, cache.ancestry)
        places = self._places(cache.length if first is None else first, rows)
        added = NOTHING if bias is None else compiled.Bias(bias.data_ptr(), bias.stride(1), bias.stride(2))
        source = None if memory is None else _keys(memory.k, memory.v, memory.k.shape[2], memory.mask, rows=memory.rows)
        self.library.layer_step(
            byref(self.layer), x.data_ptr(), rows, tokens, byref(own), byref(added), compiled.address(places),
            source and byref(source), 1 if memory is None else memory.sequences, causal,
            compiled.address(real), 0 if real is None else len(real), compiled.address(told),
        )  # fmt: skip
        cache.length += tokens
        return x

    def _places(self, first: int | Tensor, rows: int) -> Int[Tensor, "R"] | None:
        if not self.rotates:
            return None
        return first.contiguous() if isinstance(first, Tensor) and first.dim() else torch.full((rows,), int(first))


class CompiledEncoderLayer(EncoderLayer):
    """A layer of an encoder or a language model."""

    def __init__(self, layer: EncoderLayer):
        self.__dict__.update(layer.__dict__)  # its parts, hooks included
        self.compiled = CompiledStep(layer)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "S 1 #T Tk"] | None = None,
        *,
        bias: Float[Tensor, "1 H T Tk"] | None = None,
        causal: bool = False,
        cache: LayerCache | None = None,
        first: int | Int[Tensor, "B"] | None = None,
        packing: Packing | None = None,
    ) -> Float[Tensor, "B T D"]:
        if packing is not None or self.compiled.changed or not self.compiled.fits(x, cache, mask, bias):
            return super().forward(x, mask, bias=bias, causal=causal, cache=cache, first=first, packing=packing)
        if self.compiled.recorded:
            super().forward(x, mask, bias=bias, causal=causal, cache=_copy(cache), first=first)
        return self.compiled(x, cache, causal=causal, mask=mask, bias=bias, first=first)


class CompiledDecoderLayer(DecoderLayer):
    """A layer of a decoder with cross-attention."""

    def __init__(self, layer: DecoderLayer):
        self.__dict__.update(layer.__dict__)
        self.compiled = CompiledStep(layer)

    def forward(
        self,
        x: Float[Tensor, "R T D"],
        memory: Memory,
        cache: LayerCache | None = None,
        bias: Float[Tensor, "1 H T Tk"] | None = None,
        packing: Packing | None = None,
    ) -> Float[Tensor, "R T D"]:
        if packing is not None or self.compiled.changed or not self.compiled.fits(x, cache, memory.mask, bias):
            return super().forward(x, memory, cache, bias, packing)
        if not self.compiled.recorded:
            return self.compiled(x, cache, bias=bias, memory=memory)
        if hooks := self.compiled.weight_hooks:
            return self._told(hooks, x, memory, cache, bias)
        super().forward(x, memory, _copy(cache), bias)
        return self.compiled(x, cache, bias=bias, memory=memory)

    def _told(
        self,
        hooks: Sequence[Any],
        x: Float[Tensor, "R T D"],
        memory: Memory,
        cache: LayerCache | None,
        bias: Float[Tensor, "1 H T Tk"] | None,
    ) -> Float[Tensor, "R T D"]:
        """One run that also gives the weights of cross-attention to hooks: the hypotheses of a sentence are queries."""
        rows, tokens, _ = x.shape
        told = x.new_empty(rows * tokens, self.cross.heads, memory.k.shape[2])
        y = self.compiled(x, cache, bias=bias, memory=memory, told=told)
        for hook in hooks:
            hook.take_weights(told.unflatten(0, (memory.sequences, -1)).transpose(1, 2))
        return y


def compiled_layer(layer: Any) -> nn.Module:
    """The layer with compiled steps, if compiled code supports all its parts; else the layer itself."""
    kind = {EncoderLayer: CompiledEncoderLayer, DecoderLayer: CompiledDecoderLayer}.get(type(layer))
    if kind is None or compiled.library() is None or not _is_supported(layer):
        return layer
    return kind(layer)


def _copy(cache: LayerCache | None) -> GrowingCache | None:
    return cache.copy() if isinstance(cache, GrowingCache) else None


def _is_supported(layer: EncoderLayer | DecoderLayer) -> bool:
    looks = [module for module in (layer.attention, getattr(layer, "cross", None)) if module is not None]
    residuals = [module for module in layer.children() if isinstance(module, Residual)]
    return (
        all(look.prepare is None or _has_fixed_angles(look.prepare) for look in looks)
        and all(look.position is None and isinstance(look.output, FastLinear) for look in looks)
        and all(look.query_norm is None for look in looks)
        and all(each.order in ("pre", "post") and type(each.norm) in (nn.LayerNorm, nn.RMSNorm) for each in residuals)
        and all(each.scale is None for each in residuals)
        and layer.feed_forward.activation in ACTIVATIONS.values()
        and not any(module.inputs % 4 for module in layer.modules() if isinstance(module, FastLinear))
    )


def _has_fixed_angles(prepare: Any) -> bool:
    """Whether the rotary angles do not depend on the length of the text."""
    return isinstance(prepare, Rotary) and prepare.growth is None


def _look(attention: Any, into: FastLinear, residual: Residual) -> compiled.Look:
    scale = attention.head_width**-0.5 if attention.scale is None else attention.scale
    rotary = attention.prepare
    return compiled.Look(
        _norm(residual.norm), into.compiled, attention.output.compiled, attention.heads, attention.kv_heads,
        attention.head_width, scale, None if rotary is None else compiled.address(rotary.frequencies),
    )  # fmt: skip


def _feed(feed: FeedForward, residual: Residual) -> compiled.Feed:
    gate = compiled.Product() if feed.gate is None else feed.gate.compiled
    kind = list(ACTIVATIONS.values()).index(feed.activation)
    return compiled.Feed(_norm(residual.norm), feed.up.compiled, gate, feed.down.compiled, kind, feed.gate is not None)


def _norm(norm: Any) -> compiled.Norm:
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    bias = getattr(norm, "bias", None)
    return compiled.Norm(compiled.address(norm.weight), compiled.address(bias), eps, isinstance(norm, nn.LayerNorm))


def real_token_rows(mask: Bool[Tensor, "R 1 1 T"] | None) -> Int[Tensor, "N"] | None:
    """The rows of real tokens in the flattened batch; None if there is no padding."""
    if mask is None or bool(mask.all()):
        return None
    return mask.flatten().nonzero()[:, 0]


def _keys(
    k: Tensor, v: Tensor, length: int, mask: Tensor | None, ancestry: Tensor | None = None, rows: Tensor | None = None
) -> compiled.Keys:
    strides = k.stride()
    assert strides == v.stride() and strides[3] == 1 and (ancestry is None or ancestry.is_contiguous())
    seen = (None, 0) if mask is None else (mask.data_ptr(), mask.stride(0) if len(mask) > 1 else 0)
    moved = (None, 0) if ancestry is None else (ancestry.data_ptr(), ancestry.shape[1])
    return compiled.Keys(k.data_ptr(), v.data_ptr(), *strides[:3], length, *moved, *seen, compiled.address(rows))
