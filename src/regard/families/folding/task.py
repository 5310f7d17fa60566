"""Folding: distances and backbones of proteins, learnt from chains of known structure (Jumper et al. 2021)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.checkpoints import write_folder
from regard.data.loader import Loader, Rows
from regard.errors import DataError
from regard.families.catalog import MODELS
from regard.families.folding.data import (
    FoldBatch,
    FoldBatches,
    FoldExample,
    FoldingSettings,
    built_in_chains,
    examples_of,
    find_alignments,
    find_chains,
    load_examples,
    save_examples,
    truth,
    unusable,
)
from regard.families.folding.metrics import (
    LONG_RANGE,
    confidence_loss,
    contact_prior,
    distogram_loss,
    lddt,
    mean,
    partly_clamped_fape,
    score_chain,
    summed_up,
)
from regard.families.folding.model import EvoformerConfig, Folded, distance_edges
from regard.families.folding.pipeline import FoldRequest, Prediction, StructurePredictor
from regard.families.folding.point_attention import Frames
from regard.families.folding.recipe import PRECISION, FoldingRecipe, FoldingSection
from regard.families.folding.structures import Chain
from regard.families.translation.metrics import SAMPLES, Sample
from regard.training.initial_model import initialised
from regard.training.losses import Loss
from regard.training.safeguards import Poll
from regard.training.task import Forward, SupervisedTask, Values, loader_options

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


MULTIPLE = 8  # residues: lengths that a GPU multiplies fast


class FoldingTask(SupervisedTask[FoldBatch]):
    """Chains with alignments, all batches of one shape; settings are saved beside the weights."""

    recipe: FoldingRecipe

    @classmethod
    def prepare(cls, recipe: FoldingRecipe, folder: Path, poll: Poll) -> None:
        """Read the chains and alignments, and compute coupling scores if the model reads them."""
        _preparation(recipe).prepare(folder, poll)

    def __init__(self, recipe: FoldingRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.corpus = _preparation(recipe).open(folder)
        data, train = recipe.data, self.corpus.train
        longest = max(len(each.given) for each in train)
        length = min(longest, data.crop) if data.crop else -(-longest // MULTIPLE) * MULTIPLE
        self.summary = f"{self.corpus.summary}; pieces of {length} residues, {data.rows} rows; from {data.train}"
        measured = self.corpus.valid or train
        if recipe.goal == PRECISION and all(len(each.given) <= LONG_RANGE for each in measured):
            raise DataError(
                f"training.metric is {PRECISION.name!r}, but no chain to validate on has more than {LONG_RANGE} "
                "residues; set training.metric = 'lddt'"
            )
        config = _config(recipe)
        make = FoldBatches(train, length, data.rows, data.hidden, config.recycles, recipe.seed)
        self.loader = Loader(self._plan, make, **loader_options(recipe.training, device))
        self.shown: list[Sample] = []

    def _plan(self, epoch: int) -> list[Rows]:
        """Every chain once, in batches of one size; the last is filled up with chains of the same epoch."""
        count, batch = len(self.corpus.train), self.recipe.training.batch
        order = np.random.default_rng([self.recipe.seed, epoch]).permutation(count)
        return list(np.resize(order, (-(-count // batch), batch)))

    def build(self) -> nn.Module:
        """A new model, or one with the weights of `model.init`."""
        section = self.recipe.model
        return initialised(section, {}) if section.init else MODELS[section.name].model(_config(self.recipe))

    def loss(self, model: Forward, batch: FoldBatch) -> Loss:
        """The weighted sum of all losses, summed over chains."""
        answer = model(*batch.inputs, recycles=len(batch.recycles))
        each = sum(weight * value for weight, value in self._parts(answer, batch) if weight)
        assert isinstance(each, Tensor)
        return Loss(each.sum(), torch.full((), len(each), device=each.device))

    def _parts(self, answer: Folded, batch: FoldBatch) -> list[tuple[float, Float[Tensor, B]]]:
        """Every loss of each chain, and its weight."""
        weights, bins = self.recipe.losses, answer.distances.shape[-1]
        with torch.autocast(batch.mask.device.type, enabled=False):
            true, known = Frames.of_backbone(batch.backbone), batch.backbone_mask
            passes = len(answer.frames.translation)
            alike = Frames(*(part.expand(passes, *part.shape) for part in true))
            placed = partly_clamped_fape(answer.frames, alike, known.expand(passes, *known.shape), weights.unclamped)
            edges = distance_edges(bins, batch.mask.device)
            distances = distogram_loss(answer.distances, batch.points, batch.points_mask, edges)
            right = lddt(answer.frames.translation[-1].detach(), true.translation, known)
            confidence = confidence_loss(answer.confidence, right, known)
            letters = functional.cross_entropy(
                answer.symbols.float().flatten(0, 2), batch.labels.flatten(), reduction="none"
            )
            letters = (letters.view(batch.labels.shape) * batch.labels_mask).sum(dim=(1, 2))
            letters = letters / batch.labels_mask.sum(dim=(1, 2)).clamp(min=1)
        return [
            (weights.fape, placed.mean(dim=0)), (weights.distances, distances), (weights.hidden, letters),
            (weights.confidence, confidence),
        ]  # fmt: skip

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """lDDT, RMSD and the precision of contacts on whole chains held out, or on those trained on."""
        return self._measured(model, self.corpus.valid or self.corpus.train, poll)

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """Nothing: chains held out are used for validation."""
        return {}

    def samples(self) -> Sequence[Sample]:
        """Some chains, and how well they were predicted."""
        return self.shown

    def _measured(self, model: nn.Module, examples: Sequence[FoldExample], poll: Poll) -> Values:
        training = model.training
        predictor = StructurePredictor(model, self.corpus.settings)
        try:
            predictions = predictor.predict([FoldRequest(each.given) for each in examples], poll)
        finally:
            model.train(training)
        scores = [
            score_chain(each, found.places, found.contacts, found.mean_confidence / 100)
            for each, found in zip(examples, predictions, strict=True)
        ]
        self.shown = [
            Sample(
                source=each.name, target=f"{each.residues} residues", output=f"lDDT {each.lddt:.2f}, {each.rmsd:.1f} Å"
            )
            for each in scores[:SAMPLES]
        ]
        losses = [distance_loss(found, each) for each, found in zip(examples, predictions, strict=True)]
        return {"loss": mean(losses), **summed_up(scores)}

    def save(self, folder: Path) -> None:
        """Write the settings beside the weights."""
        self.corpus.settings.save(folder)


def distance_loss(found: Prediction, example: FoldExample) -> float:
    """The cross-entropy of the true distances of a chain."""
    _, _, points, known = truth([example], len(example.given))
    logits = torch.from_numpy(found.logits)[None]
    return float(distogram_loss(logits, points, known, distance_edges(logits.shape[-1]))[0])


def _config(recipe: FoldingRecipe) -> EvoformerConfig:
    config = recipe.model.config(source_vocab=1, target_vocab=1, pad=0)
    assert isinstance(config, EvoformerConfig)
    return config


def _preparation(recipe: FoldingRecipe) -> FoldingPreparation:
    return FoldingPreparation(recipe.data, _config(recipe).couplings, recipe.seed)
