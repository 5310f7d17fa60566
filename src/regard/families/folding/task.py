"""Folding: the losses of distances and backbones of proteins, learnt from chains of known structure (Jumper et al.
2021), and what training and `regard evaluate` measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.data.loader import Loader, Rows
from regard.errors import DataError
from regard.families.catalog import MODELS
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.folding.data import (
    FoldBatch,
    FoldBatches,
    FoldExample,
    FoldingCorpus,
    alignments_of,
    examples_of,
    truth,
    usable_chains,
)
from regard.families.folding.layers import Frames
from regard.families.folding.metrics import (
    LONG_RANGE,
    ChainScores,
    baselines,
    confidence_loss,
    distogram_loss,
    fape,
    interval,
    lddt,
    mean,
    score_chain,
    summed_up,
)
from regard.families.folding.model import EvoformerConfig, Folded, distance_edges
from regard.families.folding.pipeline import NOT_CLAIMED, StructurePredictor
from regard.families.folding.recipe import PRECISION, ChainsSection, FoldingRecipe
from regard.training.initial_model import initialised
from regard.training.losses import Loss
from regard.training.safeguards import Poll
from regard.training.task import SAMPLES, Forward, Sample, SupervisedTask, Values, loader_options

MULTIPLE = 8  # residues: lengths that a GPU multiplies fast


class FoldingTask(SupervisedTask[FoldBatch]):
    """Chains with alignments, all batches of one shape; settings are saved beside the weights."""

    recipe: FoldingRecipe

    @classmethod
    def write(cls, recipe: FoldingRecipe, folder: Path, poll: Poll) -> None:
        """Read the chains and alignments, and compute coupling scores if the model reads them."""
        FoldingCorpus.write(folder, recipe.data, recipe.seed, poll, coupled=_config(recipe).couplings)

    def __init__(self, recipe: FoldingRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.corpus = FoldingCorpus.open(folder)
        data, train = recipe.data, self.corpus.train
        longest = max(len(given) for given, _ in train)
        length = min(longest, data.crop) if data.crop else -(-longest // MULTIPLE) * MULTIPLE
        self.summary = f"{self.corpus.summary}; pieces of {length} residues, {data.rows} rows; from {data.train}"
        measured = self.corpus.valid or train
        if recipe.goal == PRECISION and all(len(given) <= LONG_RANGE for given, _ in measured):
            raise DataError(
                f"training.metric is {PRECISION.name!r}, but no chain to validate on has more than {LONG_RANGE} "
                "residues; set training.metric = 'lddt'"
            )
        make = FoldBatches(train, length, data.rows, data.hidden, _config(recipe).recycles, recipe.seed)
        self.loader = Loader(self._plan, make, **loader_options(recipe.training, device))

    def _plan(self, epoch: int) -> list[Rows]:
        """Every chain once, in batches of one size; the last is filled up with chains of the same epoch."""
        count, batch = len(self.corpus.train), self.recipe.training.batch
        order = np.random.default_rng([self.recipe.seed, epoch]).permutation(count)
        return list(np.resize(order, (-(-count // batch), batch)))

    def build(self) -> nn.Module:
        section = self.recipe.model
        return initialised(section, {}) if section.init else MODELS[section.name].model(_config(self.recipe))

    def loss(self, model: Forward, batch: FoldBatch) -> Loss:
        """The weighted sum of all losses, summed over chains."""
        answer = model(*batch, recycles=len(batch.recycles))
        losses = sum(weight * value for weight, value in self._parts(answer, batch) if weight)
        assert isinstance(losses, Tensor)
        return Loss.of(losses.sum(), len(losses))

    def _parts(self, answer: Folded, batch: FoldBatch) -> list[tuple[float, Float[Tensor, B]]]:
        """Every loss of each chain, and its weight."""
        weights, bins = self.recipe.losses, answer.distances.shape[-1]
        with torch.autocast(batch.mask.device.type, enabled=False):
            true, known = Frames.of_backbone(batch.backbone), batch.backbone_mask
            passes = len(answer.frames.translation)
            alike = Frames(*(part.expand(passes, *part.shape) for part in true))
            placed = fape(answer.frames, alike, known.expand(passes, *known.shape), weights.unclamped)
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
        training, examples = model.training, self.corpus.valid or self.corpus.train
        try:
            scores, losses = measured(StructurePredictor(model, self.corpus.settings), examples, poll)
        finally:
            model.train(training)
        self.shown = [
            Sample(source=one.name, target=f"{one.residues} residues", output=f"lDDT {one.lddt:.2f}, {one.rmsd:.1f} Å")
            for one in scores[:SAMPLES]
        ]
        return {"loss": mean(losses), **summed_up(scores)}

    def save(self, folder: Path) -> None:
        self.corpus.settings.save(folder)


def _config(recipe: FoldingRecipe) -> EvoformerConfig:
    config = recipe.model.config(source_vocab=1, target_vocab=1, pad=0)
    assert isinstance(config, EvoformerConfig)
    return config


def measured(
    predictor: StructurePredictor, examples: Sequence[FoldExample], poll: Poll = lambda: None
) -> tuple[list[ChainScores], list[float]]:
    """The scores of chains, and the cross-entropy of their true distances."""
    scores, losses = [], []
    predictions = predictor.predict([given for given, _ in examples], poll)
    for example, found in zip(examples, predictions, strict=True):
        scores.append(score_chain(example, found.places, found.contacts, found.mean_confidence / 100))
        _, _, points, known = truth([example], len(example.given))
        logits = torch.from_numpy(found.logits)[None]
        losses.append(float(distogram_loss(logits, points, known, distance_edges(logits.shape[-1]))[0]))
    return scores, losses


FIRST_NEW, LONGEST = 100_000, 2000  # number of the first built-in chain that no recipe trains on; residues
LONG_PRECISION = "long-range L/5 precision"


def evaluate_structures(predictor: StructurePredictor, data: str, options: EvaluationOptions) -> Evaluation:
    """The metrics on chains of known structure, by whether the model was trained on them; alignments are those beside
    the chains. Chains that cannot be used are left out and named."""
    size, settings, unread = ChainsSection(), predictor.settings, list[str]()
    chains = usable_chains(
        data, range(FIRST_NEW, FIRST_NEW + options.count), options.seed, longest=LONGEST, skipped=unread,
        length=(size.shortest, size.longest),
    )  # fmt: skip
    # Without rows beyond the first, an alignment would only be read to be forgotten.
    aligned = settings.rows > 1 or predictor.config.couplings
    alignments = alignments_of(data, chains) if aligned else {}
    trained, validated = set(settings.trained), set(settings.validated)
    groups: dict[str, list[FoldExample]] = {"trained on, the fit": [], "held out": [], "other chains": []}
    for example in examples_of(chains, alignments, coupled=bool(alignments)):
        name = example.given.name
        group = "trained on, the fit" if name in trained else "held out" if name in validated else "other chains"
        groups[group].append(example)
    scores: dict[str, object] = {"note": NOT_CLAIMED}
    for group, examples in groups.items():
        if examples:
            scores[f"{group}: {len(examples)} chains"] = _evaluated(predictor, examples)
    return Evaluation(scores, unread)


def _evaluated(predictor: StructurePredictor, examples: Sequence[FoldExample]) -> dict[str, object]:
    scores, losses = measured(predictor, examples)
    values: dict[str, object] = {"distance loss": mean(losses), **summed_up(scores)}
    if "precision" in values:
        values[LONG_PRECISION] = values.pop("precision")
        low, high = interval([one.precision for one in scores])
        values["its 95 % interval over chains"] = {"from": low, "to": high}
        simple = [baselines(example, predictor.settings.prior) for example in examples]
        for name in dict.fromkeys(name for chain in simple for name in chain):
            values[f"{LONG_PRECISION}, {name}"] = mean(chain[name] for chain in simple if name in chain)
    values["each chain"] = {one.name: _of_chain(one) for one in scores}
    return values


def _of_chain(scores: ChainScores) -> dict[str, float]:
    """The scores of one chain; without the precision if it is too short for long-range contacts."""
    values = {"lddt": scores.lddt, "rmsd": scores.rmsd, "precision": scores.precision}
    known = {name: value for name, value in values.items() if not math.isnan(value)}
    return {**known, "residues": float(scores.residues)}
