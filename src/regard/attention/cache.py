"""Keys and values of the tokens decoded so far: explicit objects that callers hold, never state on a module.

Rows are a grid: W hypotheses for each of S sentences. `reorder` lets hypothesis w of a sentence continue any of the
sentence's previous hypotheses (W may change: one start becomes a whole beam), `keep` drops finished sentences.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@runtime_checkable
class LayerCache(Protocol):
    """What one attention layer remembers while decoding."""

    def append(
        self, k: Float[Tensor, "R G t K"], v: Float[Tensor, "R G t Kv"]
    ) -> tuple[Float[Tensor, "R G Tk K"], Float[Tensor, "R G Tk Kv"]]:
        """Add the keys and values of new tokens (R = S·W rows); returns all so far."""
        ...

    @property
    def length(self) -> int | Tensor:
        """How many tokens are remembered."""
        ...

    def visible(self, queries: int) -> Bool[Tensor, "1 1 Tq Tk"] | None:
        """The mask for the last `queries` tokens where the storage holds more than is filled; None if it does not."""
        ...

    def reorder(self, origin: Int[Tensor, "S W2"]) -> None: ...

    def keep(self, sentences: Int[Tensor, "S2"]) -> None: ...


def grid_rows(origin: Int[Tensor, "S W2"], width: int) -> Int[Tensor, "S*W2"]:
    """Row numbers of the hypotheses `origin` in a grid with `width` hypotheses per sentence."""
    first = torch.arange(origin.shape[0], device=origin.device)[:, None] * width
    return (first + origin).flatten()


class GrowingCache:
    """Storage that doubles when it is full, so appending a token costs its own size on average.

    When hypotheses change places, their rows are moved. A reader that can follow an `ancestry` sets `lazily`: then
    nothing is moved, and `ancestry` says in which row each hypothesis finds its past.
    """

    def __init__(self, sentences: int, capacity: int = 32):
        self.sentences, self.capacity, self.length, self.lazily = sentences, capacity, 0, False
        self.ancestry: Int[Tensor, "R t"] | None = None  # of the first tokens; the others are in their own rows
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    def append(
        self, k: Float[Tensor, "R G t K"], v: Float[Tensor, "R G t Kv"]
    ) -> tuple[Float[Tensor, "R G Tk K"], Float[Tensor, "R G Tk Kv"]]:
        self._put_in_order()
        end = self.length + k.shape[2]
        keys, values = self.room(k, v)
        keys[:, :, self.length : end] = k
        values[:, :, self.length : end] = v
        self.length = end
        return keys[:, :, :end], values[:, :, :end]

    def room(
        self, k: Float[Tensor, "R G t K"], v: Float[Tensor, "R G t Kv"]
    ) -> tuple[Float[Tensor, "R2 G C K"], Float[Tensor, "R2 G C Kv"]]:
        """The whole storage, with room behind `length` for tokens of these shapes; it may have further rows."""
        end = self.length + k.shape[2]
        if self.k is None or self.v is None or end > self.capacity:
            self._put_in_order()
            self.capacity = max(self.capacity, 2 * end if self.length else end)
            self.k, self.v = self._grown(self.k, k), self._grown(self.v, v)
        return self.k, self.v

    def visible(self, queries: int) -> None:
        return None

    def _grown(self, old: Tensor | None, new: Tensor) -> Tensor:
        rows, groups, _, width = new.shape
        storage = new.new_empty(rows, groups, self.capacity, width)
        if old is not None:
            storage[:, :, : self.length] = old[:, :, : self.length]
        return storage

    def forget(self, tokens: int) -> None:
        """Go back to before the last tokens."""
        self.length -= tokens
        if self.ancestry is not None:
            self.ancestry = self.ancestry[:, : self.length]

    def fork(self) -> "GrowingCache":
        """A copy that grows by itself."""
        self._put_in_order()
        twin = GrowingCache(self.sentences, self.capacity)
        twin.length = self.length
        twin.k, twin.v = (each if each is None else each.clone() for each in (self.k, self.v))
        return twin

    def reorder(self, origin: Int[Tensor, "S W2"]) -> None:
        self._move(grid_rows(origin, self.rows // self.sentences))

    def keep(self, sentences: Int[Tensor, "S2"]) -> None:
        width = self.rows // self.sentences
        self._move((sentences[:, None] * width + torch.arange(width, device=sentences.device)).flatten())
        self.sentences = len(sentences)

    @property
    def rows(self) -> int:
        """Hypotheses of all sentences."""
        if self.k is None:
            return self.sentences
        return len(self.k) if self.ancestry is None else len(self.ancestry)

    def _move(self, rows: Int[Tensor, "R"]) -> None:
        if self.k is None:
            return
        if self.lazily and len(rows) <= len(self.k):
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
        """Give every hypothesis a row of its own, with its past in it."""
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


class StaticCache:
    """Storage and shapes fixed in advance, so that a decoding step can be compiled or captured as a graph.

    `append` writes at a position kept on the device and always returns the whole storage; `visible` is the mask that
    hides what is not filled yet.
    """

    def __init__(
        self,
        sentences: int,
        width: int,
        groups: int,
        capacity: int,
        head_width: int,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
    ):
        self.sentences, self.width = sentences, width
        shape = (sentences * width, groups, capacity, head_width)
        self.k = torch.zeros(shape, device=device, dtype=dtype)
        self.v = torch.zeros(shape, device=device, dtype=dtype)
        self.length = torch.zeros((), dtype=torch.long, device=device)
        self.positions = torch.arange(capacity, device=device)

    def append(
        self, k: Float[Tensor, "R G t K"], v: Float[Tensor, "R G t K"]
    ) -> tuple[Float[Tensor, "R G Tk K"], Float[Tensor, "R G Tk K"]]:
        where = self.length + self.positions[: k.shape[2]]
        self.k.index_copy_(2, where, k)
        self.v.index_copy_(2, where, v)
        self.length += k.shape[2]
        return self.k, self.v

    def visible(self, queries: int) -> Bool[Tensor, "1 1 Tq Tk"]:
        last = self.length - queries + self.positions[:queries]
        return (self.positions[None, :] <= last[:, None])[None, None]

    def reorder(self, origin: Int[Tensor, "S W2"]) -> None:
        if origin.shape[1] != self.width:
            raise ValueError(f"this cache has {self.width} hypotheses a sentence; reorder asked for {origin.shape[1]}")
        rows = grid_rows(origin, self.width)
        self.k.copy_(self.k[rows])
        self.v.copy_(self.v[rows])

    def keep(self, sentences: Int[Tensor, "S2"]) -> None:
        if len(sentences) != self.sentences:
            raise ValueError("a static cache cannot drop sentences; use GrowingCache, or decode finished ones along")
