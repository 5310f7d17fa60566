"""What a model of structures reads, and the chains that it learns from, as files and arrays."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int, Int8

from regard.data.folding.couplings import coupling_scores
from regard.data.proteins.alphabet import encode
from regard.data.proteins.archives import read_chains, read_family_alignments
from regard.data.proteins.fasta import Alignment, read_alignment
from regard.data.proteins.structures import SUFFIXES, Chain, read_structure
from regard.errors import DataError

ARCHIVE, ALIGNMENT_SUFFIXES = ".npz", (".a3m", ".afa", ".fasta", ".fa")
CHAINS, ALIGNMENTS = "_chains.npz", "_alignments.jsonl.gz"  # ends of the names of files that belong together
FEWEST_KNOWN = 8  # residues with a backbone, below which a chain has no structure to learn from


@dataclass(frozen=True, eq=False)
class ProteinInput:
    """A sequence, the rows of its alignment (the first is the sequence itself), and its coupling scores, if any."""

    name: str
    sequence: str
    rows: Int8[np.ndarray, "N L"]
    numbers: Int[np.ndarray, " L"]  # of residues along the chain; a jump is a gap
    couplings: Float[np.ndarray, "L L"] | None = None

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
    ) -> ProteinInput:
        """With `coupled`, the coupling scores of the alignment are computed."""
        rows = encode(sequence).astype(np.int8)[None] if alignment is None else alignment.rows
        if rows.shape[1] != len(sequence):
            raise DataError(
                f"{name}: the alignment has {rows.shape[1]} columns, but the sequence {len(sequence)} residues; "
                "expected an alignment whose first row is the sequence"
            )
        numbers = np.arange(len(sequence)) if numbers is None else numbers
        return cls(name, sequence, rows, numbers, coupling_scores(rows) if coupled else None)


@dataclass(frozen=True, eq=False)
class FoldExample:
    """A chain of known structure, and what is read of it."""

    given: ProteinInput
    chain: Chain


def find_chains(path: str | Path) -> list[Chain]:
    """The chains of an archive (.npz), of a structure file, or of all structure files of a folder."""
    path = Path(path)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if set(file.suffixes) & set(SUFFIXES))
        if not files:
            raise DataError(f"{path}: has no structure; expected files ending in {', '.join(SUFFIXES)}, also .gz")
        return [_named(chain, file) for file in files for chain in read_structure(file)]
    if path.suffix == ARCHIVE:
        return read_chains(path)
    return [_named(chain, path) for chain in read_structure(path)]


def _named(chain: Chain, file: Path) -> Chain:
    name = f"{file.name.split('.')[0]}_{chain.name}"
    return Chain(name, chain.sequence, chain.atoms, chain.known, chain.numbers, chain.resolution, chain.told)


def find_alignments(path: str, chains: Sequence[Chain]) -> dict[str, Alignment]:
    """The alignments of chains, by name: of a JSON Lines file of families, or of NAME.a3m in a folder."""
    if not path:
        return {}
    place = Path(path)
    if not place.is_dir():
        return read_family_alignments(path, chains)
    aligned = (file for file in sorted(place.iterdir()) if set(file.suffixes) & {*ALIGNMENT_SUFFIXES})
    files = {file.name.split(".")[0]: file for file in aligned}
    return {chain.name: read_alignment(files[chain.name]) for chain in chains if chain.name in files}


def alignments_beside(path: str | Path) -> str:
    """Where the alignments of chains are, if they are beside them: NAME_alignments.jsonl.gz of NAME_chains.npz, or
    files in the same folder; empty if there are none."""
    path = Path(path)
    if path.is_dir():
        return str(path) if any(set(file.suffixes) & {*ALIGNMENT_SUFFIXES} for file in path.iterdir()) else ""
    beside = path.with_name(path.name.replace(CHAINS, ALIGNMENTS)) if path.name.endswith(CHAINS) else None
    return str(beside) if beside is not None and beside.is_file() else ""


def examples_of(
    chains: Iterable[Chain],
    alignments: dict[str, Alignment],
    *,
    coupled: bool,
    poll: Callable[[], None] = lambda: None,
) -> list[FoldExample]:
    """Chains with what is read of them; `poll` may raise to stop."""
    found = []
    for chain in chains:
        poll()
        given = ProteinInput.of(chain.name, chain.sequence, alignments.get(chain.name), chain.numbers, coupled=coupled)
        found.append(FoldExample(given, chain))
    return found


def unusable(chain: Chain, longest: int) -> str:
    """Why a chain cannot be learnt from; empty if it can."""
    if len(chain) > longest:
        return f"{chain.name} has {len(chain)} residues, more than data.longest = {longest}"
    known = int(chain.backbone[1].sum())
    if known < FEWEST_KNOWN:
        return f"{chain.name} has {known} residues with N, CA and C; at least {FEWEST_KNOWN} are needed"
    return ""


def save_examples(folder: Path, name: str, examples: Sequence[FoldExample]) -> None:
    """Write examples as arrays, and their names and sequences as JSON."""
    arrays: dict[str, np.ndarray] = {}
    for number, each in enumerate(examples):
        kept = {
            "rows": each.given.rows, "numbers": each.given.numbers, "couplings": each.given.couplings,
            "atoms": each.chain.atoms, "known": each.chain.known,
        }  # fmt: skip
        arrays |= {f"{number}/{key}": value for key, value in kept.items() if value is not None}
    np.savez_compressed(folder / f"{name}.npz", allow_pickle=False, **arrays)
    written = [[each.given.name, each.given.sequence] for each in examples]
    (folder / f"{name}.json").write_text(json.dumps(written), encoding="utf-8")


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
