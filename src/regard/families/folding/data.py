"""Chains for the model: examples with alignments and their coupling scores, the prepared chains of a run, batches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int8
from numpy.typing import NDArray
from pydantic import PositiveInt
from torch import Tensor

from regard.config import SavedConfig
from regard.data.batch import TensorBatch
from regard.data.proteins import GAP, MASK, RESIDUES, Alignment, encode
from regard.errors import DataError
from regard.families.folding.structures import (
    BUILT_IN,
    CONTACT,
    LENGTHS,
    Chain,
    Range,
    alignments_beside,
    built_in_chain,
    find_alignments,
    find_chains,
    unusable,
)

if TYPE_CHECKING:
    from regard.families.folding.recipe import FoldingSection

Poll = Callable[[], None]  # may raise to stop


class FoldingSettings(SavedConfig):
    """Written beside the weights of a model of structures."""

    file_name: ClassVar[str] = "folding.json"

    rows: PositiveInt  # of an alignment that are read at most
    trained: tuple[str, ...]  # names of chains
    validated: tuple[str, ...]
    prior: tuple[float, ...]  # the share of contacts among training pairs, by the number of residues between them


# Coupling scores of an alignment: how much two columns depend on each other beyond what a chain of others explains.
# Mean-field direct coupling analysis (Morcos et al. 2011): frequencies of residues and of pairs of residues, sequences
# weighted by how many are alike; the inverse of their covariance has the couplings; the score of two columns is the
# norm of their couplings, less what their mean scores explain (average product correction, Dunn et al. 2008). Nothing
# is learnt from structures.

STATES = len(RESIDUES) + 1  # with one for gaps and unknown residues
ALIKE = 0.8  # identity from which sequences share their weight
PSEUDOCOUNT = 0.5
FEWEST = 8  # rows below which there is nothing to learn
MOST_ROWS, MOST_COLUMNS = 4000, 600  # rows used; a covariance of more columns does not fit into memory


def coupling_scores(rows: Int[np.ndarray, "N L"]) -> Float[np.ndarray, "L L"]:
    """A score for each pair of residues, in deviations from the mean, compressed by arsinh; 0 where a column is all
    gaps but for the first row, and everywhere if there are too few rows or too many columns."""
    scores = np.zeros((rows.shape[1],) * 2, dtype=np.float32)
    rows = rows[spread(len(rows), MOST_ROWS)]
    columns = np.flatnonzero((rows[1:] < len(RESIDUES)).any(axis=0)) if len(rows) >= FEWEST else np.array([], dtype=int)
    if not 2 <= len(columns) <= MOST_COLUMNS:
        return scores
    norms = _norms(rows[:, columns])
    means = norms.mean(axis=0)
    found = norms - means[:, None] * means[None] / max(float(norms.mean()), 1e-12)
    np.fill_diagonal(found, 0.0)
    deviation = found[np.triu_indices(len(columns), 1)].std()
    if deviation > 0:
        scores[np.ix_(columns, columns)] = np.arcsinh(found / deviation)
    return scores


def spread(count: int, wanted: int) -> Int[np.ndarray, " M"]:
    """The numbers of at most `wanted` of `count` rows, evenly spread; the first is always among them."""
    return np.unique(np.linspace(0, count - 1, min(count, wanted)).round().astype(np.int64))


def row_weights(one_hot: Float[np.ndarray, "N L S"]) -> Float[np.ndarray, " N"]:
    """1 / the number of rows that are alike, itself included."""
    flat = one_hot.reshape(len(one_hot), -1)
    alike = flat @ flat.T / one_hot.shape[1]
    return 1 / (alike >= ALIKE).sum(axis=1)


def _norms(rows: Int[np.ndarray, "N L"]) -> Float[np.ndarray, "L L"]:
    """The Frobenius norm of the couplings of each pair of columns, in the zero-sum gauge, gaps left out."""
    states = np.where(rows < len(RESIDUES), rows, STATES - 1).astype(np.int64)
    length, free = states.shape[1], STATES - 1  # the last state is the reference
    one_hot = np.eye(STATES, dtype=np.float32)[states]
    weights = row_weights(one_hot)
    total = weights.sum()
    single = np.einsum("n,nls->ls", weights, one_hot) / total
    single = (1 - PSEUDOCOUNT) * single + PSEUDOCOUNT / STATES
    flat = one_hot[..., :free].reshape(len(states), -1)
    pairs = (1 - PSEUDOCOUNT) * ((flat * weights[:, None]).T @ flat) / total + PSEUDOCOUNT / STATES**2
    alone = single[:, :free].reshape(-1)
    for column in range(length):
        own = slice(column * free, (column + 1) * free)
        pairs[own, own] = np.diag(alone[own])
    inverse = np.linalg.inv((pairs - np.outer(alone, alone)).astype(np.float64))
    couplings = np.zeros((length, length, STATES, STATES))
    couplings[:, :, :free, :free] = -inverse.reshape(length, free, length, free).transpose(0, 2, 1, 3)
    couplings -= couplings.mean(axis=2, keepdims=True)
    couplings -= couplings.mean(axis=3, keepdims=True)
    norms = np.sqrt((couplings[:, :, :free, :free] ** 2).sum(axis=(2, 3)))
    np.fill_diagonal(norms, 0.0)
    return norms


@dataclass(frozen=True, eq=False)
class ProteinInput:
    """A sequence, the rows of its alignment (the first is the sequence itself), and its coupling scores, if any.

    `told` says in words what was changed while it was read.
    """

    name: str
    sequence: str
    rows: Int8[np.ndarray, "N L"]
    numbers: Int[np.ndarray, " L"]  # of residues along the chain; a jump is a gap
    couplings: Float[np.ndarray, "L L"] | None = None
    told: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.sequence)

    @classmethod
    def of(
        cls,
        name: str,
        sequence: str,
        alignment: Alignment | None = None,
        numbers: Int[np.ndarray, " L"] | None = None,
        *,
        coupled: bool = False,
        told: tuple[str, ...] = (),
    ) -> ProteinInput:
        """With `coupled`, the coupling scores of the alignment are computed."""
        rows = encode(sequence).astype(np.int8)[None] if alignment is None else alignment.rows
        if rows.shape[1] != len(sequence):
            raise DataError(
                f"{name}: the alignment has {rows.shape[1]} columns, but the sequence {len(sequence)} residues; "
                "expected an alignment whose first row is the sequence"
            )
        numbers = np.arange(len(sequence)) if numbers is None else numbers
        return cls(name, sequence, rows, numbers, coupling_scores(rows) if coupled else None, told)


class FoldExample(NamedTuple):
    """A chain of known structure, and what is read of it."""

    given: ProteinInput
    chain: Chain


def usable_chains(
    source: str, numbers: Iterable[int], seed: int, *, longest: int, skipped: list[str], length: Range = LENGTHS
) -> list[Chain]:
    """The chains of a source that can be learnt from and measured on: built-in ones by their numbers, seed and length,
    or those of files. Others are named in `skipped`."""
    if source == BUILT_IN:
        chains = [built_in_chain(seed, number, length) for number in numbers]
    elif Path(source).exists():
        chains = find_chains(source)
    else:
        raise DataError(f"there is no file or folder {source!r}; expected chains of known structure, or {BUILT_IN!r}")
    usable = [chain for chain in chains if not unusable(chain, longest)]
    skipped += [reason for chain in chains if (reason := unusable(chain, longest))]
    if not usable:
        raise DataError(f"{source}: has no chain that can be used; the first is left out: {skipped[0]}")
    return usable


def alignments_of(source: str, chains: Sequence[Chain]) -> dict[str, Alignment]:
    """The alignments that are beside the chains of a source, by the names of these."""
    return {} if source == BUILT_IN else find_alignments(alignments_beside(source), chains)


def examples_of(
    chains: Iterable[Chain], alignments: dict[str, Alignment], *, coupled: bool, poll: Poll = lambda: None
) -> Iterator[FoldExample]:
    """Chains with what is read of them."""
    for chain in chains:
        poll()
        given = ProteinInput.of(chain.name, chain.sequence, alignments.get(chain.name), chain.numbers, coupled=coupled)
        yield FoldExample(given, chain)


def save_examples(folder: Path, name: str, examples: Sequence[FoldExample]) -> None:
    """Write examples as arrays, and their names and sequences as JSON."""
    arrays: dict[str, np.ndarray] = {}
    for number, (given, chain) in enumerate(examples):
        kept = {
            "rows": given.rows, "numbers": given.numbers, "couplings": given.couplings,
            "atoms": chain.atoms, "known": chain.known,
        }  # fmt: skip
        arrays |= {f"{number}/{key}": value for key, value in kept.items() if value is not None}
    np.savez_compressed(folder / f"{name}.npz", allow_pickle=False, **arrays)
    names = [[given.name, given.sequence] for given, _ in examples]
    (folder / f"{name}.json").write_text(json.dumps(names), encoding="utf-8")


def load_examples(folder: Path, name: str) -> list[FoldExample]:
    """The examples that `save_examples` wrote."""
    found = []
    with np.load(folder / f"{name}.npz", allow_pickle=False) as stored:
        for number, (title, sequence) in enumerate(json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))):
            given = ProteinInput(
                title, sequence, stored[f"{number}/rows"], stored[f"{number}/numbers"],
                stored.get(f"{number}/couplings"),
            )  # fmt: skip
            chain = Chain(title, sequence, stored[f"{number}/atoms"], stored[f"{number}/known"], given.numbers)
            found.append(FoldExample(given, chain))
    return found


SKIPPED = "skipped.json"


@dataclass(frozen=True)
class FoldingCorpus:
    """The chains that a model is trained and validated on, in a folder."""

    train: list[FoldExample]
    valid: list[FoldExample]  # empty: validated on the chains trained on
    settings: FoldingSettings
    skipped: list[str]

    @classmethod
    def write(cls, folder: Path, data: FoldingSection, seed: int, poll: Poll, *, coupled: bool) -> None:
        """Read the chains of a recipe; `coupled`: with the coupling scores of their alignments."""
        skipped, size = list[str](), data.chains
        chains = usable_chains(
            data.train, range(size.count), seed, longest=data.longest, skipped=skipped,
            length=(size.shortest, size.longest),
        )[: data.count or None]  # fmt: skip
        alignments = find_alignments(data.alignments, chains)
        if data.alignments and not alignments:
            raise DataError(
                f"{data.alignments} has an alignment of none of the {len(chains)} chains, such as {chains[0].name}"
            )
        aside = _held_out([chain.name for chain in chains], data)
        parts = {
            "train": [chain for chain in chains if chain.name not in aside],
            "valid": [chain for chain in chains if chain.name in aside],
        }
        for part, some in parts.items():
            save_examples(folder, part, list(examples_of(some, alignments, coupled=coupled, poll=poll)))
        (folder / SKIPPED).write_text(json.dumps(skipped, ensure_ascii=False), encoding="utf-8")
        trained, validated = (tuple(chain.name for chain in some) for some in parts.values())
        FoldingSettings(
            rows=data.read_rows or data.rows, trained=trained, validated=validated, prior=contact_prior(parts["train"])
        ).save(folder)

    @classmethod
    def open(cls, folder: Path) -> FoldingCorpus:
        """What `write` wrote."""
        train, valid = load_examples(folder, "train"), load_examples(folder, "valid")
        skipped = json.loads((folder / SKIPPED).read_text(encoding="utf-8"))
        return cls(train, valid, FoldingSettings.load(folder), skipped)

    @property
    def summary(self) -> str:
        aligned = sum(len(given.rows) > 1 for given, _ in [*self.train, *self.valid])
        text = f"{len(self.train)} chains to train on, {len(self.valid) or 'the same'} to validate on"
        text += f"; {aligned} with an alignment" if aligned else "; sequences alone"
        return text + (f"; {len(self.skipped)} left out, the first: {self.skipped[0]}" if self.skipped else "")


def contact_prior(chains: Iterable[Chain]) -> tuple[float, ...]:
    """The share of contacts among all pairs of chains, by the number of residues from one to the other."""
    near, pairs = np.zeros(1), np.zeros(1)
    for chain in chains:
        points, known = chain.contact_points()
        size = len(points)
        if size > len(near):
            near, pairs = (np.pad(table, (0, size - len(table))) for table in (near, pairs))
        first, second = np.triu_indices(size, 1)
        both = known[first] & known[second]
        apart = (second - first)[both]
        close = np.linalg.norm(points[first] - points[second], axis=-1)[both] < CONTACT
        near[:size] += np.bincount(apart, weights=close, minlength=size)[:size]
        pairs[:size] += np.bincount(apart, minlength=size)[:size]
    return tuple((near / np.maximum(pairs, 1)).round(6).tolist())


def _held_out(names: Sequence[str], data: FoldingSection) -> set[str]:
    """The chains of the chosen fold, by the SHA-256 of their names; those of one name stay together."""
    order = sorted(set(names), key=lambda name: hashlib.sha256(name.encode()).digest())
    aside = set(order[data.fold * data.held_out : (data.fold + 1) * data.held_out])
    if data.held_out and (not aside or len(aside) == len(order)):
        raise DataError(
            f"{data.train} has {len(order)} chains, of which fold {data.fold} of data.held_out = {data.held_out} "
            "leaves none to train or to validate on; lower them"
        )
    return aside


MASKED, REPLACED = 0.8, 0.1  # of the letters to be predicted: shares that are hidden, or another residue


@dataclass(frozen=True)
class FoldInputs(TensorBatch):
    """What a model reads of B chains, padded: its arguments in order. `couplings` is None if no chain has them."""

    sequence: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    rows: Int[Tensor, "B N T"]
    rows_mask: Bool[Tensor, "B N"]
    numbers: Int[Tensor, "B T"]
    couplings: Float[Tensor, "B T T"] | None

    def __iter__(self) -> Iterator[Tensor | None]:
        return (getattr(self, field.name) for field in fields(FoldInputs))


@dataclass(frozen=True)
class FoldBatch(FoldInputs):
    """B chains of known structure; what is not known of it is masked."""

    labels: Int[Tensor, "B N T"]  # the rows without anything hidden
    labels_mask: Bool[Tensor, "B N T"]  # letters to be predicted
    backbone: Float[Tensor, "B T 3 3"]
    backbone_mask: Bool[Tensor, "B T"]
    points: Float[Tensor, "B T 3"]  # CB, or CA of glycine
    points_mask: Bool[Tensor, "B T"]
    recycles: Float[Tensor, "R 0"]  # R passes before the last; its shape tells, so that batches of a shape are alike

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Chains, residues and rows, as `regard plan` counts them."""
        return len(self.rows), self.rows.shape[2], self.rows.shape[1]


def pad_inputs(proteins: Sequence[ProteinInput], depth: int) -> FoldInputs:
    """Proteins as tensors with at most `depth` rows each, evenly spread over their alignments."""
    chosen = [protein.rows[spread(len(protein.rows), depth)] for protein in proteins]
    return _padded(proteins, chosen, max(map(len, chosen)), max(map(len, proteins)))


def _padded(proteins: Sequence[ProteinInput], chosen: Sequence[NDArray[Any]], depth: int, length: int) -> FoldInputs:
    count = len(proteins)
    sequence, numbers = np.full((count, length), GAP, np.int64), np.zeros((count, length), np.int64)
    mask, rows = np.zeros((count, length), bool), np.full((count, depth, length), GAP, np.int64)
    rows_mask = np.zeros((count, depth), bool)
    coupled = any(protein.couplings is not None for protein in proteins)
    couplings = np.zeros((count, length, length), np.float32) if coupled else None
    for at, (protein, kept) in enumerate(zip(proteins, chosen, strict=True)):
        size = len(protein)
        sequence[at, :size], numbers[at, :size], mask[at, :size] = encode(protein.sequence), protein.numbers, True
        rows[at, : len(kept), :size], rows_mask[at, : len(kept)] = kept, True
        if couplings is not None and protein.couplings is not None:
            couplings[at, :size, :size] = protein.couplings
    return FoldInputs(
        torch.from_numpy(sequence), torch.from_numpy(mask), torch.from_numpy(rows), torch.from_numpy(rows_mask),
        torch.from_numpy(numbers), None if couplings is None else torch.from_numpy(couplings),
    )  # fmt: skip


def cropped(example: FoldExample, start: int, end: int) -> FoldExample:
    """A piece of a chain."""
    (given, chain), part = example, slice(start, end)
    couplings = None if given.couplings is None else given.couplings[part, part]
    sequence, numbers = given.sequence[part], given.numbers[part]
    return FoldExample(
        replace(given, sequence=sequence, rows=given.rows[:, part], numbers=numbers, couplings=couplings),
        replace(chain, sequence=sequence, numbers=numbers, atoms=chain.atoms[part], known=chain.known[part]),
    )


def truth(examples: Sequence[FoldExample], length: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The backbones and contact points of chains, and which of them are known, padded."""
    count = len(examples)
    backbone, known = torch.zeros(count, length, 3, 3), torch.zeros(count, length, dtype=torch.bool)
    points, seen = torch.zeros(count, length, 3), torch.zeros(count, length, dtype=torch.bool)
    for at, (_, chain) in enumerate(examples):
        size = len(chain)
        backbone[at, :size], known[at, :size] = map(torch.from_numpy, chain.backbone)
        points[at, :size], seen[at, :size] = map(torch.from_numpy, chain.contact_points())
    # A residue without a backbone gets one, so that its frame, which does not count, is finite.
    backbone[~known] = torch.eye(3)
    return backbone, known, points, seen


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
