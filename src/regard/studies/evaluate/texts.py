"""Text classifiers: how well they predict the labels or values of a table."""

from __future__ import annotations

from pathlib import Path

from regard.data.tokenizers.unknown_words import share_of_all
from regard.errors import DataError, UsageError
from regard.inference.decoding.folder_settings import RECIPE
from regard.inference.pipelines.text_encoder import TextEncoder
from regard.studies.evaluate.catalog import Evaluation, EvaluationOptions
from regard.training.evaluation.scores import label_scores, value_scores
from regard.training.tasks.catalog import load_recipe
from regard.training.tasks.text_classification_recipe import ClassificationRecipe, LabelledTextsSection


def label_tables(folder: Path) -> LabelledTextsSection:
    """The tables of texts and labels that the recipe of a model names."""
    path = folder / RECIPE
    recipe = load_recipe(str(path)) if path.is_file() else None
    if not isinstance(recipe, ClassificationRecipe):
        raise UsageError(
            f"{folder} has no {RECIPE} of a classifier, which says where texts and labels are in a table; "
            "measure a model that `regard train` made"
        )
    return recipe.data


def evaluate_labels(encoder: TextEncoder, data: str, options: EvaluationOptions) -> Evaluation:
    """GLUE's metrics on a table; long texts are cut as in training."""
    tables = label_tables(options.folder)
    table = tables.table
    encoder.warns = False  # the share of unknown words is among the scores
    examples = list(table.read(data))
    if not examples:
        raise DataError(f"{data} has no labelled text")
    texts, pairs, true = zip(*examples, strict=True)
    answers = encoder.classify(texts, None if table.pair is None else pairs, truncate=True, longest=tables.longest)
    found: dict[str, object] = {"texts": len(examples), **share_of_all(texts, encoder.unknown_words)}
    if not table.labels:
        return Evaluation(found | value_scores([float(answer.value or 0.0) for answer in answers], true))
    guessed = [table.labels.index(answer.label) for answer in answers]
    return Evaluation(found | label_scores(guessed, true, len(table.labels)))
