"""From structures and alignments to chains with rows, coupling scores, and those held out, once per run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.checkpoints import write_folder
from regard.data.folding.examples import (
    FoldExample,
    examples_of,
    find_alignments,
    find_chains,
    load_examples,
    save_examples,
    unusable,
)
from regard.data.folding.settings import FoldingSettings
from regard.data.proteins.structures import Chain
from regard.data.synthetic.chains import built_in_chains
from regard.errors import DataError
from regard.training.evaluation.structures import contact_prior
from regard.training.recipe.folding_sections import FoldingSection
from regard.training.safeguards import Poll

SKIPPED = "skipped.json"


@dataclass(frozen=True)
class FoldingCorpus:
    """The chains that a model is trained and validated on."""

    train: list[FoldExample]
    valid: list[FoldExample]  # empty: validated on the chains trained on
    settings: FoldingSettings
    skipped: list[str]

    @property
    def summary(self) -> str:
        aligned = sum(len(each.given.rows) > 1 for each in [*self.train, *self.valid])
        told = f"{len(self.train)} chains to train on, {len(self.valid) or 'the same'} to validate on"
        told += f"; {aligned} with an alignment" if aligned else "; sequences alone"
        return told + (f"; {len(self.skipped)} left out, the first: {self.skipped[0]}" if self.skipped else "")


@dataclass(frozen=True)
class FoldingPreparation:
    """How the files of a recipe become a corpus; `coupled`: with the coupling scores of alignments."""

    data: FoldingSection
    coupled: bool
    seed: int

    def prepare(self, folder: Path, poll: Poll) -> None:
        """Write the corpus into `folder`, unless it exists from before."""
        if not folder.exists():
            write_folder(folder, lambda temporary: self._write(temporary, poll))

    def open(self, folder: Path) -> FoldingCorpus:
        """The corpus that was written into `folder`."""
        return FoldingCorpus(
            load_examples(folder, "train"), load_examples(folder, "valid"), FoldingSettings.load(folder),
            json.loads((folder / SKIPPED).read_text(encoding="utf-8")),
        )  # fmt: skip

    def _write(self, folder: Path, poll: Poll) -> None:
        data, skipped = self.data, list[str]()
        chains = self._chosen(skipped)
        alignments = find_alignments(data.alignments, chains)
        if data.alignments and not alignments:
            raise DataError(
                f"{data.alignments} has an alignment of none of the {len(chains)} chains, such as {chains[0].name}"
            )
        aside = self._held_out([chain.name for chain in chains])
        parts = {
            "train": [chain for chain in chains if chain.name not in aside],
            "valid": [chain for chain in chains if chain.name in aside],
        }
        examples = {
            part: examples_of(some, alignments, coupled=self.coupled, poll=poll) for part, some in parts.items()
        }
        for part, some in examples.items():
            save_examples(folder, part, some)
        (folder / SKIPPED).write_text(json.dumps(skipped, ensure_ascii=False), encoding="utf-8")
        names = {part: tuple(chain.name for chain in some) for part, some in parts.items()}
        prior = contact_prior(examples["train"])
        settings = FoldingSettings(
            rows=data.read_rows or data.rows, trained=names["train"], validated=names["valid"], prior=prior
        )
        settings.save(folder)

    def _chosen(self, skipped: list[str]) -> list[Chain]:
        """The chains of the recipe; those that cannot be used are named in `skipped`."""
        data, chosen = self.data, list[Chain]()
        if data.built_in:
            size = data.chains
            found = list(built_in_chains(self.seed, size.count, (size.shortest, size.longest)))
        else:
            found = find_chains(data.train)
        for chain in found:
            reason = unusable(chain, data.longest)
            if reason:
                skipped.append(reason)
            else:
                chosen.append(chain)
        if not chosen:
            raise DataError(f"{data.train}: has no chain to learn from; the first is left out: {skipped[0]}")
        return chosen[: data.count or None]

    def _held_out(self, names: Sequence[str]) -> set[str]:
        """The chains of the chosen fold, by the SHA-256 of their names; those of one name stay together."""
        data = self.data
        order = sorted(set(names), key=lambda name: hashlib.sha256(name.encode()).digest())
        aside = set(order[data.fold * data.held_out : (data.fold + 1) * data.held_out])
        if data.held_out and (not aside or len(aside) == len(order)):
            raise DataError(
                f"{data.train} has {len(order)} chains, of which fold {data.fold} of data.held_out = {data.held_out} "
                "leaves none to train or to validate on; lower them"
            )
        return aside
