"""What a model of structures must know besides its weights: which chains it has seen, and how it reads alignments."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt

from regard.config import SavedConfig


class FoldingSettings(SavedConfig):
    """Written beside the weights of a model of structures."""

    file_name: ClassVar[str] = "folding.json"

    rows: PositiveInt  # of an alignment that are read at most
    trained: tuple[str, ...]  # names of chains
    validated: tuple[str, ...]
    prior: tuple[float, ...]  # the share of contacts among training pairs, by the number of residues between them
