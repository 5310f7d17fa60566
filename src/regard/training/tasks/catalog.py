"""Every task by name. A new task is one more row.

Task classes are named, not imported: reading a recipe must not import what only training needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.config import nearest
from regard.errors import ConfigError
from regard.training.recipe.base import Recipe
from regard.training.recipe.files import read_values
from regard.training.tasks.adversarial_recipe import GanRecipe
from regard.training.tasks.captioning_recipe import CaptioningRecipe
from regard.training.tasks.detection_recipe import DetectionRecipe
from regard.training.tasks.dictionary_recipe import DictionaryRecipe
from regard.training.tasks.folding_recipe import FoldingRecipe
from regard.training.tasks.forecasting_recipe import ForecastRecipe, SamplerRecipe
from regard.training.tasks.image_classification_recipe import ImagesRecipe
from regard.training.tasks.interactions_recipe import InteractionsRecipe
from regard.training.tasks.language_modelling_recipe import LanguageRecipe
from regard.training.tasks.masked_lm_recipe import MaskedRecipe
from regard.training.tasks.path_pairs_recipe import PathPairsRecipe
from regard.training.tasks.path_ranking_recipe import RankingRecipe
from regard.training.tasks.pixel_modelling_recipe import PixelsRecipe
from regard.training.tasks.prompts_recipe import PromptsRecipe
from regard.training.tasks.segmentation_recipe import SegmentationRecipe
from regard.training.tasks.span_corruption_recipe import SpansRecipe
from regard.training.tasks.speech_recipe import SpeechRecipe
from regard.training.tasks.text_classification_recipe import ClassificationRecipe
from regard.training.tasks.token_heads_recipe import AnswersRecipe, TagsRecipe
from regard.training.tasks.translation_recipe import TranslationRecipe
from regard.training.tasks.vision_language_recipe import (
    PointingRecipe,
    QuestionsRecipe,
    RetrievalRecipe,
    VisionLanguageRecipe,
)
from regard.training.tasks.word_vectors_recipe import WordsRecipe

if TYPE_CHECKING:
    import torch

    from regard.training.safeguards import Poll
    from regard.training.tasks.base import Task

USUAL = "translation"  # the task of a recipe that names none


class TaskEntry(NamedTuple):
    """One kind of training: the recipe it reads, and the class that does it."""

    recipe: type[Recipe]
    task: str  # module of this folder, and class: "module.Class"

    def load(self) -> type[Task[Any]]:
        """The task class."""
        module, _, name = self.task.partition(".")
        found: type[Task[Any]] = getattr(import_module(f"{__package__}.{module}"), name)
        return found


TASKS: dict[str, TaskEntry] = {
    "translation": TaskEntry(TranslationRecipe, "translation.TranslationTask"),
    "language": TaskEntry(LanguageRecipe, "language_modelling.LanguageTask"),
    "words": TaskEntry(WordsRecipe, "word_vectors.WordVectorTask"),
    "masked": TaskEntry(MaskedRecipe, "masked_lm.MaskedTask"),
    "classification": TaskEntry(ClassificationRecipe, "text_classification.TextClassificationTask"),
    "tags": TaskEntry(TagsRecipe, "token_heads.TaggingTask"),
    "answers": TaskEntry(AnswersRecipe, "token_heads.AnsweringTask"),
    "spans": TaskEntry(SpansRecipe, "span_corruption.SpanCorruptionTask"),
    "prompts": TaskEntry(PromptsRecipe, "prompts.PromptsTask"),
    "images": TaskEntry(ImagesRecipe, "image_classification.ImageClassificationTask"),
    "segmentation": TaskEntry(SegmentationRecipe, "segmentation.SegmentationTask"),
    "captioning": TaskEntry(CaptioningRecipe, "captioning.CaptioningTask"),
    "detection": TaskEntry(DetectionRecipe, "detection.DetectionTask"),
    "pixels": TaskEntry(PixelsRecipe, "pixel_modelling.PixelTask"),
    "speech": TaskEntry(SpeechRecipe, "speech.SpeechTask"),
    "path_pairs": TaskEntry(PathPairsRecipe, "path_pairs.PathPairsTask"),
    "paths": TaskEntry(RankingRecipe, "path_ranking.RankingTask"),
    "folding": TaskEntry(FoldingRecipe, "folding.FoldingTask"),
    "forecasting": TaskEntry(ForecastRecipe, "forecasting.ForecastTask"),
    "forecast_sampler": TaskEntry(SamplerRecipe, "forecasting.SamplerTask"),
    "gan": TaskEntry(GanRecipe, "adversarial.GanTask"),
    "vision_language": TaskEntry(VisionLanguageRecipe, "vision_language.VisionLanguageTask"),
    "retrieval": TaskEntry(RetrievalRecipe, "retrieval.RetrievalTask"),
    "pointing": TaskEntry(PointingRecipe, "region_answers.PointingTask"),
    "questions": TaskEntry(QuestionsRecipe, "region_answers.QuestionsTask"),
    "interactions": TaskEntry(InteractionsRecipe, "interactions.InteractionTask"),
    "dictionary": TaskEntry(DictionaryRecipe, "dictionary.DictionaryTask"),
}


def open_task(recipe: Recipe, folder: Path, device: torch.device, poll: Poll) -> Task[Any]:
    """The task of a recipe, whose data are prepared in `folder` unless they are there; `poll` may raise to stop."""
    task = TASKS[recipe.task].load()
    task.prepare(recipe, folder, poll)
    return task.open(recipe, folder, device)


def load_recipe(name_or_path: str | Path, sets: Sequence[str] = ()) -> Recipe:
    """Read a shipped recipe by name, or a file, with `section.key=value` changes made before anything is checked."""
    return parse_recipe(read_values(str(name_or_path), sets), where=str(name_or_path))


def parse_recipe(values: Mapping[str, Any], *, where: str) -> Recipe:
    """Check the values of a recipe; errors name their origin `where`."""
    task = values.get("task", USUAL)
    if task not in TASKS:
        raise ConfigError(f"{where}: task {task!r} is unknown; {nearest(str(task), TASKS)}")
    return TASKS[task].recipe.parse(values, where=where)
