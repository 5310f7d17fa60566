"""Dictionaries of features: their metrics on any data that their model reads."""

from __future__ import annotations

from itertools import islice

from regard.errors import DataError
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.dictionaries.pipeline import FeatureDictionary
from regard.families.dictionaries.recipe import DictionaryRecipe
from regard.families.dictionaries.task import measure_dictionary
from regard.look.reader import Source, read_examples
from regard.search.settings import RECIPE
from regard.training.recipe.load import load_recipe


def evaluate_dictionary(dictionary: FeatureDictionary, data: str, options: EvaluationOptions) -> Evaluation:
    """L0, explained variance, dead share and loss recovered, against zeros and against the mean.

    `count` is the most examples that are read; texts are cut as in training.
    """
    path = options.folder / RECIPE
    recipe = load_recipe(str(path)) if path.is_file() else None
    cut = recipe.data if isinstance(recipe, DictionaryRecipe) else None
    source = Source(data, "test", count=options.count, seed=options.seed)
    if cut is not None:
        source = Source(data, "test", options.count, cut.block, cut.documents, cut.to, options.seed)
    examples = list(islice(read_examples(dictionary.reader, source), options.count))
    if not examples:
        raise DataError(f"{data} has nothing to read; give data as in training")
    values = measure_dictionary(dictionary.reader, dictionary.site, dictionary.model, examples)
    names = {"dead": "dead (of these examples)", "loss": "mean square error"}
    return Evaluation({"examples": len(examples), **{names.get(key, key): value for key, value in values.items()}})
