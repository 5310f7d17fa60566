"""Batches: the padded tensors that models and losses take."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor

Ids = Sequence[int] | NDArray[np.integer[Any]]
T = TypeVar("T", bound="TensorBatch")


class TensorBatch:
    """Base of all batches: a dataclass of tensors (or None) that is moved, copied and compared as one."""

    @property
    def tokens(self) -> int:
        """How many items the summed loss of the batch is divided by."""
        raise NotImplementedError

    def to(self: T, device: str | torch.device, non_blocking: bool = False) -> T:
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self: T) -> T:
        """The batch in page-locked memory, from which copies to a GPU overlap with computation."""
        return self._map(Tensor.pin_memory)

    def clone(self: T) -> T:
        """A copy of the batch."""
        return self._map(Tensor.clone)

    @property
    def shape(self) -> Hashable:
        """The shapes of all tensors; equal for batches that can be copied into each other."""
        return tuple(None if value is None else value.shape for value in self._values())

    def copy_from(self: T, other: T) -> None:
        """Copy another batch of the same shape into these tensors."""
        for mine, new in zip(self._values(), other._values(), strict=True):
            if mine is not None and new is not None:
                mine.copy_(new, non_blocking=True)

    def _values(self) -> list[Tensor | None]:
        return [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]

    def _map(self: T, change: Callable[[Tensor], Tensor]) -> T:
        return type(self)(*(None if value is None else change(value) for value in self._values()))


class LabelsBatch(TensorBatch):
    """Base of batches whose loss is that of every label that counts."""

    labels_mask: Bool[Tensor, "_ T"]

    @property
    def tokens(self) -> int:
        """Labels that count, end tokens included."""
        return int(self.labels_mask.sum())


@dataclass(frozen=True)
class Batch(LabelsBatch):
    """B sentence pairs, padded on the right; masks are True where there is a real token."""

    source: Int[Tensor, "B S"]
    source_mask: Bool[Tensor, "B S"]
    inputs: Int[Tensor, "B T"]  # decoder input: start token, then the target without its last token
    labels: Int[Tensor, "B T"]  # the target with its end token
    labels_mask: Bool[Tensor, "B T"]
    links: Bool[Tensor, "B T S"] | None = None  # which source tokens each label translates, if known


@dataclass(frozen=True)
class TextBatch(LabelsBatch):
    """B texts with labels for some tokens: every next token, or the masked ones."""

    inputs: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]  # real tokens
    labels: Int[Tensor, "B T"]
    labels_mask: Bool[Tensor, "B T"]  # which labels count
    segments: Int[Tensor, "B T"] | None = None
    follows: Int[Tensor, "B"] | None = None  # 0 where the second segment follows the first, 1 where it does not


@dataclass(frozen=True)
class StreamBatch(LabelsBatch):
    """The next piece of each of B texts that are read in parallel, with every next token as label."""

    inputs: Int[Tensor, "B T"]
    labels: Int[Tensor, "B T"]
    labels_mask: Bool[Tensor, "B T"]
    begins: Bool[Tensor, "B"]  # True if the piece is the first of its text; the others continue the batch before


@dataclass(frozen=True)
class LabelledBatch(TensorBatch):
    """B texts, or pairs of texts, with the label number or the value of each."""

    inputs: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    segments: Int[Tensor, "B T"]
    targets: Int[Tensor, "B"] | Float[Tensor, "B"]

    @property
    def tokens(self) -> int:
        """Texts."""
        return len(self.targets)


@dataclass(frozen=True)
class SpanBatch(TensorBatch):
    """B pairs of a question and a text, and the first and last token of each answer."""

    inputs: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    segments: Int[Tensor, "B T"]
    spans: Int[Tensor, "B 2"]

    @property
    def tokens(self) -> int:
        """Questions."""
        return len(self.spans)


@dataclass(frozen=True)
class ImageBatch(TensorBatch):
    """B images by row, and the random numbers that their augmentation uses.

    Pixels are None if all images are on the device already.
    """

    rows: Int[Tensor, "B"]
    draws: Float[Tensor, "B K"]
    pixels: UInt8[Tensor, "B C H W"] | None = None

    @property
    def tokens(self) -> int:
        """Images."""
        return len(self.rows)


@dataclass(frozen=True)
class CaptionBatch(LabelsBatch):
    """B images as in `ImageBatch`, and N captions of them, N / B of each, one after another."""

    rows: Int[Tensor, "B"]
    draws: Float[Tensor, "B K"]
    inputs: Int[Tensor, "N T"]  # decoder input: start token, then the caption without its last token
    labels: Int[Tensor, "N T"]  # the caption with its end token
    labels_mask: Bool[Tensor, "N T"]
    pixels: UInt8[Tensor, "B C H W"] | None = None


@dataclass(frozen=True)
class SpeechBatch(LabelsBatch):
    """B utterances as samples of 16 bits, zero behind their end, with the random numbers of their augmentation."""

    samples: Int[Tensor, "B S"]
    lengths: Int[Tensor, "B"]
    draws: Float[Tensor, "B K"]
    inputs: Int[Tensor, "B T"]  # decoder input: start token, then the text without its last token
    labels: Int[Tensor, "B T"]  # the text with its end token
    labels_mask: Bool[Tensor, "B T"]


@dataclass(frozen=True)
class VectorBatch(TensorBatch):
    """N vectors, such as the activations of a model at one place."""

    vectors: Float[Tensor, "N D"]

    @property
    def tokens(self) -> int:
        """Vectors."""
        return len(self.vectors)


class ImageRowsBatch(Protocol):
    """The part of a batch that names images."""

    @property
    def rows(self) -> Int[Tensor, "B"]: ...
    @property
    def pixels(self) -> UInt8[Tensor, "B C H W"] | None: ...


@dataclass(frozen=True)
class RegionTextBatch(TensorBatch):
    """B texts and images; region 0 is the whole image, and what is masked in pre-training has labels."""

    inputs: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]  # real tokens
    features: Float[Tensor, "B R F"]
    places: Float[Tensor, "B R P"]
    region_mask: Bool[Tensor, "B R"]  # real regions
    targets: Int[Tensor, "N"]  # of each example: 0 if text and image match; the region, answer or choice that is right
    labels: Int[Tensor, "B T"] | None = None
    labels_mask: Bool[Tensor, "B T"] | None = None  # which words are to be predicted
    region_targets: Float[Tensor, "B R C"] | None = None  # probabilities of classes, or features
    region_labels_mask: Bool[Tensor, "B R"] | None = None  # which regions are to be predicted

    @property
    def tokens(self) -> int:
        """Examples."""
        return len(self.targets)


def collate(
    sources: Sequence[Ids],
    targets: Sequence[Ids],
    *,
    pad: int,
    start: int,
    links: Sequence[NDArray[np.integer[Any]]] | None = None,
    length: int = 0,
) -> Batch:
    """Pad id sequences that end with their end token; masks come from lengths, so `start` may equal `pad` (Marian).

    `links` holds for each pair the positions (source, target) of tokens that translate each other. Both sides are
    padded to `length` tokens, or to their longest sequence if it is 0.
    """
    source, source_mask = pad_rows(sources, pad, length or 1)
    labels, labels_mask = pad_rows(targets, pad, length or 1)
    inputs = decoder_inputs(labels, labels_mask, pad=pad, start=start)
    linked = None if links is None else link_matrix(links, labels.shape[1], source.shape[1])
    return Batch(source, source_mask, inputs, labels, labels_mask, linked)


def decoder_inputs(
    labels: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"], *, pad: int, start: int
) -> Int[Tensor, "B T"]:
    """What a decoder is fed to predict labels: the start token, then all labels but the last."""
    inputs = torch.full_like(labels, pad)
    inputs[:, 0] = start
    inputs[:, 1:] = torch.where(mask[:, 1:], labels[:, :-1], pad)
    return inputs


def link_matrix(links: Sequence[NDArray[np.integer[Any]]], targets: int, sources: int) -> Bool[Tensor, "B T S"]:
    """Linked positions as one matrix per pair, [B, target, source]."""
    matrix = torch.zeros(len(links), targets, sources, dtype=torch.bool)
    for row, pairs in zip(matrix, links, strict=True):
        source, target = torch.from_numpy(pairs.astype(np.int64)).unbind(dim=1)
        row[target, source] = True
    return matrix


def rounded_up(lengths: NDArray[np.integer[Any]], multiple: int) -> NDArray[np.integer[Any]]:
    """Lengths rounded up to the next multiple."""
    return -(-lengths // multiple) * multiple


def pad_rows(rows: Sequence[Ids], pad: int, multiple: int = 1) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Sequences padded into one tensor, whose length is a `multiple`, and a mask of the real tokens."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(rounded_up(lengths, multiple).max())[None, :] < lengths[:, None]
    padded = np.full(mask.shape, pad, dtype=np.int64)
    padded[mask] = np.concatenate(rows)
    return torch.from_numpy(padded), torch.from_numpy(mask)
