"""Losses and metrics of paths: hidden words and steps, a softmax over candidates one of which succeeds (Majumdar et al.
2020), and `regard evaluate`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.data.batch import TensorBatch
from regard.data.loader import Loader, Rows, in_batches
from regard.data.sources import Part
from regard.data.text.masking import Masking
from regard.data.tokenizers.unknown_words import unknown_tokens
from regard.errors import ConfigError, DataError
from regard.families.catalog import MODELS
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.navigation.data import (
    PATH_PARTS,
    SUCCESS,
    HiddenBatch,
    HiddenBatches,
    LengthPrior,
    PathBatch,
    PathCorpus,
    PathPart,
    PathRows,
    PathStore,
    RankingBatches,
    built_in_paths,
    read_paths,
    store_routes,
    write_corpus,
)  # fmt: skip
from regard.families.navigation.features import FEATURES, LOCATIONS, Geometry
from regard.families.navigation.houses import Route
from regard.families.navigation.path_lstm import PathLstmConfig
from regard.families.navigation.recipe import PathPairsRecipe, PathRecipe, RankingRecipe
from regard.families.navigation.synthetic import HOUSES
from regard.families.navigation.vlnbert import score_candidates
from regard.families.vision_language.model import VilbertConfig, VilbertOutput, build_two_streams
from regard.training.losses import Loss, cross_entropy
from regard.training.recipe.load import trained_recipe
from regard.training.safeguards import Poll
from regard.training.task import SAMPLES, Forward, Sample, Values, loader_options
from regard.training.text_task import TextTask

if TYPE_CHECKING:
    from regard.families.navigation.pipeline import Navigator

B = TypeVar("B", bound=TensorBatch)
VALIDATION_SEED = 0  # of what is hidden at every validation, the same for every run
PATHS = 1024  # that are scored at once when a model is measured
NOTE = "no images: geometry and language alone"
ROUTES = 5  # of a built-in house that is measured on
FIRST_NEW = 1000  # number of the first built-in house that no recipe trains on


class PathTask(TextTask[B]):
    """Instructions with paths through houses; tokenizer and settings are saved beside the weights."""

    recipe: PathRecipe

    @classmethod
    def write(cls, recipe: PathRecipe, folder: Path, poll: Poll) -> None:
        write_corpus(recipe, folder, poll)

    def __init__(self, recipe: PathRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.corpus = corpus = PathCorpus.open(folder)
        self.tokenizer = corpus.tokenizer
        self.rows: dict[PathPart, PathRows] = {
            part: PathRows.encoded(corpus.stores[part], corpus.geometry, self.tokenizer, corpus.settings.longest)
            for part in PATH_PARTS
        }
        cut = sum(rows.cut for rows in self.rows.values())
        tokens = [token for ids in self.rows["train"].ids for token in ids]
        unknown = unknown_tokens({"text": tokens.count(self.tokenizer.unknown or 0) / max(1, len(tokens))})
        self.summary = (
            f"{corpus.summary}; {cut:,} cut to {recipe.data.longest} tokens{unknown}; from {recipe.data.train}"
        )

    def new_model(self, head: str) -> nn.Module:
        """A model with a head, as wide as the features of steps."""
        recipe = self.recipe
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

    def shuffled(self, rows: Rows, epoch: int) -> list[Rows]:
        """The rows of every batch of an epoch: every row once, in batches whose sizes differ by one at most."""
        order = np.random.default_rng([self.recipe.seed, epoch]).permutation(rows)
        return in_batches(order, self.recipe.training.batch)

    def save(self, folder: Path) -> None:
        """Write the tokenizer, and how candidates are made, beside the weights."""
        super().save(folder)
        self.corpus.settings.save(folder)


class PathPairsTask(PathTask[HiddenBatch]):
    """Instructions with their paths, in which words and steps are hidden."""

    capturable = False  # the loss of words selects the hidden ones, whose number differs
    recipe: PathPairsRecipe

    def __init__(self, recipe: PathPairsRecipe, folder: Path, device: torch.device) -> None:
        super().__init__(recipe, folder, device)
        train = self.rows["train"]
        plan = partial(self.shuffled, np.arange(len(train)))
        self.loader = Loader(plan, self._batches(train, recipe.seed), **loader_options(recipe.training, device))

    def build(self) -> nn.Module:
        return self.new_model("pretraining")

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

    def held_out(self, part: Part) -> PathRows:
        return self.rows[part]

    @torch.inference_mode()
    def measured(self, model: nn.Module, data: PathRows, poll: Poll) -> Values:
        """The losses together, perplexity and accuracy of words, the error of steps, and the accuracy of matches."""
        make, sums = self._batches(data, VALIDATION_SEED), torch.zeros(8, dtype=torch.float64)
        for rows in in_batches(np.arange(len(data)), self.recipe.training.batch):
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
            sums += torch.stack([values.sum().double() for values in counted]).cpu()
        words, right, masked, steps, hidden, match, matched, pairs = sums.tolist()
        masked, hidden = max(masked, 1.0), max(hidden, 1.0)  # where all paths were exchanged, nothing is hidden
        return {
            "loss": words / masked + steps / hidden + match / pairs,
            "perplexity": math.exp(min(words / masked, 100.0)),
            "accuracy": right / masked,
            "step_error": steps / hidden,
            "match": matched / pairs,
        }

    def _batches(self, rows: PathRows, seed: int) -> HiddenBatches:
        data = self.recipe.data
        return HiddenBatches(rows, Masking(self.tokenizer, data.share), data.mismatched, seed)


def _read(model: Forward, batch: HiddenBatch, *, factored: bool = False) -> VilbertOutput:
    return model(batch.words, batch.words_mask, batch.features, batch.places, batch.step_mask, factored=factored)


def _step_errors(output: VilbertOutput, batch: HiddenBatch) -> Tensor:
    """The mean squared error of each hidden step's numbers; 0 for the others."""
    assert output.region_logits is not None
    errors = (output.region_logits.float() - batch.targets).square().mean(dim=-1)
    return errors.masked_fill(~batch.hidden, 0.0)


class RankingTask(PathTask[PathBatch]):
    """Instructions with candidate paths, of which those that end near the goal succeed."""

    recipe: RankingRecipe

    def __init__(self, recipe: RankingRecipe, folder: Path, device: torch.device) -> None:
        super().__init__(recipe, folder, device)
        rows = self.rows["train"]
        usable = rows.store.usable
        if not len(usable):
            raise DataError(f"{recipe.data.train}: no candidate path succeeds; raise data.candidates.count")
        ignored = len(rows.store) - len(usable)
        self.summary += f"; {ignored:,} ignored, since none of their candidates succeeds or none fails"
        sides = self._sides() if recipe.data.mirror else None
        make = RankingBatches(rows, recipe.data.failures, recipe.seed, sides)
        self.loader = Loader(partial(self.shuffled, usable), make, **loader_options(recipe.training, device))

    def build(self) -> nn.Module:
        return self.new_model("score")

    def loss(self, model: Forward, batch: PathBatch) -> Loss:
        return Loss.of(ranking_loss(model, batch), len(batch.words))

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """Success, SPL and error in houses not trained on, and the same in those trained on if there are paths."""
        values, chosen = self._measured(model, "valid", poll)
        self._show(chosen)
        if len(self.rows["seen"].store):
            seen, _ = self._measured(model, "seen", poll)
            values |= {f"seen_{name}": seen[name] for name in ("success", "spl", "error")}
        return values

    def test(self, model: nn.Module, poll: Poll) -> Values:
        return self._measured(model, "test", poll)[0] if len(self.rows["test"].store) else {}

    def _measured(self, model: nn.Module, part: PathPart, poll: Poll) -> tuple[Values, Rows]:
        """The metrics of a part, and the candidate that is chosen for each instruction."""
        rows = self.rows[part]
        scores, good = all_scores(model, rows, self.device, poll), rows.store.succeeds[rows.store.routes]
        right, best = torch.from_numpy(good), scores.argmax(dim=-1).numpy()
        errors = scores.logsumexp(dim=-1) - scores.masked_fill(~right, float("-inf")).logsumexp(dim=-1)
        loss = float(errors[right.any(dim=-1)].mean()) if good.any() else float("nan")
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
        left, right = (row.ids[1:-1] for row in self.tokenizer.encode(["left", "right"]))
        if any(len(ids) != 1 or ids[0] == self.tokenizer.unknown for ids in (left, right)):
            raise DataError(
                "data.mirror exchanges the words left and right, which are not single tokens of this vocabulary; raise "
                "tokenizer.size, or set data.mirror = false"
            )
        return left[0], right[0]


def ranking_loss(model: Forward, batch: PathBatch) -> Float[Tensor, ""]:
    """The summed cross-entropy of the first candidate, which succeeds."""
    return -candidate_scores(model, batch).log_softmax(dim=-1)[:, 0].sum()


def candidate_scores(model: Forward, batch: PathBatch) -> Float[Tensor, "B C"]:
    """The scores of the candidates of a batch; -inf where there is no candidate."""
    return score_candidates(model, batch.words, batch.words_mask, batch.features, batch.places, batch.step_mask)


@torch.inference_mode()
def all_scores(model: nn.Module, rows: PathRows, device: torch.device, poll: Poll) -> Float[Tensor, "N C"]:
    """The scores of all candidates of all instructions."""
    count = rows.store.candidates.shape[1]
    scores = torch.empty(len(rows.store), count)
    for some in in_batches(np.arange(len(rows.store)), max(1, PATHS // count)):
        poll()
        scores[some] = candidate_scores(model, rows.all_candidates(some).to(device)).cpu()
    return scores


# Metrics

Chosen = Float[np.ndarray, "N C"]  # for every instruction, the probability with which each candidate is taken


def expected_scores(store: PathStore, chosen: Chosen) -> dict[str, float]:
    """Success (the path ends within 3 m of the goal), the mean way left, and success weighted by path length (SPL).

    Where several candidates may be taken, these are expected values.
    """
    rows = store.routes
    errors, lengths, shortest = store.errors[rows], store.lengths[rows], store.shortest[rows, None]
    success = errors < SUCCESS
    efficiency = shortest / np.maximum(np.maximum(lengths, shortest), 1e-6)
    left = np.where(store.there[rows], errors, 0.0)
    return {
        "success": float((chosen * success).sum(axis=1).mean()),
        "error": float((chosen * left).sum(axis=1).mean()),
        "spl": float((chosen * success * efficiency).sum(axis=1).mean()),
    }


def one_hot(best: Int[np.ndarray, " N"], count: int) -> Chosen:
    """The choice of one candidate for each instruction."""
    return np.eye(count)[best]


def baselines(store: PathStore, prior: LengthPrior) -> dict[str, dict[str, float]]:
    """What choosing without reading achieves, and the best that these candidates allow."""
    there, rows = store.there, store.routes
    direct = np.where(store.direct.any(axis=1, keepdims=True), store.direct, there)
    likely = np.where(there, prior_scores(store, prior), -np.inf).argmax(axis=1)
    closest = np.where(there, store.errors, np.inf).argmin(axis=1)
    count = there.shape[1]
    choices = {
        "random": _uniform(there)[rows],
        "shortest to each end": _uniform(direct)[rows],
        "length prior": one_hot(likely[rows], count),
        "best candidate": one_hot(closest[rows], count),
    }
    return {name: expected_scores(store, chosen) for name, chosen in choices.items()}


def _uniform(among: np.ndarray) -> np.ndarray:
    return among / among.sum(axis=1, keepdims=True)


def prior_scores(store: PathStore, prior: LengthPrior) -> Float[np.ndarray, "R C"]:
    """The log-probability of each candidate's number of viewpoints and, as a normal variable, of its length."""
    sizes = (store.candidates >= 0).sum(axis=-1)
    table = np.full(max(sizes.max(), *prior.viewpoints) + 1, math.log(1e-6))
    for size, share in prior.viewpoints.items():
        table[size] = math.log(share)
    return table[sizes] - 0.5 * ((store.lengths - prior.mean) / prior.deviation) ** 2


def evaluate_paths(navigator: Navigator, data: str, options: EvaluationOptions) -> Evaluation:
    """Success, error in metres and SPL on a file of paths, or in built-in houses that no recipe uses.

    Houses are grouped by whether the model was trained, validated or tested on them. Paths that it was trained on are
    left out. Bad paths are left out and named.
    """
    unread: list[str] = []
    if data == HOUSES:
        numbers = range(FIRST_NEW, FIRST_NEW + max(1, options.count // ROUTES))
        houses, routes = built_in_paths(options.seed, numbers, ROUTES)
    else:
        houses, routes = read_paths(data, skipped=unread)
    groups = {name: some for name, some in _groups(navigator, routes, _is_own(data, options.folder)) if some}
    if not groups and unread:
        raise DataError(f"{data}: has no path to measure on; {len(unread)} are left out, the first because {unread[0]}")
    if not groups:
        raise DataError(f"{data}: has no path to measure on: all are in houses that the model was trained on")
    scores: dict[str, object] = {"note": NOTE}
    for name, some in groups.items():
        scans = sorted({route.scan for route in some})
        geometry = Geometry.of(houses[scan] for scan in scans)
        store = store_routes(some, houses, geometry, navigator.settings.candidates)
        title = f"{name}: {len(scans)} houses, {len(some):,} paths, {len(store):,} instructions"
        scores[title] = _measured(navigator, store, geometry)
    return Evaluation(scores, unread)


def _measured(navigator: Navigator, store: PathStore, geometry: Geometry) -> dict[str, dict[str, float]]:
    """One row of metrics for the model, for the model with other instructions, and for each baseline."""
    longest = min(navigator.settings.longest, navigator.config.longest)
    rows = PathRows.encoded(store, geometry, navigator.tokenizer, longest)
    half = len(rows.ids) // 2
    exchanged = replace(rows, ids=rows.ids[half:] + rows.ids[:half])
    measured = {}
    for name, some in (("this model", rows), ("with other instructions", exchanged)):
        scores = all_scores(navigator.model, some, navigator.device, lambda: None)
        measured[name] = expected_scores(store, one_hot(scores.argmax(dim=-1).numpy(), scores.shape[1]))
    return measured | baselines(store, navigator.settings.prior)


def _groups(navigator: Navigator, routes: list[Route], own: bool) -> Iterator[tuple[str, list[Route]]]:
    """The routes by what their house was to the model; `own`: they are those that the model was trained on."""
    settings = navigator.settings
    parts = {
        "houses trained on": set(settings.trained), "houses for validation": set(settings.validated),
        "houses for testing": set(settings.tested),
    }  # fmt: skip
    for name, scans in parts.items():
        if not own or scans != set(settings.trained):
            yield name, [route for route in routes if route.scan in scans]
    every = set().union(*parts.values())
    yield "other houses", [route for route in routes if route.scan not in every]


def _is_own(data: str, folder: Path) -> bool:
    """Whether a file is the one that the model in a folder was trained on."""
    trained = getattr(getattr(trained_recipe(folder), "data", None), "train", "")
    return Path(data).name == Path(str(trained)).name
