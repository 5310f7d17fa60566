"""Do two proteins bind: the cross-entropy of yes and no (after Chen et al. 2019), and the metrics of training and of
`regard evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from regard.data.loader import Loader, Rows
from regard.errors import DataError
from regard.families.catalog import MODELS
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.proteins.data import (
    TEST,
    VALID,
    InteractionBatch,
    InteractionBatches,
    InteractionCorpus,
    ProteinPairs,
    divided,
    read_pairs,
    sequences_beside,
    similar_lengths,
)
from regard.families.proteins.recipe import InteractionsRecipe
from regard.training.losses import Loss
from regard.training.recipe.load import trained_recipe
from regard.training.safeguards import Poll
from regard.training.scores import accuracy, f1, ranks
from regard.training.task import SAMPLES, Forward, Sample, SupervisedTask, Values, loader_options

if TYPE_CHECKING:
    from regard.families.proteins.pipeline import InteractionPredictor


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
    def write(cls, recipe: InteractionsRecipe, folder: Path, poll: Poll) -> None:
        InteractionCorpus.write(folder, recipe.data)

    def __init__(self, recipe: InteractionsRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.corpus = InteractionCorpus.open(folder)
        self.summary = f"{self.corpus.summary}; from {recipe.data.train}"
        if recipe.training.validate_every and not len(self.corpus.valid):
            raise DataError("there is no pair for validation; raise data.held_out, or set training.validate_every = 0")
        self.make = InteractionBatches(
            self.corpus.train, longest=recipe.data.longest, hidden=recipe.data.hidden, seed=recipe.seed
        )
        self.loader = Loader(self._plan, self.make, **loader_options(recipe.training, device))

    def build(self) -> nn.Module:
        section = self.recipe.model
        return MODELS[section.name].model(section.config(source_vocab=1, target_vocab=1, pad=0))

    def loss(self, model: Forward, batch: InteractionBatch) -> Loss:
        """The cross-entropy of yes and no, summed over pairs."""
        scores: Float[Tensor, B] = model(*batch.inputs).float()
        total = functional.binary_cross_entropy_with_logits(scores, batch.labels, reduction="sum")
        return Loss.of(total, len(scores))

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """The loss, and how well the pairs for validation are told apart."""
        valid, said = self.corpus.valid, ("do not bind", "bind")
        scores, values = self._measured(model, valid, poll)
        self.shown = [
            Sample(
                source=" and ".join(valid.names[number] for number in valid.pairs[row]),
                target=said[valid.labels[row]],
                output=f"{said[int(scores[row] > 0)]} ({1 / (1 + np.exp(-scores[row])):.0%})",
            )
            for row in range(0, len(valid), max(1, len(valid) // SAMPLES))
        ][:SAMPLES]
        return values

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """The same on the pairs set aside for testing, and what the proteins' training pairs alone would achieve."""
        part = self.corpus.test
        if not len(part):
            return {}
        by_degree = binary_scores(self.corpus.settings.degree_scores(part), part.labels)
        degree = {f"degree_{name}": by_degree[name] for name in ("accuracy", "auc")}
        return self._measured(model, part, poll)[1] | degree

    def save(self, folder: Path) -> None:
        self.corpus.settings.save(folder)

    def _measured(self, model: nn.Module, part: ProteinPairs, poll: Poll) -> tuple[Float[np.ndarray, N], Values]:
        scores = all_scores(model, part, self.device, poll)
        labels = torch.from_numpy(part.labels.astype(np.float64))
        loss = functional.binary_cross_entropy_with_logits(torch.from_numpy(scores), labels)
        return scores, {"loss": float(loss), **binary_scores(scores, part.labels)}

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
    make, scores = InteractionBatches(found), np.empty(len(found))
    for rows in similar_lengths(make.lengths(np.arange(len(found))), RESIDUES):
        poll()
        scores[rows] = model(*make(rows, (0, 0)).to(device).inputs).float().cpu().numpy()
    return scores


UNSEEN = ("both proteins in training pairs", "one protein in no training pair", "both proteins in no training pair")


def evaluate_interactions(predictor: InteractionPredictor, data: str, options: EvaluationOptions) -> Evaluation:
    """Accuracy, precision, recall, F1 and area under the curve on a table of pairs, in groups by how many proteins of
    a pair training has seen. Of the model's own table, the pairs that it was trained on are left out.

    Pairs whose protein has no sequence are left out and named. The sequences lie beside the pairs, or are those of the
    model's recipe.
    """
    recipe, unread = trained_recipe(options.folder), list[str]()
    assert recipe is None or isinstance(recipe, InteractionsRecipe)
    found = read_pairs(data, _sequences(data, recipe), unread)
    scores: dict[str, object] = {}
    for title, some in _parts(predictor, found, recipe is not None and Path(data).name == Path(recipe.data.train).name):
        measured, unseen = all_scores(predictor.model, some, predictor.device), predictor.settings.unseen(some)
        scores[f"{title}: {len(some):,} pairs"] = _beside_baselines(predictor, some, measured)
        for count, name in enumerate(UNSEEN):
            rows = np.flatnonzero(unseen == count)
            if 0 < len(rows) < len(some):
                group = _beside_baselines(predictor, some.some(rows), measured[rows])
                scores[f"{title}, {name}: {len(rows):,} pairs"] = group
    return Evaluation(scores, unread)


def _beside_baselines(
    predictor: InteractionPredictor, some: ProteinPairs, scores: Float[np.ndarray, N]
) -> dict[str, dict[str, float]]:
    """One row of metrics for the model, for the log odds of the proteins' training pairs, and for the usual label."""
    counts = np.array(list(predictor.settings.counts.values()), dtype=np.int64).reshape(-1, 2).sum(axis=0)
    usual = np.full(len(some), 1.0 if counts[1] > counts[0] else -1.0)
    return {
        "this model": binary_scores(scores, some.labels),
        "degree of the proteins": binary_scores(predictor.settings.degree_scores(some), some.labels),
        "most frequent label": binary_scores(usual, some.labels),
    }


def _parts(predictor: InteractionPredictor, found: ProteinPairs, own: bool) -> list[tuple[str, ProteinPairs]]:
    if not own:
        return [("all", found)]
    settings = predictor.settings
    parts = divided(found, settings.split, settings.held_out, settings.tested)
    held = {"validation": np.flatnonzero(parts == VALID), "test": np.flatnonzero(parts == TEST)}
    if not any(map(len, held.values())):
        raise DataError(f"the model was trained on all {len(found):,} pairs; give others to measure on")
    return [(name, found.some(rows)) for name, rows in held.items() if len(rows)]


def _sequences(data: str, recipe: InteractionsRecipe | None) -> Path:
    try:
        return sequences_beside(data)
    except DataError:
        if recipe is None:
            raise
        return Path(recipe.data.sequences) if recipe.data.sequences else sequences_beside(recipe.data.train)
