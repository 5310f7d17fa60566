"""Regard: attention models you can train, run fast, and look into.

`load` gives the pipeline of a model folder or of `hf:owner/name`; without one, the built-in translators:

    regard.load().translate("where is the station?", to="fr").text
    regard.load("hf:sentence-transformers/all-MiniLM-L6-v2").embed(["we are eating bread", "they have lunch"])
    regard.load("hf:openai-community/gpt2").generate("In a shocking finding,", temperature=0.8, best_of=10).text
    regard.look("runs/en-es", "we are eating bread")  # every layer and head, in a notebook cell

The names of `__all__` are public: those of a release import from the next one too, or give a warning for one release
first. Modules below `regard` may change at any time. Importing `regard` imports none of them, and not torch.

>>> import regard
>>> "gpt" in regard.models(), "pairs-transformer" in regard.recipes()
(True, True)
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for true; to import it from `typing` would take longer than this file
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from regard.attention.intervene import AddDirection, Apply, Patch, ReplaceWeights, WithoutHead, intervene
    from regard.attention.places import places, record_activations
    from regard.attention.record import record
    from regard.errors import CheckpointError, ConfigError, DataError, RegardError, TrainingError, UsageError
    from regard.families.captions.pipeline import Caption, ImageCaptioner
    from regard.families.detection.pipeline import Detected, ObjectDetector
    from regard.families.dictionaries.pipeline import ActiveFeature, FeatureDictionary
    from regard.families.folding.pipeline import Prediction, StructurePredictor
    from regard.families.images.generation import ClassImageGenerator, PixelGenerator
    from regard.families.images.pipeline import ImageClassifier, ImageSegmenter, Segmented
    from regard.families.language.encoder import Guess, TextEncoder
    from regard.families.language.generator import Completion
    from regard.families.language.language_models import LanguageModel, TextToText
    from regard.families.language.text_reader import FoundAnswer, TaggedWord
    from regard.families.language.word_vectors import Neighbour, WordVectors
    from regard.families.loading import Pipeline
    from regard.families.navigation.pipeline import Navigation, Navigator
    from regard.families.proteins.pipeline import Interaction, InteractionPredictor
    from regard.families.speech.pipeline import SpeechRecognizer, Transcript
    from regard.families.speech.whisper_pipeline import WhisperTranscriber
    from regard.families.trajectories.pipeline import Forecast, Forecaster
    from regard.families.translation.translation import Translation
    from regard.families.translation.translator import Translator
    from regard.families.vision_language.pipeline import Match, VisionLanguageModel
    from regard.look.notebook import Look, look
    from regard.search.pipeline import Labelled

    __version__: str

__all__ = [  # noqa: RUF022 - in the order of a first use
    "load", "translate", "train", "models", "recipes", "__version__",
    # look into a model
    "look", "places", "record", "record_activations", "intervene",
    "AddDirection", "Apply", "Patch", "ReplaceWeights", "WithoutHead",
    # pipelines: what `load` gives
    "ClassImageGenerator", "FeatureDictionary", "Forecaster", "ImageCaptioner", "ImageClassifier", "ImageSegmenter",
    "InteractionPredictor", "LanguageModel", "Navigator", "ObjectDetector", "PixelGenerator", "SpeechRecognizer",
    "StructurePredictor", "TextEncoder", "TextToText", "Translator", "VisionLanguageModel", "WhisperTranscriber",
    "WordVectors",
    # answers: what pipelines give
    "ActiveFeature", "Caption", "Completion", "Detected", "Forecast", "FoundAnswer", "Guess", "Interaction",
    "Labelled", "Look", "Match", "Navigation", "Neighbour", "Prediction", "Segmented", "TaggedWord", "Transcript",
    "Translation",
    # errors
    "CheckpointError", "ConfigError", "DataError", "RegardError", "TrainingError", "UsageError",
]  # fmt: skip

_HOMES = {  # the names of a module below `regard`, which is imported when one of them is first used
    "attention.intervene": "AddDirection Apply Patch ReplaceWeights WithoutHead intervene",
    "attention.places": "places record_activations",
    "attention.record": "record",
    "errors": "CheckpointError ConfigError DataError RegardError TrainingError UsageError",
    "families.captions.pipeline": "Caption",
    "families.detection.pipeline": "Detected",
    "families.dictionaries.pipeline": "ActiveFeature",
    "families.folding.pipeline": "Prediction",
    "families.images.pipeline": "Segmented",
    "families.language.encoder": "Guess",
    "families.language.generator": "Completion",
    "families.language.text_reader": "FoundAnswer TaggedWord",
    "families.language.word_vectors": "Neighbour",
    "families.navigation.pipeline": "Navigation",
    "families.proteins.pipeline": "Interaction",
    "families.speech.pipeline": "Transcript",
    "families.trajectories.pipeline": "Forecast",
    "families.translation.translation": "Translation",
    "families.vision_language.pipeline": "Match",
    "look.notebook": "Look",
    "search.pipeline": "Labelled",
}


def load(*folders: str | Path, device: str = "cpu", allow_pickle: bool = False, precision: str = "fp32") -> Pipeline:
    """Load a model folder or `hf:owner/name` as the pipeline that runs it; without one, the built-in translators.

    A pipeline is a `Translator` for models of sentence pairs, a `TextEncoder` for BERT's family, a `LanguageModel` for
    GPTs, an `ImageClassifier` for image models, and so on. Several folders of translators with the same tokenizer
    translate as an ensemble. `precision` is for models that write or translate: fp32 is exact; int8 on a CPU, bf16 and
    fp16 on a GPU are faster and less exact.

    >>> load(3)
    Traceback (most recent call last):
    ...
    regard.errors.UsageError: load takes model folders or hf:owner/name, not 3 (int)
    """
    from regard.families.loading import load_pipeline

    return load_pipeline(*folders, device=device, allow_pickle=allow_pickle, precision=precision)


def translate(text: str, to: str = "", *, model: str | Path = "", **options: Any) -> Translation:
    """Translate one text with the built-in translators, or with another model; to translate many, `load` it once.

    `options` are those of `Translator.translate`, such as `beam` and `glossary`.
    """
    found: Translation = load(*([model] if model else [])).translate(text, to=to, **options)
    return found


def train(
    recipe: str | Path, out: str | Path, changes: Mapping[str, object] | None = None, *, resume: bool = False
) -> Path:
    """Train a model by a shipped recipe or a TOML file into the folder `out`, which `load` reads.

    `changes` are values of the recipe by their keys, as `--set` takes them: {"training.steps": 1000}. With `resume` a
    run that stopped continues exactly where it was.

    >>> train("pairs-transformr", "runs/example")
    Traceback (most recent call last):
    ...
    regard.errors.UsageError: there is no shipped recipe 'pairs-transformr'; did you mean 'pairs-transformer'?
    """
    import json
    from pathlib import Path

    from regard.training.loop import train as run
    from regard.training.recipe.load import load_recipe

    values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in (changes or {}).items()}
    return run(load_recipe(recipe, [f"{key}={value}" for key, value in values.items()]), Path(out), resume=resume)


def models() -> list[str]:
    """The names of the models that recipes can train.

    >>> models()[:2]
    ['transformer', 'seq2seq']
    """
    from regard.families.catalog import MODELS

    return list(MODELS)


def recipes() -> list[str]:
    """The names of the recipes that come with the package."""
    from regard.training.recipe.files import recipe_names

    return recipe_names()


def __getattr__(name: str) -> Any:
    """Import what a public name stands for when it is first used."""
    from importlib import import_module
    from importlib.metadata import version

    if name == "__version__":
        found: Any = version("regard")
    elif name == "look":  # a package that can be called
        found = import_module("regard.look")
    elif home := next((module for module, names in _HOMES.items() if name in names.split()), ""):
        found = getattr(import_module(f"regard.{home}"), name)
    elif name in __all__:
        from regard.families.catalog import PIPELINES

        entries = (entry for entry in PIPELINES.values() if entry.class_name.rpartition(".")[2] == name)
        found = next(entries).load_class()
    else:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
