"""Batches: the padded tensors that models and losses take."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor

Ids = Sequence[int] | NDArray[np.integer[Any]]
T = TypeVar("T", bound="Tensors")


class Tensors:
    """A dataclass of tensors, some of them perhaps None, that moves as one."""

    def to(self: T, device: str | torch.device, non_blocking: bool = False) -> T:
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self: T) -> T:
        """The batch in page-locked memory, from which copies to a GPU overlap with computation."""
        return self._map(Tensor.pin_memory)

    def clone(self: T) -> T:
        """The same batch in memory of its own."""
        return self._map(Tensor.clone)

    @property
    def shape(self) -> Hashable:
        """Of every tensor; the same for batches that can take each other's place."""
        return tuple(None if value is None else value.shape for value in self._values())

    def take(self: T, other: T) -> None:
        """Become another batch of the same shape, where this one is."""
        for mine, new in zip(self._values(), other._values(), strict=True):
            if mine is not None and new is not None:
                mine.copy_(new, non_blocking=True)

    def _values(self) -> list[Tensor | None]:
        return [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]

    def _map(self: T, change: Callable[[Tensor], Tensor]) -> T:
        return type(self)(*(None if value is None else change(value) for value in self._values()))


@dataclass(frozen=True)
class Batch(Tensors):
    """B sentence pairs, padded on the right; masks are True where there is a real token."""

    source: Int[Tensor, "B S"]
    source_mask: Bool[Tensor, "B S"]
    inputs: Int[Tensor, "B T"]  # start token, then the target without its last token: what the decoder reads
    labels: Int[Tensor, "B T"]  # the target with its end token: what it must say
    labels_mask: Bool[Tensor, "B T"]
    links: Bool[Tensor, "B T S"] | None = None  # which source tokens each label translates, where that is known

    @property
    def tokens(self) -> int:
        """Target tokens, the end tokens included: what a loss is averaged over."""
        return int(self.labels_mask.sum())


@dataclass(frozen=True)
class TextBatch(Tensors):
    """B texts in which some tokens are to be predicted: the next of every one, or those that were hidden."""

    inputs: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]  # real tokens
    labels: Int[Tensor, "B T"]
    labels_mask: Bool[Tensor, "B T"]  # which labels count
    segments: Int[Tensor, "B T"] | None = None
    follows: Int[Tensor, "B"] | None = None  # 0 where the second segment follows the first, 1 where it does not

    @property
    def tokens(self) -> int:
        """Predicted tokens: what a loss is averaged over."""
        return int(self.labels_mask.sum())


@dataclass(frozen=True)
class StreamBatch(Tensors):
    """The next piece of each of B texts that are read side by side; every token is predicted from those before it."""

    inputs: Int[Tensor, "B T"]
    labels: Int[Tensor, "B T"]
    labels_mask: Bool[Tensor, "B T"]
    begins: Bool[Tensor, "B"]  # where the piece is the first of its text; the others go on from the batch before

    @property
    def tokens(self) -> int:
        """Predicted tokens: what a loss is averaged over."""
        return int(self.labels_mask.sum())


@dataclass(frozen=True)
class LabelledBatch(Tensors):
    """B texts, or pairs of texts, with the number of the label of each, or the value it was given."""

    inputs: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    segments: Int[Tensor, "B T"]
    targets: Int[Tensor, "B"] | Float[Tensor, "B"]

    @property
    def tokens(self) -> int:
        """Texts: what a loss is averaged over."""
        return len(self.targets)


@dataclass(frozen=True)
class ImageBatch(Tensors):
    """B pictures by their numbers, and the random numbers their augmentation uses.

    Pixels are None where the pictures wait on the device, and are looked up there.
    """

    rows: Int[Tensor, "B"]
    draws: Float[Tensor, "B K"]
    pixels: UInt8[Tensor, "B C H W"] | None = None

    @property
    def tokens(self) -> int:
        """Pictures: what a loss is averaged over."""
        return len(self.rows)


def collate(
    sources: Sequence[Ids],
    targets: Sequence[Ids],
    *,
    pad: int,
    start: int,
    links: Sequence[NDArray[np.integer[Any]]] | None = None,
    multiple: int = 1,
) -> Batch:
    """Pad id sequences that end with their end token; masks come from lengths, so `start` may equal `pad` (Marian).

    `links` holds for each pair the positions (source, target) of tokens that translate each other. Both sides become a
    `multiple` of so many tokens long.
    """
    source, source_mask = pad_rows(sources, pad, multiple)
    labels, labels_mask = pad_rows(targets, pad, multiple)
    inputs = torch.full_like(labels, pad)
    inputs[:, 0] = start
    inputs[:, 1:] = torch.where(labels_mask[:, 1:], labels[:, :-1], pad)
    linked = None if links is None else link_matrix(links, labels.shape[1], source.shape[1])
    return Batch(source, source_mask, inputs, labels, labels_mask, linked)


def link_matrix(links: Sequence[NDArray[np.integer[Any]]], targets: int, sources: int) -> Bool[Tensor, "B T S"]:
    """Linked positions as one matrix per pair."""
    matrix = torch.zeros(len(links), targets, sources, dtype=torch.bool)
    for row, pairs in zip(matrix, links, strict=True):
        source, target = torch.from_numpy(pairs.astype(np.int64)).unbind(dim=1)
        row[target, source] = True
    return matrix


def rounded_up(lengths: NDArray[np.integer[Any]], multiple: int) -> NDArray[np.integer[Any]]:
    """The next multiples."""
    return -(-lengths // multiple) * multiple


def pad_rows(rows: Sequence[Ids], pad: int, multiple: int = 1) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Sequences of any length as one tensor, a `multiple` of so many tokens long, and where it is real."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(rounded_up(lengths, multiple).max())[None, :] < lengths[:, None]
    padded = np.full(mask.shape, pad, dtype=np.int64)
    padded[mask] = np.concatenate(rows)
    return torch.from_numpy(padded), torch.from_numpy(mask)
