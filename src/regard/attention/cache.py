"""Caches of the keys and values of the tokens decoded so far. Callers hold them; modules have no such state.

`GrowingCache` grows with the answer. `StaticCache` has a fixed shape, so that a decoding step can be captured as a CUDA
graph and replayed.

Rows are a grid: W hypotheses for each of S sentences. `reorder` lets hypothesis w of a sentence continue any of the
sentence's previous hypotheses (W may change: one hypothesis becomes a whole beam), `keep` drops finished sentences.
"""

from collections.abc import Iterable
from copy import copy
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention import core as masks

STORAGE_MULTIPLE = 64  # sizes of static storage are multiples of this


@runtime_checkable
class LayerCache(Protocol):
    """The keys and values of one attention layer while decoding."""

    def append(
        self, k: Float[Tensor, "R G t K"], v: Float[Tensor, "R G t Kv"]
    ) -> tuple[Float[Tensor, "R G Tk K"], Float[Tensor, "R G Tk Kv"]]:
        """Add the keys and values of new tokens (R = S·W rows); returns those of all tokens."""
        ...

    @property
    def length(self) -> int | Tensor:
        """The number of tokens in the cache."""
        ...

    def visible(self) -> Bool[Tensor, "S 1 W Tk"] | None:
        """Which keys the newest tokens may attend to; None for all keys."""
        ...

    def reorder(self, origin: Int[Tensor, "S W2"]) -> None: ...

    def keep(self, sentences: Int[Tensor, "S2"]) -> None: ...


def grid_rows(origin: Int[Tensor, "S W2"], width: int) -> Int[Tensor, "S*W2"]:
    """Row numbers of the hypotheses `origin` in a grid with `width` hypotheses per sentence."""
    first = torch.arange(origin.shape[0], device=origin.device)[:, None] * width
    return (first + origin).flatten()


class GrowingCache:
    """Storage that doubles when it is full, so appending a token costs its own size on average.

    There are two ways to read it. `append` returns keys and values in the order of the hypotheses, so `reorder` moves
    rows. `storage` returns the rows in storage order, for readers that look up the row of every earlier token in
    `ancestry`. After `storage`, `reorder` moves no rows and changes `ancestry` instead.
    """

    def __init__(self, sentences: int, capacity: int = 32):
        self.sentences, self.capacity, self.length = sentences, capacity, 0
        self.in_place = False  # whether the last reader followed `ancestry`, so that rows need not move
        self.ancestry: Int[Tensor, "R t"] | None = None  # rows of the first t tokens; later ones are in their own row
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    def append(
        self, k: Float[Tensor, "R G t K"], v: Float[Tensor, "R G t Kv"]
    ) -> tuple[Float[Tensor, "R G Tk K"], Float[Tensor, "R G Tk Kv"]]:
        self._put_in_order()
        end = self.length + k.shape[2]
        keys, values = self._reserve(k, v)
        keys[:, :, self.length : end] = k
        values[:, :, self.length : end] = v
        self.length = end
        return keys[:, :, :end], values[:, :, :end]

    def storage(
        self, k: Float[Tensor, "R G t K"], v: Float[Tensor, "R G t Kv"]
    ) -> tuple[Float[Tensor, "R2 G C K"], Float[Tensor, "R2 G C Kv"]]:
        """The whole storage, with space after `length` for tokens of these shapes, for a reader that follows
        `ancestry`; it may have more rows than there are hypotheses. The reader writes the tokens and adds to `length`.
        """
        self.in_place = True
        return self._reserve(k, v)

    def _reserve(
        self, k: Float[Tensor, "R G t K"], v: Float[Tensor, "R G t Kv"]
    ) -> tuple[Float[Tensor, "R2 G C K"], Float[Tensor, "R2 G C Kv"]]:
        """The storage, enlarged if it has no space for tokens of these shapes."""
        end = self.length + k.shape[2]
        if self.k is None or self.v is None or end > self.capacity:
            self._put_in_order()
            self.capacity = max(self.capacity, 2 * end if self.length else end)
            self.k, self.v = self._grown(self.k, k), self._grown(self.v, v)
        return self.k, self.v

    def visible(self) -> None:
        return None

    def _grown(self, old: Tensor | None, new: Tensor) -> Tensor:
        rows, groups, _, width = new.shape
        storage = new.new_empty(rows, groups, self.capacity, width)
        if old is not None:
            storage[:, :, : self.length] = old[:, :, : self.length]
        return storage

    def rollback(self, tokens: int) -> None:
        """Remove the last tokens."""
        self.length -= tokens
        if self.ancestry is not None:
            self.ancestry = self.ancestry[:, : self.length]

    def copy(self) -> "GrowingCache":
        """An independent cache with the same tokens; the rows of this one stay where they are."""
        other = copy(self)
        if self.ancestry is None:
            other.k, other.v = (each if each is None else each.clone() for each in (self.k, self.v))
        other._put_in_order()  # moves the rows into storage of the copy's own
        return other

    def reorder(self, origin: Int[Tensor, "S W2"]) -> None:
        self._move(grid_rows(origin, self.rows // self.sentences))

    def keep(self, sentences: Int[Tensor, "S2"]) -> None:
        width = self.rows // self.sentences
        self._move((sentences[:, None] * width + torch.arange(width, device=sentences.device)).flatten())
        self.sentences = len(sentences)

    @property
    def rows(self) -> int:
        """The number of hypotheses of all sentences."""
        if self.k is None:
            return self.sentences
        return len(self.k) if self.ancestry is None else len(self.ancestry)

    def _move(self, rows: Int[Tensor, "R"]) -> None:
        if self.k is None:
            return
        if self.in_place and len(rows) <= len(self.k):
            self.ancestry = self._whole_ancestry()[rows]
        else:
            self._put_in_order()
            self._take(rows)

    def _whole_ancestry(self) -> Int[Tensor, "R T"]:
        assert self.k is not None
        known = 0 if self.ancestry is None else self.ancestry.shape[1]
        own = torch.arange(self.rows, device=self.k.device)[:, None].expand(-1, self.length - known)
        return own if self.ancestry is None else torch.cat([self.ancestry, own], dim=1)

    def _put_in_order(self) -> None:
        """Copy all tokens of each hypothesis into one row; clears `ancestry`."""
        if self.ancestry is None or self.k is None or self.v is None:
            return
        whole, place = self._whole_ancestry(), torch.arange(self.length, device=self.k.device)
        for name, old in (("k", self.k), ("v", self.v)):
            storage = old.new_empty(len(whole), *old.shape[1:])
            storage[:, :, : self.length] = old[whole, :, place].transpose(1, 2)  # [R t G K]
            setattr(self, name, storage)
        self.ancestry = None

    def _take(self, rows: Int[Tensor, "R"]) -> None:
        assert self.k is not None and self.v is not None
        self.k, self.v = self._taken(self.k, rows), self._taken(self.v, rows)

    def _taken(self, old: Tensor, rows: Int[Tensor, "R"]) -> Tensor:
        storage = old.new_empty(len(rows), *old.shape[1:])
        storage[:, :, : self.length] = old[:, :, : self.length].index_select(0, rows)  # only what is filled
        return storage


def positions(real: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """The position of every real token, counted without padding, which may be anywhere."""
    return real.cumsum(1) - 1


def round_up(size: int) -> int:
    """The next multiple of 64: few different sizes occur, and fused kernels are fast with them."""
    return -(-size // STORAGE_MULTIPLE) * STORAGE_MULTIPLE


class Slots:
    """Which hypothesis sees which slot of a storage of fixed shape that the W hypotheses of a sentence share.

    All layers share one object. A token stays in the slot it was written to, and a hypothesis that continues another
    one gets to see its slots. Every step uses W slots, one per hypothesis; `open` must be called before it.
    """

    def __init__(self, sentences: int, width: int, capacity: int, device: torch.device | None = None):
        self.seen = torch.zeros(sentences, width, capacity, dtype=torch.bool, device=device)
        # of the token in each slot; a prompt's padding has none
        self.position = torch.zeros(sentences, capacity, dtype=torch.long, device=device)
        self.length = torch.zeros((), dtype=torch.long, device=device)  # the position of the newest tokens
        self.newest = torch.zeros(width, dtype=torch.long, device=device)  # their slots
        self.steps = torch.arange(width, device=device)
        self.own = torch.eye(width, dtype=torch.bool, device=device).expand(sentences, -1, -1)

    @property
    def width(self) -> int:
        return self.seen.shape[1]

    def reset(self, prompt: int, real: Bool[Tensor, "S P"] | None = None) -> None:
        """Empty all but the first `prompt` slots, of which every hypothesis sees those that are `real`."""
        self.seen.zero_()
        real = torch.ones_like(self.seen[:, 0, :prompt]) if real is None else real
        self.seen[:, :, :prompt] = real[:, None]
        later = torch.arange(self.seen.shape[2] - prompt, device=self.position.device) // self.width
        self.position.copy_(torch.cat([positions(real), real.sum(1, keepdim=True) + later], dim=1))
        self.length.fill_(prompt - 1)
        self.newest.copy_(self.steps + (prompt - self.width))

    def window(self, size: int) -> Bool[Tensor, "S 1 1 C"]:
        """Which slots are less than `size` positions before the newest tokens."""
        return masks.window(size, self.position.index_select(1, self.newest[:1]), self.position)

    def open(self) -> None:
        """Assign slots to one more token of every hypothesis, which sees itself and not its neighbours."""
        self.newest += self.width
        self.length += 1
        self.seen.index_copy_(2, self.newest, self.own)

    def reorder(self, origin: Int[Tensor, "S W"]) -> None:
        if origin.shape[1] != self.width:
            raise ValueError(f"there are {self.width} hypotheses a sentence; reorder asked for {origin.shape[1]}")
        if self.width > 1:
            self.seen.copy_(self.seen.gather(1, origin[:, :, None].expand_as(self.seen)))


class StaticCache:
    """The keys and values of one layer in `slots`; the W hypotheses of a sentence share one storage."""

    def __init__(self, slots: Slots, groups: int, head_width: int, dtype: torch.dtype = torch.float32):
        self.slots = slots
        sentences, _, capacity = slots.seen.shape
        # Zeros instead of uninitialised memory: slots that no hypothesis sees are still multiplied, by 0.
        self.k = torch.zeros(sentences, groups, capacity, head_width, device=slots.seen.device, dtype=dtype)
        self.v = torch.zeros_like(self.k)

    @property
    def length(self) -> Int[Tensor, ""]:
        return self.slots.length

    def reset_from(self, prompt: GrowingCache) -> None:
        """Take over the tokens read before the first step; `slots` must be reset as well."""
        if prompt.k is not None and prompt.v is not None:
            self.k[:, :, : prompt.length] = prompt.k[:, :, : prompt.length]
            self.v[:, :, : prompt.length] = prompt.v[:, :, : prompt.length]

    def append(
        self, k: Float[Tensor, "R G 1 K"], v: Float[Tensor, "R G 1 K"]
    ) -> tuple[Float[Tensor, "S G Tk K"], Float[Tensor, "S G Tk K"]]:
        """Write the newest tokens of R = S·W hypotheses; returns the storage of the S sentences."""
        for storage, new in ((self.k, k), (self.v, v)):
            storage.index_copy_(2, self.slots.newest, new.view(len(storage), -1, *new.shape[1::2]).transpose(1, 2))
        return self.k, self.v

    def visible(self) -> Bool[Tensor, "S 1 W Tk"]:
        return self.slots.seen[:, None]

    def reorder(self, origin: Int[Tensor, "S W2"]) -> None:
        """Does nothing: the slots are reordered, once for all layers."""

    def keep(self, sentences: Int[Tensor, "S2"]) -> None:
        raise ValueError("a static cache cannot drop sentences; use GrowingCache, or decode finished ones too")


def growing(caches: Iterable[LayerCache]) -> list[GrowingCache]:
    """The caches that can be rolled back and copied; a state has either only such caches or none."""
    return [cache for cache in caches if isinstance(cache, GrowingCache)]
