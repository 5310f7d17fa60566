"""Do two proteins bind: the cross-entropy of yes and no (after Chen et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.config import Config
from regard.data.loader import Loader, Rows
from regard.data.proteins.interactions import InteractionBatch, InteractionBatches, ProteinPairs
from regard.errors import DataError
from regard.models.catalog import MODELS
from regard.training.evaluation.interactions import binary_scores
from regard.training.evaluation.translation import SAMPLES, Sample
from regard.training.losses import Loss
from regard.training.prepare.interactions import InteractionPreparation
from regard.training.safeguards import Poll
from regard.training.tasks.base import Forward, SupervisedTask, Values, loader_options
from regard.training.tasks.interactions_recipe import InteractionsRecipe

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
