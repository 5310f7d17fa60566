"""Chains and alignments in archives: many chains in one NPZ file, many alignments in one JSON Lines file.

The NPZ file has names, lengths, all sequences as one string, and the places of 14 atoms a residue in AlphaFold's order
(N, CA, C, O, CB, ...), NaN where one is missing. A line of the JSON file has a family's rows, the chain it belongs to,
and the residue of that chain at each column (-1: none).
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.formats.lines import read_lines, refuse
from regard.data.proteins.alphabet import GAP, encode, read_residues
from regard.data.proteins.fasta import Alignment
from regard.data.proteins.structures import Chain, increasing
from regard.errors import DataError

COLUMNS = (0, 1, 2, 4)  # of ATOMS among AlphaFold's 14 atoms
KEYS = ("names", "lengths", "sequence", "xyz", "residue_index", "resolution")


def read_chains(path: str | Path) -> list[Chain]:
    """The chains of an NPZ file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            names, lengths, sequence, xyz, numbers, resolution = (file[key] for key in KEYS)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path}: is no archive of chains ({error}); expected an NPZ file with {', '.join(KEYS)}"
        ) from None
    ends = np.cumsum(lengths)
    whole = str(sequence)
    if xyz.shape != (len(whole), 14, 3) or not len(ends) or ends[-1] != len(whole) or len(numbers) != len(whole):
        raise DataError(f"{path}: its lengths, sequence {len(whole):,} and places {xyz.shape} do not agree")
    chains = []
    for name, start, end, measured in zip(names, ends - lengths, ends, resolution, strict=True):
        atoms = xyz[start:end, COLUMNS]
        known = np.isfinite(atoms).all(axis=-1)
        found = read_residues(whole[start:end], f"{path}, {name}")
        chains.append(Chain(
            str(name), found.sequence, np.where(known[..., None], atoms, 0).astype(np.float32), known,
            increasing(numbers[start:end].tolist()), float(measured), found.told,
        ))  # fmt: skip
    return chains


def read_family_alignments(path: str | Path, chains: Iterable[Chain]) -> dict[str, Alignment]:
    """The alignment of each chain that has one, laid over the residues of the chain; the first row is the chain itself.

    A residue at which the family has no column is a gap in all other rows.
    """
    by_name = {chain.name: chain for chain in chains}
    found: dict[str, Alignment] = {}
    for number, line in enumerate(read_lines(path, refuse), 1):
        where = f"{path}, line {number}"
        try:
            family: Any = json.loads(line)
            chain = by_name.get(family["chain"])
            if chain is not None:
                found[chain.name] = _over_chain(chain, family, where)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise DataError(
                f"{where}: is no alignment ({error!r:.80}); expected an object with chain, rows and column_to_residue"
            ) from None
    return found


def _over_chain(chain: Chain, family: dict[str, Any], where: str) -> Alignment:
    residues = np.array(family["column_to_residue"], dtype=np.int64)
    columns = residues >= 0
    rows = np.full((len(family["rows"]) + 1, len(chain)), GAP, dtype=np.int8)
    deletions = np.zeros(rows.shape, dtype=np.int32)
    rows[0] = encode(chain.sequence)
    for number, row in enumerate(family["rows"], 1):
        if len(row) != len(residues):
            raise DataError(f"{where}: row {number} has {len(row)} columns, expected {len(residues)}")
    whole = read_residues("".join(family["rows"]), f"{where}, all rows together", gaps=True)
    letters = encode(whole.sequence).reshape(-1, len(residues))
    rows[1:, residues[columns]] = letters[:, columns]
    skipped = np.cumsum(~columns & (letters != GAP), axis=1)[:, columns]
    deletions[1:, residues[columns]] = np.diff(skipped, axis=1, prepend=0)
    return Alignment([chain.name, *(f"{family['family']}/{number}" for number in range(1, len(rows)))], rows, deletions)
