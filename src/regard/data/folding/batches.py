"""Batches of chains: cropped, with some rows of their alignments, of which some letters are hidden."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batch import TensorBatch
from regard.data.folding.couplings import spread
from regard.data.folding.examples import FoldExample, ProteinInput
from regard.data.proteins.alphabet import GAP, MASK, RESIDUES, encode

MASKED, REPLACED = 0.8, 0.1  # of the letters to be predicted: shares that are hidden, or another residue


class FoldInputs(NamedTuple):
    """What a model reads of B chains, padded; `couplings` is None if no chain has them."""

    sequence: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    rows: Int[Tensor, "B N T"]
    rows_mask: Bool[Tensor, "B N"]
    numbers: Int[Tensor, "B T"]
    couplings: Float[Tensor, "B T T"] | None

    def to(self, device: torch.device) -> FoldInputs:
        return FoldInputs(*(None if each is None else each.to(device) for each in self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class FoldBatch(TensorBatch):
    """B chains of known structure; what is not known of it is masked."""

    sequence: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    rows: Int[Tensor, "B N T"]
    rows_mask: Bool[Tensor, "B N"]
    numbers: Int[Tensor, "B T"]
    couplings: Float[Tensor, "B T T"] | None
    labels: Int[Tensor, "B N T"]  # the rows without anything hidden
    labels_mask: Bool[Tensor, "B N T"]  # letters to be predicted
    backbone: Float[Tensor, "B T 3 3"]
    backbone_mask: Bool[Tensor, "B T"]
    points: Float[Tensor, "B T 3"]  # CB, or CA of glycine
    points_mask: Bool[Tensor, "B T"]
    recycles: Float[Tensor, "R 0"]  # R passes before the last; its shape tells, so that batches of a shape are alike

    @property
    def tokens(self) -> int:
        """Chains."""
        return len(self.sequence)

    @property
    def inputs(self) -> FoldInputs:
        return FoldInputs(self.sequence, self.mask, self.rows, self.rows_mask, self.numbers, self.couplings)


def pad_inputs(proteins: Sequence[ProteinInput], depth: int, length: int = 0, multiple: int = 1) -> FoldInputs:
    """Proteins as tensors with at most `depth` rows each, evenly spread over their alignments."""
    longest = max(length, *map(len, proteins)) if proteins else length
    longest = -(-longest // multiple) * multiple
    chosen = [each.rows[spread(len(each.rows), depth)] for each in proteins]
    return _padded(proteins, chosen, max(map(len, chosen)), longest)


def _padded(proteins: Sequence[ProteinInput], chosen: Sequence[NDArray[Any]], depth: int, length: int) -> FoldInputs:
    count = len(proteins)
    sequence, numbers = np.full((count, length), GAP, np.int64), np.zeros((count, length), np.int64)
    mask, rows = np.zeros((count, length), bool), np.full((count, depth, length), GAP, np.int64)
    rows_mask = np.zeros((count, depth), bool)
    coupled = any(each.couplings is not None for each in proteins)
    couplings = np.zeros((count, length, length), np.float32) if coupled else None
    for at, (each, its) in enumerate(zip(proteins, chosen, strict=True)):
        size = len(each)
        sequence[at, :size], numbers[at, :size], mask[at, :size] = encode(each.sequence), each.numbers, True
        rows[at, : len(its), :size], rows_mask[at, : len(its)] = its, True
        if couplings is not None and each.couplings is not None:
            couplings[at, :size, :size] = each.couplings
    return FoldInputs(
        torch.from_numpy(sequence), torch.from_numpy(mask), torch.from_numpy(rows), torch.from_numpy(rows_mask),
        torch.from_numpy(numbers), None if couplings is None else torch.from_numpy(couplings),
    )  # fmt: skip


def cropped(example: FoldExample, start: int, end: int) -> FoldExample:
    """A piece of a chain."""
    given, chain = example.given, example.chain
    couplings = None if given.couplings is None else given.couplings[start:end, start:end]
    piece = type(given)(
        given.name, given.sequence[start:end], given.rows[:, start:end], given.numbers[start:end], couplings
    )
    part = type(chain)(
        chain.name, piece.sequence, chain.atoms[start:end], chain.known[start:end], chain.numbers[start:end]
    )
    return FoldExample(piece, part)


def truth(examples: Sequence[FoldExample], length: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The backbones and contact points of chains, and which of them are known, padded."""
    count = len(examples)
    backbone, known = np.zeros((count, length, 3, 3), np.float32), np.zeros((count, length), bool)
    points, seen = np.zeros((count, length, 3), np.float32), np.zeros((count, length), bool)
    for at, each in enumerate(examples):
        size = len(each.chain)
        backbone[at, :size], known[at, :size] = each.chain.backbone
        points[at, :size], seen[at, :size] = each.chain.contact_points()
    # A residue without a backbone gets one, so that its frame, which does not count, is finite.
    backbone[~known] = np.eye(3, dtype=np.float32)
    found = tuple(torch.from_numpy(each) for each in (backbone, known, points, seen))
    return found[0], found[1], found[2], found[3]


@dataclass(frozen=True, eq=False)
class FoldBatches:
    """Makes training batches, all of one shape: pieces of `length` residues and `depth` rows, drawn anew each epoch."""

    examples: list[FoldExample]
    length: int
    depth: int
    hidden: float  # share of the letters to be predicted
    most_recycles: int
    seed: int

    def __call__(self, rows: NDArray[np.integer[Any]], place: tuple[int, int]) -> FoldBatch:
        pieces, chosen = [], []
        for row in rows.tolist():
            rng = np.random.default_rng([self.seed, place[0], row])
            whole = self.examples[row]
            start = int(rng.integers(max(0, len(whole.given) - self.length) + 1))
            piece = cropped(whole, start, start + self.length)
            pieces.append(piece)
            others = 1 + rng.permutation(len(piece.given.rows) - 1)[: self.depth - 1]
            chosen.append(piece.given.rows[np.concatenate([[0], np.sort(others)])])
        inputs = _padded([each.given for each in pieces], chosen, self.depth, self.length)
        rng = np.random.default_rng([self.seed, *place, len(rows), 1])
        shown, guessed = self._hide(inputs, rng)
        recycles = torch.zeros(int(rng.integers(self.most_recycles + 1)), 0)
        return FoldBatch(
            inputs.sequence, inputs.mask, shown, inputs.rows_mask, inputs.numbers, inputs.couplings,
            inputs.rows, guessed, *truth(pieces, self.length), recycles,
        )  # fmt: skip

    def _hide(self, inputs: FoldInputs, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Rows in which some letters are hidden, and which these are."""
        there = (inputs.rows_mask[..., None] & inputs.mask[:, None]).numpy()
        rows, guessed = inputs.rows.numpy(), (rng.random(there.shape) < self.hidden) & there
        how, other = rng.random(there.shape), rng.integers(len(RESIDUES), size=there.shape)
        shown = np.where(guessed & (how < MASKED), MASK, rows)
        shown = np.where(guessed & (how >= MASKED) & (how < MASKED + REPLACED), other, shown)
        return torch.from_numpy(shown), torch.from_numpy(guessed)
