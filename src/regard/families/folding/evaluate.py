"""Models of structures: lDDT, RMSD and the precision of long-range contacts, beside what knows no structure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from regard.errors import DataError
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.folding.data import (
    FoldExample,
    alignments_beside,
    built_in_chain,
    examples_of,
    find_alignments,
    find_chains,
    unusable,
)
from regard.families.folding.metrics import ChainScores, baselines, interval, mean, score_chain, summed_up
from regard.families.folding.pipeline import NOT_CLAIMED, FoldRequest, StructurePredictor
from regard.families.folding.recipe import CHAINS, FoldingSection
from regard.families.folding.task import distance_loss

FIRST_NEW = 100_000  # number of the first built-in chain that no recipe trains on
LONGEST = 2000  # residues


def evaluate_structures(predictor: StructurePredictor, data: str, options: EvaluationOptions) -> Evaluation:
    """The metrics on chains of known structure, by whether the model was trained on them; alignments are those beside
    the chains. Chains that cannot be used are left out and named."""
    examples, unread = _examples(predictor, data, options)
    scores: dict[str, object] = {"note": NOT_CLAIMED}
    for name, some in _groups(predictor, examples):
        if some:
            scores[f"{name}: {len(some)} chains"] = _measured(predictor, some)
    return Evaluation(scores, unread)


def _examples(
    predictor: StructurePredictor, data: str, options: EvaluationOptions
) -> tuple[list[FoldExample], list[str]]:
    if data == CHAINS:
        size = FoldingSection(train=data).chains
        numbers = range(FIRST_NEW, FIRST_NEW + options.count)
        chains = [built_in_chain(options.seed, number, (size.shortest, size.longest)) for number in numbers]
    else:
        if not Path(data).exists():
            raise DataError(f"there is no file or folder {data!r}; expected chains of known structure, or {CHAINS!r}")
        chains = find_chains(data)
    unread = [reason for chain in chains if (reason := unusable(chain, LONGEST))]
    usable = [chain for chain in chains if not unusable(chain, LONGEST)]
    if not usable:
        raise DataError(f"{data}: has no chain to measure on; the first is left out: {unread[0]}")
    # Without rows beyond the first, an alignment would only be read to be forgotten.
    aligned = predictor.settings.rows > 1 or predictor.config.couplings
    alignments = find_alignments(alignments_beside(data), usable) if aligned and data != CHAINS else {}
    return examples_of(usable, alignments, coupled=bool(alignments)), unread


def _groups(predictor: StructurePredictor, examples: Sequence[FoldExample]) -> Iterator[tuple[str, list[FoldExample]]]:
    """Chains by what they were to the model."""
    trained, validated = set(predictor.settings.trained), set(predictor.settings.validated)
    known = trained | validated
    yield "trained on, the fit", [each for each in examples if each.given.name in trained]
    yield "held out", [each for each in examples if each.given.name in validated]
    yield "other chains", [each for each in examples if each.given.name not in known]


def _measured(predictor: StructurePredictor, examples: Sequence[FoldExample]) -> dict[str, object]:
    predictions = predictor.predict([FoldRequest(each.given) for each in examples])
    scores = [
        score_chain(each, found.places, found.contacts, found.mean_confidence / 100)
        for each, found in zip(examples, predictions, strict=True)
    ]
    losses = [distance_loss(found, each) for each, found in zip(examples, predictions, strict=True)]
    simple = [baselines(each, predictor.settings.prior) for each in examples]
    precision = "long-range L/5 precision"
    low, high = interval([each.precision for each in scores])
    values: dict[str, object] = {"distance loss": mean(losses), **summed_up(scores)}
    if "precision" in values:
        values[precision] = values.pop("precision")
        values["its 95 % interval over chains"] = {"from": low, "to": high}
        names = dict.fromkeys(name for each in simple for name in each)
        values |= {f"{precision}, {name}": mean(each[name] for each in simple if name in each) for name in names}
    values["each chain"] = {each.name: _of_chain(each) for each in scores}
    return values


def _of_chain(scores: ChainScores) -> dict[str, float]:
    """The scores of one chain; without the precision if it is too short for long-range contacts."""
    values = {
        "lddt": scores.lddt,
        "rmsd": scores.rmsd,
        "precision": scores.precision,
        "residues": float(scores.residues),
    }
    return {name: value for name, value in values.items() if not math.isnan(value)}
