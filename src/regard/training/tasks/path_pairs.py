"""Pre-training on pairs of instruction and path: hidden words, hidden steps, and whether the two belong together
(Majumdar et al. 2020, after Lu et al. 2019)."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.data.loader import Loader, Rows
from regard.data.paths.batches import HiddenBatch, HiddenBatches
from regard.data.text.masking import Masking
from regard.models.vilbert import VilbertOutput
from regard.training.losses import Loss, cross_entropy
from regard.training.prepare.paths import PathPart
from regard.training.safeguards import Poll
from regard.training.tasks.base import Forward, Values, loader_options
from regard.training.tasks.path_base import PathTask, in_order, shuffled
from regard.training.tasks.path_pairs_recipe import PathPairsRecipe

VALIDATION_SEED = 0  # of what is hidden at every validation, the same for every run


class PathPairsTask(PathTask[HiddenBatch]):
    """Instructions with their paths, in which words and steps are hidden."""

    capturable = False  # the loss of words selects the hidden ones, whose number differs
    recipe: PathPairsRecipe

    def __init__(self, recipe: PathPairsRecipe, folder: Path, device: torch.device) -> None:
        super().__init__(recipe, folder, device)
        self.recipe = recipe
        self.loader = Loader(self._plan, self._batches("train", recipe.seed), **loader_options(recipe.training, device))

    def build(self) -> nn.Module:
        """A model with the heads of pre-training."""
        return self.new_model(self.recipe, "pretraining")

    def loss(self, model: Forward, batch: HiddenBatch) -> Loss:
        """The sum of the mean losses of words, steps and matches, times the number of hidden words, or 1 if there is
        none because all paths were exchanged."""
        output = _read(model, batch, factored=self.factored)
        assert output.word_logits is not None and output.match is not None
        masked, hidden = batch.labels_mask.sum().clamp(min=1), batch.hidden.sum()
        words = cross_entropy(output.word_logits, batch.labels, batch.labels_mask)
        steps = _step_errors(output, batch).sum() / hidden.clamp(min=1)
        match = functional.cross_entropy(output.match.float(), batch.mismatched)
        return Loss(words + masked * (steps + match), masked)

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """The losses together, perplexity and accuracy of words, the error of steps, and the accuracy of matches."""
        return self._measured(model, "valid", poll)

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """The same in the houses set aside for testing; empty if there are none."""
        return self._measured(model, "test", poll) if len(self.rows["test"].store) else {}

    @torch.inference_mode()
    def _measured(self, model: nn.Module, part: PathPart, poll: Poll) -> Values:
        make, sums = self._batches(part, VALIDATION_SEED), torch.zeros(8, dtype=torch.float64)
        for rows in in_order(len(self.rows[part].store), self.recipe.training.batch):
            poll()
            batch = make(rows, (0, 0)).to(self.device)
            output = _read(model, batch)
            assert isinstance(output.word_logits, Tensor) and output.match is not None
            right = (output.word_logits.argmax(-1) == batch.labels) & batch.labels_mask
            counted = (
                cross_entropy(output.word_logits, batch.labels, batch.labels_mask), right, batch.labels_mask,
                _step_errors(output, batch), batch.hidden,
                functional.cross_entropy(output.match.float(), batch.mismatched, reduction="sum"),
                output.match.argmax(-1) == batch.mismatched, torch.ones_like(batch.mismatched),
            )  # fmt: skip
            sums += torch.stack([each.sum().double() for each in counted]).cpu()
        words, right, masked, steps, hidden, match, matched, pairs = sums.tolist()
        masked, hidden = max(masked, 1.0), max(hidden, 1.0)  # where all paths were exchanged, nothing is hidden
        return {
            "loss": words / masked + steps / hidden + match / pairs,
            "perplexity": math.exp(min(words / masked, 100.0)),
            "accuracy": right / masked,
            "step_error": steps / hidden,
            "match": matched / pairs,
        }

    def _batches(self, part: PathPart, seed: int) -> HiddenBatches:
        data = self.recipe.data
        return HiddenBatches(self.rows[part], Masking(self.tokenizer, data.share), data.mismatched, seed)

    def _plan(self, epoch: int) -> list[Rows]:
        rows = np.arange(len(self.rows["train"].store))
        return shuffled(rows, self.recipe.training.batch, self.recipe.seed, epoch)


def _read(model: Forward, batch: HiddenBatch, *, factored: bool = False) -> VilbertOutput:
    output: VilbertOutput = model(
        batch.words, batch.words_mask, batch.features, batch.places, batch.step_mask, factored=factored
    )
    return output


def _step_errors(output: VilbertOutput, batch: HiddenBatch) -> Tensor:
    """The mean squared error of each hidden step's numbers; 0 for the others."""
    assert output.region_logits is not None
    each = (output.region_logits.float() - batch.targets).square().mean(dim=-1)
    return each.masked_fill(~batch.hidden, 0.0)
