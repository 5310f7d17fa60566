"""Multi-head attention: projections around `Attend` (Vaswani 2017, §3.2.2)."""

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import core as masks
from regard.attention.cache import LayerCache, Slots, StaticCache
from regard.attention.core import Attend
from regard.attention.packing import Packing
from regard.attention.places import Computed

# (heads [B H T K], position of the first token, one for all or one a row) -> the same shape
HeadTransform = Callable[[Tensor, int | Tensor], Tensor]
PositionBias = Callable[[Tensor, int], Tensor]  # (queries [B H Tq K], number of keys) -> bias [#B #H Tq Tk]


class Memory(NamedTuple):
    """Sequences to attend to, projected once: their keys, their values, and which of their positions are real.

    With `rows`, only these S rows are in use. A reader that follows the row numbers needs no copy of them.
    """

    k: Float[Tensor, "B G Tk K"]
    v: Float[Tensor, "B G Tk Kv"]
    mask: Bool[Tensor, "B 1 1 Tk"] | None
    rows: Int[Tensor, "S"] | None = None

    @property
    def sequences(self) -> int:
        """The number of sequences in use."""
        return (self.k if self.rows is None else self.rows).shape[0]  # len() would fix the size in an exported graph

    def keep(self, sequences: Int[Tensor, "S2"], *, in_place: bool = False) -> "Memory":
        """These sequences only; with `in_place` nothing is copied, and `rows` names them."""
        if in_place:
            return self._replace(rows=sequences if self.rows is None else self.rows[sequences])
        k, v, mask, _ = self.compact()
        return Memory(k[sequences], v[sequences], None if mask is None else mask[sequences])

    def compact(self) -> "Memory":
        """The same memory with the rows in use only."""
        return self if self.rows is None else self._replace(rows=None).keep(self.rows)

    def laid_out(self, packing: Packing | None) -> "Memory":
        """With one row per text, if the texts were packed."""
        if packing is None:
            return self
        k, v = packing.lay_out(self.k, self.v)
        return Memory(k, v, self.mask)


class MultiHeadAttention(nn.Module):
    """H attention heads in parallel, concatenated and mixed by one output matrix; `head_width` is D/H by default.

    Without `memory` it is self-attention; with it, cross-attention. `kv_heads` < `heads` shares each key/value head
    among several query heads. `prepare` changes queries and keys before the scores (rotary positions, normalisation);
    `position` makes a bias from the queries (relative positions). `key_bias` and `output_bias` default to `bias`.
    `gated` multiplies each head's result by a sigmoid of the query's vector (Jumper 2021). `head_norm` normalises every
    query and key before `prepare`, with weights that all heads share (Henry 2020, Qwen3).
    """

    PLACES: ClassVar = {"gate": Computed("gate", read=lambda module, args, options, output: torch.sigmoid(output))}

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_width: int | None = None,
        kv_heads: int | None = None,
        head_width: int | None = None,
        bias: bool = True,
        key_bias: bool | None = None,
        output_bias: bool | None = None,
        gated: bool = False,
        scale: float | None = None,
        dropout: float = 0.0,
        head_norm: Callable[[int], nn.Module] | None = None,
        prepare: HeadTransform | None = None,
        position: PositionBias | None = None,
    ):
        super().__init__()
        kv_heads = kv_heads or heads
        if (head_width is None and width % heads) or heads % kv_heads:
            raise ValueError(f"width {width} must divide by heads {heads}, and heads by kv_heads {kv_heads}")
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, head_width or width // heads
        self.scale, self.dropout, self.prepare, self.position = scale, dropout, prepare, position
        kv_width = kv_width or width
        self.query = nn.Linear(width, heads * self.head_width, bias=bias)
        self.key = nn.Linear(kv_width, kv_heads * self.head_width, bias=bias if key_bias is None else key_bias)
        self.value = nn.Linear(kv_width, kv_heads * self.head_width, bias=bias)
        self.output = nn.Linear(heads * self.head_width, width, bias=bias if output_bias is None else output_bias)
        self.gate = nn.Linear(width, heads * self.head_width) if gated else None
        self.query_norm = None if head_norm is None else head_norm(self.head_width)
        self.key_norm = None if head_norm is None else head_norm(self.head_width)
        self.attend = Attend()
        if self.gate is not None:  # open at first, whatever the query
            nn.init.zeros_(self.gate.weight)
            nn.init.ones_(self.gate.bias)

    def remember(self, memory: Float[Tensor, "R T M"], mask: Bool[Tensor, "B 1 1 Tk"] | None = None) -> Memory:
        """Project a memory to keys and values, once for all queries. A packed memory is one row, and so are its keys
        and values until they are laid out."""
        k, v = products(memory, self.key, self.value)
        return Memory(self._split(k, self.kv_heads), self._split(v, self.kv_heads), mask)

    def static_cache(self, slots: Slots, dtype: torch.dtype = torch.float32) -> StaticCache:
        """Storage of fixed shape for the keys and values of this layer."""
        return StaticCache(slots, self.kv_heads, self.head_width, dtype)

    def project(
        self, x: Float[Tensor, "B T D"]
    ) -> tuple[Float[Tensor, "B H T K"], Float[Tensor, "B G T K"], Float[Tensor, "B G T K"]]:
        """The queries, keys and values of self-attention."""
        q, k, v = products(x, self.query, self.key, self.value)
        return self._split(q, self.heads), self._split(k, self.kv_heads), self._split(v, self.kv_heads)

    def forward(
        self,
        x: Float[Tensor, "R T D"],
        memory: Float[Tensor, "B Tk M"] | Memory | None = None,
        *,
        mask: Bool[Tensor, "#S #H #Tq #Tk"] | None = None,
        bias: Float[Tensor, "#B #H #Tq #Tk"] | None = None,
        causal: bool = False,
        cache: LayerCache | None = None,
        first: int | Int[Tensor, "B"] | None = None,
        packing: Packing | None = None,
    ) -> Float[Tensor, "R T D"]:
        """`first` is the position of the first token; by default, the number of tokens in the cache. `packing` says
        which text each token belongs to, if the texts are packed into one row."""
        if memory is None:
            q, k, v = self.project(x)
            if packing is not None:
                q, k, v = packing.lay_out(q, k, v)
        else:
            q = self._split(self.query(x), self.heads)
            if packing is not None:
                (q,) = packing.lay_out(q)
            k, v, real, _ = memory.compact() if isinstance(memory, Memory) else self.remember(memory)
            mask = real if mask is None else mask
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        if self.prepare is not None:
            if first is None:
                first = 0 if cache is None else cache.length
            q, k = self.prepare(q, first), self.prepare(k, first)
        if cache is not None:
            k, v = cache.append(k, v)
            visible = cache.visible()
            if visible is not None:  # includes the causal mask
                mask, causal = masks.combine(mask, visible), False
            if k.shape[0] != q.shape[0]:  # the hypotheses of a sentence, one token each, share its storage
                q = q.view(k.shape[0], -1, *q.shape[1::2]).transpose(1, 2)
        if self.position is not None:
            relative = self.position(q, k.shape[2])
            bias = relative if bias is None else bias + relative
        y = self.attend(q, k, v, mask=mask, bias=bias, causal=causal, scale=self.scale, dropout=self.dropout)
        tokens = y.transpose(1, 2) if packing is None else packing.pack(y.transpose(1, 2))
        joined = tokens.reshape(*x.shape[:2], -1)
        return self.output(joined if self.gate is None else joined * torch.sigmoid(self.gate(x)))

    def _split(self, x: Float[Tensor, "B T HK"], heads: int) -> Float[Tensor, "B H T K"]:
        return x.view(*x.shape[:-1], heads, self.head_width).transpose(1, 2)


def products(x: Float[Tensor, "*B D"], *layers: nn.Linear) -> Sequence[Float[Tensor, "*B _"]]:
    """The outputs of several linear layers for the same input.

    Code compiled for a GPU computes one product: it is faster than several small ones, forward and backward, and
    concatenating the matrices costs next to nothing where there are thousands of vectors.
    """
    if not (torch.compiler.is_compiling() and x.is_cuda):
        return [layer(x) for layer in layers]
    return side_by_side(x, *layers)


def side_by_side(x: Float[Tensor, "*B D"], *layers: nn.Linear) -> Sequence[Float[Tensor, "*B _"]]:
    """Several linear layers as one product; a layer without a bias adds zeros."""
    weights: list[Tensor] = [layer.weight for layer in layers]
    biases: list[Tensor] = [
        layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers
    ]
    whole = functional.linear(x, torch.cat(weights), torch.cat(biases))
    return whole.split([layer.out_features for layer in layers], dim=-1)
