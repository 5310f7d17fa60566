"""Text encoders: how well they predict the labels or values of a table, tag words, or find answers."""

from __future__ import annotations

from pathlib import Path

from regard.data.tokenizers.unknown_words import share_of_all
from regard.errors import DataError, UsageError
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.language.encoder import TextEncoder
from regard.families.language.formats import read_questions, read_tagged
from regard.families.language.recipe import ClassificationRecipe, LabelledTextsSection, TagsRecipe
from regard.families.language.token_heads import answer_scores, tag_scores
from regard.search.settings import RECIPE
from regard.training.recipe.load import load_recipe
from regard.training.scores import label_scores, value_scores


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


def evaluate_texts(encoder: TextEncoder, data: str, options: EvaluationOptions) -> Evaluation:
    """What the head of the model is measured by; long texts are cut."""
    encoder.warns = False  # the share of unknown words is among the scores
    match encoder.config.head:
        case "tags":
            return _evaluate_tags(encoder, data, options)
        case "answer":
            return _evaluate_answers(encoder, data)
    return _evaluate_labels(encoder, data, options)


def _evaluate_tags(encoder: TextEncoder, data: str, options: EvaluationOptions) -> Evaluation:
    """The share of right tags, and F1 of whole phrases, on words in columns; the column of tags is the recipe's."""
    path = options.folder / RECIPE
    recipe = load_recipe(str(path)) if path.is_file() else None
    examples = list(read_tagged(data, recipe.data.column if isinstance(recipe, TagsRecipe) else None))
    if not examples:
        raise DataError(f"{data} has no tagged text")
    texts = [example.text for example in examples]
    found = [[word.tag for word in words] for words in encoder.tag(texts, truncate=True)]
    told: dict[str, object] = {"texts": len(examples), **share_of_all(texts, encoder.unknown_words)}
    return Evaluation(told | tag_scores(found, [example.tags for example in examples]))


def _evaluate_answers(encoder: TextEncoder, data: str) -> Evaluation:
    """SQuAD's metrics on a file of questions."""
    asked = list(read_questions(data))
    if not asked:
        raise DataError(f"{data} has no question")
    found = [encoder.answer(each.question, each.context, truncate=True)[0].text for each in asked]
    told: dict[str, object] = {"texts": len(asked)}
    told |= share_of_all([each.context for each in asked], encoder.unknown_words)
    return Evaluation(told | answer_scores(found, [each.answers for each in asked]))


def _evaluate_labels(encoder: TextEncoder, data: str, options: EvaluationOptions) -> Evaluation:
    """GLUE's metrics on a table; long texts are cut as in training."""
    tables = label_tables(options.folder)
    table = tables.table
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
