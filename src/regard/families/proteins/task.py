"""Do two proteins bind: the cross-entropy of yes and no (after Chen et al. 2019)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from regard.checkpoints import write_folder
from regard.config import Config
from regard.data.loader import Loader, Rows
from regard.errors import DataError
from regard.families.catalog import MODELS
from regard.families.proteins.data import (
    TEST,
    TRAIN,
    VALID,
    InteractionBatch,
    InteractionBatches,
    InteractionSettings,
    ProteinPairs,
    divided,
    read_pairs,
)
from regard.families.proteins.recipe import InteractionsRecipe, InteractionsSection
from regard.families.translation.metrics import SAMPLES, Sample
from regard.training.losses import Loss
from regard.training.safeguards import Poll
from regard.training.scores import accuracy, f1, ranks
from regard.training.task import Forward, SupervisedTask, Values, loader_options

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


def binary_scores(scores: Float[np.ndarray, N], labels: Int[np.ndarray, N]) -> dict[str, float]:
    """Accuracy, precision, recall and F1 of predicting 1 where a score is above 0, and the area under the ROC curve.

    Precision and recall are 0 where nothing is predicted or nothing is true.
    """
    predicted = np.asarray(scores) > 0
    right = int((predicted & (labels == 1)).sum())
    return {
        "accuracy": accuracy(predicted, labels),
        "precision": right / max(1, int(predicted.sum())),
        "recall": right / max(1, int((labels == 1).sum())),
        "f1": f1(predicted, labels),
        "auc": area_under_curve(scores, labels),
    }


def area_under_curve(scores: NDArray[np.floating], labels: NDArray[np.integer]) -> float:
    """The probability that a pair of label 1 has a higher score than one of label 0; equal scores count half.

    0.5 if there is one label only.
    """
    yes, no = int((labels == 1).sum()), int((labels == 0).sum())
    if not yes or not no:
        return 0.5
    return float((ranks(scores)[labels == 1].sum() - yes * (yes + 1) / 2) / (yes * no))


RESIDUES = 1 << 18  # that are read at once when a model is measured
WINDOW = 16  # batches among which pairs are sorted by length


class InteractionTask(SupervisedTask[InteractionBatch]):
    """Pairs of proteins; how often each was in a training pair is saved beside the weights."""

    recipe: InteractionsRecipe

    @classmethod
    def prepare(cls, recipe: InteractionsRecipe, folder: Path, poll: Poll) -> None:
        """Read the pairs and divide them."""
        InteractionPreparation(recipe.data).prepare(folder)

    def __init__(self, recipe: InteractionsRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.corpus = InteractionPreparation(recipe.data).open(folder)
        self.summary = f"{self.corpus.summary}; from {recipe.data.train}"
        if recipe.training.validate_every and not len(self.corpus.valid):
            raise DataError("there is no pair for validation; raise data.held_out, or set training.validate_every = 0")
        self.shown: list[Sample] = []
        self.make = InteractionBatches(
            self.corpus.train, longest=recipe.data.longest, hidden=recipe.data.hidden, seed=recipe.seed
        )
        self.loader = Loader(self._plan, self.make, **loader_options(recipe.training, device))

    def build(self) -> nn.Module:
        """A new model."""
        config = self.recipe.model.config(source_vocab=1, target_vocab=1, pad=0)
        assert isinstance(config, Config)
        return MODELS[self.recipe.model.name].model(config)

    def loss(self, model: Forward, batch: InteractionBatch) -> Loss:
        """The cross-entropy of yes and no."""
        score = _scores(model, batch).float()
        total = functional.binary_cross_entropy_with_logits(score, batch.labels, reduction="sum")
        return Loss(total, torch.full((), len(score), device=score.device))

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """The loss, and how well the pairs for validation are told apart."""
        scores, values = self._measured(model, self.corpus.valid, poll)
        self._show(scores)
        return values

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """The same on the pairs set aside for testing, and what the proteins' training pairs alone would achieve."""
        part = self.corpus.test
        if not len(part):
            return {}
        by_degree = binary_scores(self.corpus.settings.degree_scores(part), part.labels)
        degree = {f"degree_{name}": by_degree[name] for name in ("accuracy", "auc")}
        return self._measured(model, part, poll)[1] | degree

    def samples(self) -> Sequence[Sample]:
        """Some pairs, whether they bind, and what the model says."""
        return self.shown

    def save(self, folder: Path) -> None:
        """Write how the pairs were divided, and the training pairs of each protein, beside the weights."""
        self.corpus.settings.save(folder)

    def _measured(self, model: nn.Module, part: ProteinPairs, poll: Poll) -> tuple[Float[np.ndarray, N], Values]:
        scores = all_scores(model, part, self.device, poll)
        labels = torch.from_numpy(part.labels.astype(np.float64))
        loss = functional.binary_cross_entropy_with_logits(torch.from_numpy(scores), labels)
        return scores, {"loss": float(loss), **binary_scores(scores, part.labels)}

    def _show(self, scores: Float[np.ndarray, N]) -> None:
        valid, said = self.corpus.valid, ("do not bind", "bind")
        self.shown = [
            Sample(
                source=" and ".join(valid.names[number] for number in valid.pairs[row]),
                target=said[valid.labels[row]],
                output=f"{said[int(scores[row] > 0)]} ({1 / (1 + np.exp(-scores[row])):.0%})",
            )
            for row in range(0, len(valid), max(1, len(valid) // SAMPLES))
        ][:SAMPLES]

    def _plan(self, epoch: int) -> list[Rows]:
        """Every pair once, in batches of similar lengths in random order."""
        rng, size = np.random.default_rng([self.recipe.seed, epoch]), self.recipe.training.batch
        order: Rows = rng.permutation(len(self.corpus.train))
        batches: list[Rows] = []
        for start in range(0, len(order), WINDOW * size):
            some = order[start : start + WINDOW * size]
            some = some[np.argsort(self.make.lengths(some), kind="stable")]
            batches += np.array_split(some, -(-len(some) // size))
        return [batches[number] for number in rng.permutation(len(batches))]


@torch.inference_mode()
def all_scores(
    model: nn.Module, found: ProteinPairs, device: torch.device, poll: Poll = lambda: None
) -> Float[np.ndarray, N]:
    """The logits of all pairs, whose proteins are read whole; pairs of similar length are read together."""
    make = InteractionBatches(found)
    lengths = make.lengths(np.arange(len(found)))
    order, scores, start = np.argsort(-lengths, kind="stable"), np.empty(len(found)), 0
    while start < len(order):
        poll()
        rows = order[start : start + max(1, RESIDUES // (2 * int(lengths[order[start]])))]
        scores[rows] = _scores(model, make(rows, (0, 0)).to(device)).float().cpu().numpy()
        start += len(rows)
    return scores


def _scores(model: Forward, batch: InteractionBatch) -> Float[Tensor, B]:
    found: Tensor = model(batch.first, batch.first_mask, batch.second, batch.second_mask).score
    return found
