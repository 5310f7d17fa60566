"""Models of protein pairs: how well pairs are told apart, beside what the training pairs of each protein alone say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.errors import DataError
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.proteins.data import TEST, VALID, ProteinPairs, divided, read_pairs, sequences_beside
from regard.families.proteins.pipeline import InteractionPredictor
from regard.families.proteins.recipe import InteractionsRecipe
from regard.families.proteins.task import all_scores, binary_scores
from regard.search.settings import RECIPE
from regard.training.recipe.load import load_recipe

UNSEEN = ("both proteins in training pairs", "one protein in no training pair", "both proteins in no training pair")


def evaluate_interactions(predictor: InteractionPredictor, data: str, options: EvaluationOptions) -> Evaluation:
    """Accuracy, precision, recall, F1 and area under the curve on a table of pairs, in groups by how many proteins of
    a pair training has seen. Of the model's own table, the pairs that it was trained on are left out.

    Pairs whose protein has no sequence are left out and named. The sequences lie beside the pairs, or are those of the
    model's recipe.
    """
    recipe, unread = _recipe(options.folder), list[str]()
    found = read_pairs(data, _sequences(data, recipe), unread)
    scores: dict[str, object] = {}
    for title, some in _parts(predictor, found, recipe is not None and Path(data).name == Path(recipe.data.train).name):
        measured = all_scores(predictor.model, some, predictor.device)
        unseen = predictor.settings.unseen(some)
        groups = {name: np.flatnonzero(unseen == count) for count, name in enumerate(UNSEEN)}
        scores[f"{title}: {len(some):,} pairs"] = _measured(predictor, some, measured)
        for name, rows in groups.items():
            if 0 < len(rows) < len(some):
                scores[f"{title}, {name}: {len(rows):,} pairs"] = _measured(predictor, some.some(rows), measured[rows])
    return Evaluation(scores, unread)


def _measured(
    predictor: InteractionPredictor, some: ProteinPairs, scores: NDArray[np.float64]
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


def _recipe(folder: Path) -> InteractionsRecipe | None:
    file = folder / RECIPE
    recipe = load_recipe(file) if file.is_file() else None
    return recipe if isinstance(recipe, InteractionsRecipe) else None


def _sequences(data: str, recipe: InteractionsRecipe | None) -> Path:
    try:
        return sequences_beside(data)
    except DataError:
        if recipe is None:
            raise
        return Path(recipe.data.sequences) if recipe.data.sequences else sequences_beside(recipe.data.train)
