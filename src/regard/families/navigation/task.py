"""Ranking paths by instructions: a softmax over candidates, one of which succeeds (Majumdar et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.data.batch import TensorBatch
from regard.data.loader import Loader, Rows
from regard.data.text.masking import Masking
from regard.data.tokenizers.training import VocabularyConfig
from regard.data.tokenizers.unknown_words import unknown_tokens
from regard.errors import ConfigError, DataError
from regard.families.catalog import MODELS
from regard.families.navigation.data import HiddenBatch, HiddenBatches, PathBatch, PathRows, RankingBatches
from regard.families.navigation.features import FEATURES, LOCATIONS
from regard.families.navigation.path_lstm import PathLstmConfig
from regard.families.navigation.prepare import PATH_PARTS, PathPart, PathPreparation, expected_scores, one_hot
from regard.families.navigation.recipe import PathPairsRecipe, PathsSection, RankingRecipe
from regard.families.navigation.vlnbert import score_candidates
from regard.families.translation.metrics import SAMPLES, Sample
from regard.families.vision_language.model import VilbertConfig, VilbertOutput
from regard.training.initial_model import build_two_streams
from regard.training.losses import Loss, cross_entropy
from regard.training.recipe.sections import ExampleTrainingSection, ModelSection, WordsSection
from regard.training.safeguards import Poll
from regard.training.task import Forward, Values, loader_options
from regard.training.text_task import TextTask

B = TypeVar("B", bound=TensorBatch)


class PathRecipe(Protocol):
    """The sections that all recipes of paths have."""

    @property
    def seed(self) -> int: ...
    @property
    def model(self) -> ModelSection: ...
    @property
    def words(self) -> WordsSection: ...
    @property
    def data(self) -> PathsSection: ...
    @property
    def tokenizer(self) -> VocabularyConfig: ...
    @property
    def training(self) -> ExampleTrainingSection: ...


class PathTask(TextTask[B]):
    """Instructions with paths through houses; tokenizer and settings are saved beside the weights."""

    @classmethod
    def prepare(cls, recipe: PathRecipe, folder: Path, poll: Poll) -> None:
        """Read the paths, make the candidates, and learn the vocabulary."""
        _preparation(recipe).prepare(folder, poll)

    def __init__(self, recipe: PathRecipe, folder: Path, device: torch.device) -> None:
        self.device = device
        self.corpus = _preparation(recipe).open(folder)
        self.tokenizer = self.corpus.tokenizer
        found = {part: self.corpus.rows(part) for part in PATH_PARTS}
        self.rows: dict[PathPart, PathRows] = {part: rows for part, (rows, _) in found.items()}
        cut, tokens = sum(count for _, count in found.values()), [t for ids in self.rows["train"].ids for t in ids]
        unknown = unknown_tokens({"text": tokens.count(self.tokenizer.unknown or 0) / max(1, len(tokens))})
        self.summary = (
            f"{self.corpus.summary}; {cut:,} cut to {recipe.data.longest} tokens{unknown}; from {recipe.data.train}"
        )

    def new_model(self, recipe: PathRecipe, head: str) -> nn.Module:
        """A model with a head, as wide as the features of steps."""
        heads = {"head": head} if "head" in MODELS[recipe.model.name].config.model_fields else {}
        model = build_two_streams(
            recipe.model, recipe.words.init, self.tokenizer,
            region_features=FEATURES, region_places=LOCATIONS, **heads,
        )  # fmt: skip
        assert isinstance(model.config, VilbertConfig | PathLstmConfig)
        longest = model.config.longest
        if recipe.data.longest > longest:
            raise ConfigError(f"data.longest is {recipe.data.longest}, but the model reads {longest} tokens; lower it")
        return model

    def save(self, folder: Path) -> None:
        """Write the tokenizer, and how candidates are made, beside the weights."""
        super().save(folder)
        self.corpus.settings.save(folder)


def _preparation(recipe: PathRecipe) -> PathPreparation:
    return PathPreparation(recipe.data, recipe.tokenizer, recipe.model.init or recipe.words.init, recipe.seed)


def shuffled(rows: Rows, batch: int, seed: int, epoch: int) -> list[Rows]:
    """The rows of every batch of an epoch: every row once, in batches whose sizes differ by one at most."""
    order = np.random.default_rng([seed, epoch]).permutation(rows)
    return np.array_split(order, -(-len(order) // batch))


def in_order(count: int, batch: int) -> list[Rows]:
    """All rows in order."""
    return np.array_split(np.arange(count), max(1, -(-count // batch))) if count else []


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
