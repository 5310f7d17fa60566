"""Generated chains to try a model of proteins with on the page."""

from __future__ import annotations

from functools import cache

from regard.families.folding.data import built_in_chain
from regard.families.folding.structures import pdb_text

COUNT, SEED, LENGTH = 3, 7, (28, 48)


@cache
def examples() -> list[dict[str, str]]:
    """Sequences, each with its structure as a PDB file."""
    chains = [built_in_chain(SEED, number, LENGTH) for number in range(COUNT)]
    return [{"name": chain.name, "sequence": chain.sequence, "structure": pdb_text(chain)} for chain in chains]
