"""How the accuracy of image classifiers depends on the amount of training data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from regard.checkpoints.folder import is_sealed
from regard.errors import UsageError
from regard.training.loop import train
from regard.training.metrics_log import METRICS, read_metrics
from regard.training.recipe.load import load_recipe


def accuracy_by_count(
    recipes: Mapping[str, str], counts: Sequence[int], runs: Path, sets: Sequence[str] = ()
) -> dict[str, list[float]]:
    """Validation accuracy of each recipe for each number of training images; completed runs are reused."""
    results: dict[str, list[float]] = {}
    for name, recipe in recipes.items():
        results[name] = []
        for count in counts:
            out = runs / f"{name}-{count}"
            if not is_sealed(out):
                train(load_recipe(recipe, [*sets, f"data.count={count}"]), out, resume=out.exists())
            measured = [row["accuracy"] for row in read_metrics(out / METRICS) if "accuracy" in row]
            if not measured:
                raise UsageError(f"{recipe} measured no accuracy; compare recipes of task 'images' that validate")
            results[name].append(max(measured))
    return results
