"""Multi-head attention: projections around `Attend` (Vaswani 2017, §3.2.2)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import masks
from regard.attention.cache import LayerCache, Slots, StaticCache
from regard.attention.core import Attend
from regard.attention.packing import Packing

# (heads [B H T K], position of the first token, one for all or one a row) -> the same shape
HeadTransform = Callable[[Tensor, int | Tensor], Tensor]
PositionBias = Callable[[Tensor, int], Tensor]  # (queries [B H Tq K], number of keys) -> bias [#B #H Tq Tk]


class Memory(NamedTuple):
    """Sequences to look at, projected once: their keys, their values, and which of their positions are real.

    With `rows`, S of them are looked at, and these are their numbers: whoever can follow them spares copies.
    """

    k: Float[Tensor, "B G Tk K"]
    v: Float[Tensor, "B G Tk K"]
    mask: Bool[Tensor, "B 1 1 Tk"] | None
    rows: Int[Tensor, "S"] | None = None

    @property
    def sequences(self) -> int:
        """How many are looked at."""
        return len(self.k if self.rows is None else self.rows)

    def keep(self, sequences: Int[Tensor, "S2"], *, lazily: bool = False) -> "Memory":
        """Some of them alone; `lazily`, the others stay where they are."""
        if lazily:
            return self._replace(rows=sequences if self.rows is None else self.rows[sequences])
        k, v, mask, _ = self.settled()
        return Memory(k[sequences], v[sequences], None if mask is None else mask[sequences])

    def settled(self) -> "Memory":
        """The same with nothing but what is looked at."""
        return self if self.rows is None else self._replace(rows=None).keep(self.rows)

    def laid_out(self, packing: Packing | None) -> "Memory":
        """That of texts which came packed."""
        if packing is None:
            return self
        k, v = packing.lay_out(self.k, self.v)
        return Memory(k, v, self.mask)


class MultiHeadAttention(nn.Module):
    """H heads that look in parallel, concatenated and mixed by one output matrix; each D/H wide unless told otherwise.

    Without `memory` it is self-attention; with it, cross-attention. `kv_heads` < `heads` shares each key/value head
    among several query heads. `prepare` changes queries and keys before the scores (rotary positions, normalisation);
    `position` makes a bias from the queries (relative positions). `key_bias` and `output_bias` are what `bias` is
    unless told otherwise.
    """

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
        scale: float | None = None,
        dropout: float = 0.0,
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
        self.attend = Attend()

    def remember(self, memory: Float[Tensor, "R T M"], mask: Bool[Tensor, "B 1 1 Tk"] | None = None) -> Memory:
        """Project a memory to keys and values, once for all the queries that will look at it. A packed one is one row,
        and so are its keys and values until they are laid out."""
        k, v = _products(memory, self.key, self.value)
        return Memory(self._split(k, self.kv_heads), self._split(v, self.kv_heads), mask)

    def static_cache(self, slots: Slots, dtype: torch.dtype = torch.float32) -> StaticCache:
        """Storage of fixed shape for the keys and values of this layer."""
        return StaticCache(slots, self.kv_heads, self.head_width, dtype)

    def project(
        self, x: Float[Tensor, "B T D"]
    ) -> tuple[Float[Tensor, "B H T K"], Float[Tensor, "B G T K"], Float[Tensor, "B G T K"]]:
        """The queries, keys and values of tokens that look at each other."""
        q, k, v = _products(x, self.query, self.key, self.value)
        return self._split(q, self.heads), self._split(k, self.kv_heads), self._split(v, self.kv_heads)

    def forward(
        self,
        x: Float[Tensor, "R T D"],
        memory: Float[Tensor, "B Tk M"] | Memory | None = None,
        *,
        mask: Bool[Tensor, "#B #H #Tq #Tk"] | None = None,
        bias: Float[Tensor, "#B #H #Tq #Tk"] | None = None,
        causal: bool = False,
        cache: LayerCache | None = None,
        first: int | Int[Tensor, "B"] | None = None,
        packing: Packing | None = None,
    ) -> Float[Tensor, "R T D"]:
        """`first` is the position of the first token where it is not the number of tokens in the cache; `packing`, of
        which texts the tokens are, where they come as one row."""
        if memory is None:
            q, k, v = self.project(x)
            if packing is not None:
                q, k, v = packing.lay_out(q, k, v)
        else:
            q = self._split(self.query(x), self.heads)
            if packing is not None:
                (q,) = packing.lay_out(q)
            k, v, real, _ = memory.settled() if isinstance(memory, Memory) else self.remember(memory)
            mask = real if mask is None else mask
        if self.prepare is not None:
            if first is None:
                first = 0 if cache is None else cache.length
            q, k = self.prepare(q, first), self.prepare(k, first)
        if cache is not None:
            k, v = cache.append(k, v)
            visible = cache.visible()
            if visible is not None:  # already says which token sees which
                mask, causal = masks.combine(mask, visible), False
            if len(k) != len(q):  # the hypotheses of a sentence, one token each, look at what they share
                q = q.view(len(k), -1, *q.shape[1::2]).transpose(1, 2)
        if self.position is not None:
            relative = self.position(q, k.shape[2])
            bias = relative if bias is None else bias + relative
        y = self.attend(q, k, v, mask=mask, bias=bias, causal=causal, scale=self.scale, dropout=self.dropout)
        tokens = y.transpose(1, 2) if packing is None else packing.pack(y.transpose(1, 2))
        return self.output(tokens.reshape(*x.shape[:2], -1))

    def _split(self, x: Float[Tensor, "B T HK"], heads: int) -> Float[Tensor, "B H T K"]:
        return x.view(*x.shape[:-1], heads, self.head_width).transpose(1, 2)


def _products(x: Float[Tensor, "B T D"], *layers: nn.Linear) -> Sequence[Float[Tensor, "B T _"]]:
    """What each of some layers makes of the same vectors.

    Code compiled for a GPU multiplies once: one product of many columns is faster than several of few, forward and
    backward, and to put the matrices side by side costs next to nothing where there are thousands of vectors.
    """
    if not (torch.compiler.is_compiling() and x.is_cuda):
        return [layer(x) for layer in layers]
    return side_by_side(x, *layers)


def side_by_side(x: Float[Tensor, "B T D"], *layers: nn.Linear) -> Sequence[Float[Tensor, "B T _"]]:
    """The layers as one product; one without a bias adds zeros."""
    weights: list[Tensor] = [layer.weight for layer in layers]
    biases: list[Tensor] = [
        layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers
    ]
    whole = functional.linear(x, torch.cat(weights), torch.cat(biases))
    return whole.split([layer.out_features for layer in layers], dim=-1)
