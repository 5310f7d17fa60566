"""Pairs of proteins that bind or do not: read from tables, divided by pairs or by proteins, stored, and made batches.

A table of pairs has a line for each: protein TAB protein TAB 1 or 0. The sequences are in another file, a table
(protein TAB sequence) or FASTA. The parts of a division follow from hashes of the sequences, so they are the same in
every run, and one sequence under two names is one protein.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from regard.config import SavedConfig, nearest
from regard.data.batch import TensorBatch, pad_rows
from regard.data.formats.lines import read_lines, refuse
from regard.data.proteins import UNKNOWN, Protein, encode, is_fasta, read_proteins, read_residues
from regard.errors import DataError

if TYPE_CHECKING:
    from regard.families.proteins.recipe import InteractionsSection

Split = Literal["pairs", "proteins"]
BESIDE = ("sequences.tsv.gz", "sequences.tsv", "sequences.fasta.gz", "sequences.fasta")
WANTED = "expected protein TAB protein TAB 1 (they bind) or 0"
TRAIN, VALID, TEST = range(3)
MULTIPLE = 64  # residues; batches are padded to a multiple, so that they have fewer shapes


@dataclass(frozen=True, eq=False)
class ProteinPairs:
    """Proteins, and pairs of them by number; label 1 binds."""

    names: list[str]
    sequences: list[str]
    pairs: Int[np.ndarray, "N 2"]
    labels: Int[np.ndarray, N]

    def __len__(self) -> int:
        return len(self.labels)

    def some(self, rows: NDArray[np.integer]) -> ProteinPairs:
        return ProteinPairs(self.names, self.sequences, self.pairs[rows], self.labels[rows])


def sequences_beside(pairs: str | Path) -> Path:
    """The file of sequences that lies beside a table of pairs."""
    folder = Path(pairs).parent
    for name in BESIDE:
        if (folder / name).exists():
            return folder / name
    raise DataError(f"{folder}: has no sequences beside {Path(pairs).name}; expected {' or '.join(BESIDE)}")


def read_sequences(path: str | Path) -> dict[str, Protein]:
    """The proteins of a table (protein TAB sequence) or a FASTA file, by name."""
    found: dict[str, Protein] = {}
    for protein in read_proteins(path) if is_fasta(path) else _table(path):
        if found.setdefault(protein.name, protein).sequence != protein.sequence:
            raise DataError(f"{path}: {protein.name} has two different sequences; name each protein once")
    return found


def _table(path: str | Path) -> list[Protein]:
    found = []
    for number, line in enumerate(read_lines(path, refuse), 1):
        if not line.strip():
            continue
        name, tab, sequence = line.partition("\t")
        if not tab or not name.strip():
            raise DataError(f"{path}, line {number}: {line[:40]!r} is not a protein; expected name TAB sequence")
        residues = read_residues(sequence, f"{path}, line {number}, {name}")
        found.append(Protein(name.strip(), residues.sequence, residues.told))
    return found


def read_pairs(path: str | Path, sequences: str | Path = "", problems: list[str] | None = None) -> ProteinPairs:
    """The pairs of a table; a pair whose protein has no sequence is an error, or left out and named in `problems`."""
    proteins = read_sequences(sequences or sequences_beside(path))
    numbers = {name: number for number, name in enumerate(proteins)}
    pairs, labels = list[tuple[int, int]](), list[int]()
    for line_number, line in enumerate(read_lines(path, refuse), 1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split("\t")]
        where = f"{path}, line {line_number}"
        if len(cells) != 3 or cells[2] not in ("0", "1"):
            raise DataError(f"{where}: {line[:60]!r} is not a pair; {WANTED}")
        if unknown := next((name for name in cells[:2] if name not in numbers), ""):
            problem = f"{where}: there is no sequence of {unknown!r}"
            if problems is None:
                raise DataError(f"{problem}; {nearest(unknown, list(numbers)[:50])}")
            problems.append(problem)
            continue
        pairs.append((numbers[cells[0]], numbers[cells[1]]))
        labels.append(int(cells[2]))
    if not pairs:
        raise DataError(f"{path}: has no pair; {WANTED}")
    return ProteinPairs(
        list(proteins), [each.sequence for each in proteins.values()], np.array(pairs), np.array(labels)
    )


def fingerprint(sequence: str) -> str:
    """A short hash of a sequence."""
    return hashlib.sha256(sequence.encode()).hexdigest()[:16]


def _place(text: str) -> float:
    """A number in [0, 1) that follows from a text alone."""
    return int(fingerprint(text)[:15], 16) / 16**15


def divided(found: ProteinPairs, how: Split, held_out: float, tested: float) -> NDArray[np.int8]:
    """The part of every pair: train, valid or test.

    By pairs: shares of the pairs, whose proteins occur in other parts too. By proteins: shares of the proteins; a pair
    is in the test part if one of its proteins is, so that no test pair has two proteins of the training part.
    """

    def part(place: float) -> int:
        return TEST if place < tested else VALID if place < tested + held_out else TRAIN

    if how == "pairs":
        both = (sorted(found.sequences[number] for number in pair) for pair in found.pairs)
        return np.array([part(_place("\t".join(pair))) for pair in both], dtype=np.int8)
    parts = np.array([part(_place(sequence)) for sequence in found.sequences], dtype=np.int8)
    return parts[found.pairs].max(axis=1)


class InteractionSettings(SavedConfig):
    """Written beside the weights: how the pairs were divided, and how often each protein was in a training pair."""

    file_name: ClassVar[str] = "interactions.json"

    split: Split
    held_out: float
    tested: float
    counts: dict[str, tuple[int, int]]  # fingerprint of a sequence -> training pairs that do not bind, that bind

    @classmethod
    def of(cls, train: ProteinPairs, split: Split, held_out: float, tested: float) -> Self:
        """The settings of a division with these training pairs."""
        seen = Counter(
            (int(number), int(label))
            for pair, label in zip(train.pairs, train.labels, strict=True)
            for number in pair
        )  # fmt: skip
        counts: dict[str, tuple[int, int]] = {}
        for number in sorted({number for number, _ in seen}):
            name = fingerprint(train.sequences[number])
            free, bound = counts.get(name, (0, 0))
            counts[name] = (free + seen[number, 0], bound + seen[number, 1])
        return cls(split=split, held_out=held_out, tested=tested, counts=counts)

    def degree_scores(self, found: ProteinPairs) -> Float[np.ndarray, N]:
        """What the training pairs of each protein alone say: the sum of the log odds that a pair of it binds.

        Sequences are not read; a protein without training pairs counts 0.
        """
        counts = (self.counts.get(fingerprint(sequence), (0, 0)) for sequence in found.sequences)
        odds = np.array([math.log((bound + 1) / (free + 1)) for free, bound in counts])
        return odds[found.pairs].sum(axis=1)

    def unseen(self, found: ProteinPairs) -> Int[np.ndarray, N]:
        """How many proteins of each pair were in no training pair: 0, 1 or 2."""
        new = np.array([fingerprint(sequence) not in self.counts for sequence in found.sequences], dtype=np.int64)
        return new[found.pairs].sum(axis=1)


PAIRS, PROTEINS = "pairs.npz", "proteins.json"


@dataclass(frozen=True)
class InteractionCorpus:
    """The pairs that a model is trained, validated and tested on, in a folder."""

    train: ProteinPairs
    valid: ProteinPairs
    test: ProteinPairs
    settings: InteractionSettings
    skipped: list[str]

    @classmethod
    def write(cls, folder: Path, data: InteractionsSection) -> None:
        """Read the tables of a recipe and divide the pairs."""
        skipped: list[str] = []
        found = read_pairs(data.train, data.sequences, skipped if data.skip_bad else None)
        parts = divided(found, data.split, data.held_out, data.tested)
        train = found.some(np.flatnonzero(parts == TRAIN))
        if not len(train):
            raise DataError(f"{data.train}: has no pair to train on; lower data.held_out and data.tested")
        np.savez(folder / PAIRS, pairs=found.pairs, labels=found.labels, parts=parts)
        about = {"names": found.names, "sequences": found.sequences, "skipped": skipped}
        (folder / PROTEINS).write_text(json.dumps(about), encoding="utf-8")
        InteractionSettings.of(train, data.split, data.held_out, data.tested).save(folder)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """What `write` wrote."""
        about = json.loads((folder / PROTEINS).read_text(encoding="utf-8"))
        with np.load(folder / PAIRS, allow_pickle=False) as stored:
            found = ProteinPairs(about["names"], about["sequences"], stored["pairs"], stored["labels"])
            train, valid, test = (found.some(np.flatnonzero(stored["parts"] == part)) for part in (TRAIN, VALID, TEST))
        return cls(train, valid, test, InteractionSettings.load(folder), about["skipped"])

    @property
    def summary(self) -> str:
        parts = (self.train, "train"), (self.valid, "validate"), (self.test, "test")
        counts = ", ".join(f"{len(part):,} to {verb} on" for part, verb in parts)
        left_out = f"; {len(self.skipped):,} left out, the first: {self.skipped[0]}" if self.skipped else ""
        new = self.settings.unseen(self.test)
        proteins = f"{len(self.train.names):,} proteins, divided by {self.settings.split}"
        one, two = (int((new == count).sum()) for count in (1, 2))
        unseen = f"of the test pairs {one:,} have one unseen protein and {two:,} two"
        return f"pairs of {proteins}: {counts}; {unseen}{left_out}"


@dataclass(frozen=True)
class InteractionBatch(TensorBatch):
    """B pairs of proteins as numbers of letters, padded on the right, and whether they bind."""

    first: Int[Tensor, "B T"]
    first_mask: Bool[Tensor, "B T"]
    second: Int[Tensor, "B S"]
    second_mask: Bool[Tensor, "B S"]
    labels: Float[Tensor, B]

    @classmethod
    def of(
        cls, first: Sequence[NDArray[np.integer]], second: Sequence[NDArray[np.integer]], labels: NDArray[np.number]
    ) -> Self:
        """Pairs of encoded proteins."""
        padded = (pad_rows(rows, UNKNOWN, MULTIPLE) for rows in (first, second))
        return cls(*next(padded), *next(padded), torch.from_numpy(labels.astype(np.float32)))

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What a model reads."""
        return self.first, self.first_mask, self.second, self.second_mask


def similar_lengths(lengths: Int[np.ndarray, N], residues: int) -> Iterator[NDArray[np.int64]]:
    """The numbers of pairs, longest first, in batches of so many residues; `lengths` are of the longer proteins."""
    order, start = np.argsort(-lengths, kind="stable"), 0
    while start < len(order):
        rows = order[start : start + max(1, residues // (2 * int(lengths[order[start]])))]
        yield rows
        start += len(rows)


class InteractionBatches:
    """Makes a batch of pairs; in training, sequences are cut to a random window of `longest` residues, and a share
    of the residues is hidden (X), so that single residues cannot be learnt by heart."""

    def __init__(self, found: ProteinPairs, *, longest: int = 0, hidden: float = 0.0, seed: int = 0) -> None:
        self.found, self.longest, self.hidden, self.seed = found, longest, hidden, seed
        self.letters = [encode(sequence).astype(np.int8) for sequence in found.sequences]

    def __call__(self, rows: NDArray[np.integer], place: tuple[int, int]) -> InteractionBatch:
        rng = np.random.default_rng([self.seed, *place])
        first, second = ([self._read(number, rng) for number in self.found.pairs[rows, side]] for side in (0, 1))
        return InteractionBatch.of(first, second, self.found.labels[rows])

    def lengths(self, rows: NDArray[np.integer]) -> NDArray[np.int64]:
        """The residues of the longer protein of each pair, as it is read."""
        every = np.array([len(letters) for letters in self.letters])
        longest = every[self.found.pairs[rows]].max(axis=1)
        return np.minimum(longest, self.longest) if self.longest else longest

    def _read(self, number: int, rng: np.random.Generator) -> NDArray[np.int64]:
        letters = self.letters[number].astype(np.int64)
        if self.longest and len(letters) > self.longest:
            start = int(rng.integers(len(letters) - self.longest + 1))
            letters = letters[start : start + self.longest]
        if self.hidden:
            letters = np.where(rng.random(len(letters)) < self.hidden, UNKNOWN, letters)
        return letters
