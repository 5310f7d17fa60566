"""From the tables of a recipe to pairs of proteins by part, once per run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regard.checkpoints import write_folder
from regard.data.proteins.interactions import (
    TEST,
    TRAIN,
    VALID,
    InteractionSettings,
    ProteinPairs,
    divided,
    read_pairs,
)
from regard.errors import DataError
from regard.training.recipe.interaction_sections import InteractionsSection

PAIRS, PROTEINS = "pairs.npz", "proteins.json"


@dataclass(frozen=True)
class InteractionCorpus:
    """The pairs that a model is trained, validated and tested on."""

    train: ProteinPairs
    valid: ProteinPairs
    test: ProteinPairs
    settings: InteractionSettings
    skipped: list[str]

    @property
    def summary(self) -> str:
        parts = (self.train, "train"), (self.valid, "validate"), (self.test, "test")
        told = ", ".join(f"{len(part):,} to {verb} on" for part, verb in parts)
        left_out = f"; {len(self.skipped):,} left out, the first: {self.skipped[0]}" if self.skipped else ""
        new = self.settings.unseen(self.test)
        proteins = f"{len(self.train.names):,} proteins, divided by {self.settings.split}"
        one, two = (int((new == count).sum()) for count in (1, 2))
        unseen = f"of the test pairs {one:,} have one unseen protein and {two:,} two"
        return f"pairs of {proteins}: {told}; {unseen}{left_out}"


@dataclass(frozen=True)
class InteractionPreparation:
    """How the tables of a recipe become a corpus."""

    data: InteractionsSection

    def prepare(self, folder: Path) -> None:
        """Write the corpus into `folder`, unless it exists from before."""
        if not folder.exists():
            write_folder(folder, self._write)

    def open(self, folder: Path) -> InteractionCorpus:
        """The corpus that was written into `folder`."""
        about = json.loads((folder / PROTEINS).read_text(encoding="utf-8"))
        with np.load(folder / PAIRS, allow_pickle=False) as stored:
            pairs, labels, parts = stored["pairs"], stored["labels"], stored["parts"]
        found = ProteinPairs(about["names"], about["sequences"], pairs, labels)
        train, valid, test = (found.some(np.flatnonzero(parts == part)) for part in (TRAIN, VALID, TEST))
        return InteractionCorpus(train, valid, test, InteractionSettings.load(folder), about["skipped"])

    def _write(self, folder: Path) -> None:
        data, skipped = self.data, list[str]()
        found = read_pairs(data.train, data.sequences, skipped if data.skip_bad else None)
        parts = divided(found, data.split, data.held_out, data.tested)
        train = found.some(np.flatnonzero(parts == TRAIN))
        if not len(train):
            raise DataError(f"{data.train}: has no pair to train on; lower data.held_out and data.tested")
        np.savez(folder / PAIRS, pairs=found.pairs, labels=found.labels, parts=parts)
        about = {"names": found.names, "sequences": found.sequences, "skipped": skipped}
        (folder / PROTEINS).write_text(json.dumps(about), encoding="utf-8")
        InteractionSettings.of(train, data.split, data.held_out, data.tested).save(folder)
