"""Ranking paths by instructions: a softmax over candidates, one of which succeeds (Majumdar et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.data.loader import Loader, Rows
from regard.data.paths.batches import PathBatch, PathRows, RankingBatches
from regard.errors import DataError
from regard.models.vlnbert import score_candidates
from regard.training.evaluation.navigation import expected_scores, one_hot
from regard.training.evaluation.translation import SAMPLES, Sample
from regard.training.losses import Loss
from regard.training.prepare.paths import PathPart
from regard.training.safeguards import Poll
from regard.training.tasks.base import Forward, Values, loader_options
from regard.training.tasks.path_base import PathTask, in_order, shuffled
from regard.training.tasks.path_ranking_recipe import RankingRecipe

PATHS = 1024  # that are scored at once when a model is measured


class RankingTask(PathTask[PathBatch]):
    """Instructions with candidate paths, of which those that end near the goal succeed."""

    recipe: RankingRecipe

    def __init__(self, recipe: RankingRecipe, folder: Path, device: torch.device) -> None:
        super().__init__(recipe, folder, device)
        self.recipe, rows = recipe, self.rows["train"]
        store = rows.store
        usable = store.succeeds.any(axis=1) & (store.there & ~store.succeeds).any(axis=1)
        self.usable: Rows = np.flatnonzero(usable[store.routes])
        if not len(self.usable):
            raise DataError(f"{recipe.data.train}: no candidate path succeeds; raise data.candidates.count")
        ignored = len(store) - len(self.usable)
        self.summary += f"; {ignored:,} ignored, since none of their candidates succeeds or none fails"
        self.shown: list[Sample] = []
        sides = self._sides() if recipe.data.mirror else None
        make = RankingBatches(rows, recipe.data.failures, recipe.seed, sides)
        self.loader = Loader(self._plan, make, **loader_options(recipe.training, device))

    def build(self) -> nn.Module:
        """A model that gives a score."""
        return self.new_model(self.recipe, "score")

    def loss(self, model: Forward, batch: PathBatch) -> Loss:
        """The cross-entropy of the candidate that succeeds."""
        scores = _scores(model, batch)
        return Loss(-scores.log_softmax(dim=-1)[:, 0].sum(), torch.full((), len(scores), device=scores.device))

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """Success, SPL and error in houses not trained on, and the same in those trained on if there are paths."""
        values, chosen = self._measured(model, "valid", poll)
        self._show(chosen)
        if len(self.rows["seen"].store):
            seen, _ = self._measured(model, "seen", poll)
            values |= {f"seen_{name}": seen[name] for name in ("success", "spl", "error")}
        return values

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """The same in the houses set aside for testing; empty if there are none."""
        return self._measured(model, "test", poll)[0] if len(self.rows["test"].store) else {}

    def samples(self) -> Sequence[Sample]:
        """Some instructions, where they lead, and where the model went."""
        return self.shown

    def _measured(self, model: nn.Module, part: PathPart, poll: Poll) -> tuple[Values, Rows]:
        """The metrics of a part, and the candidate that is chosen for each instruction."""
        rows = self.rows[part]
        scores, good = all_scores(model, rows, self.device, poll), rows.store.succeeds[rows.store.routes]
        found, best = torch.from_numpy(good), scores.argmax(dim=-1).numpy()
        errors = scores.logsumexp(dim=-1) - scores.masked_fill(~found, float("-inf")).logsumexp(dim=-1)
        loss = float(errors[found.any(dim=-1)].mean()) if good.any() else float("nan")
        return {"loss": loss, **expected_scores(rows.store, one_hot(best, scores.shape[1]))}, best

    def _show(self, chosen: Rows) -> None:
        store = self.rows["valid"].store
        self.shown = [
            Sample(
                source=store.instructions[row],
                target=f"{store.shortest[store.routes[row]]:.1f} m to walk",
                output=f"stops {store.errors[store.routes[row], chosen[row]]:.1f} m from the goal",
            )
            for row in range(0, len(store), max(1, len(store) // SAMPLES))
        ][:SAMPLES]

    def _sides(self) -> tuple[int, int]:
        """The tokens of "left" and "right"."""
        found = [each.ids[1:-1] for each in self.tokenizer.encode(["left", "right"])]
        if any(len(ids) != 1 or ids[0] == self.tokenizer.unknown for ids in found):
            raise DataError(
                "data.mirror exchanges the words left and right, which are no single tokens of this vocabulary; raise "
                "tokenizer.size, or set data.mirror = false"
            )
        return found[0][0], found[1][0]

    def _plan(self, epoch: int) -> list[Rows]:
        return shuffled(self.usable, self.recipe.training.batch, self.recipe.seed, epoch)


@torch.inference_mode()
def all_scores(model: nn.Module, rows: PathRows, device: torch.device, poll: Poll) -> Float[Tensor, "N C"]:
    """The scores of all candidates of all instructions; -inf where there is no candidate."""
    count = rows.store.candidates.shape[1]
    found = torch.empty(len(rows.store), count)
    for some in in_order(len(rows.store), max(1, PATHS // count)):
        poll()
        found[some] = _scores(model, rows.all_candidates(some).to(device)).cpu()
    return found


def _scores(model: Forward, batch: PathBatch) -> Float[Tensor, "B C"]:
    return score_candidates(model, batch.words, batch.words_mask, batch.features, batch.places, batch.step_mask)
