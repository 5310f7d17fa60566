"""Every family in one table: a row a family, with the names of what it brings.

The row says which family to import for a name; the family's own `__init__.py` says what the name stands for.
Packages of others add families by an entry point of the group `regard.families`, whose value is a `Family`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module, resources
from importlib.metadata import entry_points
from importlib.resources.abc import Traversable
from typing import Any, Generic, NamedTuple, TypeVar

from regard.families.contract import OURS, Family, FormEntry, ModelEntry, PipelineEntry, TaskEntry, VerbEntry

E = TypeVar("E")
GROUP = "regard.families"  # of entry points


class Row(NamedTuple):
    """The names of what a family brings, apart by spaces."""

    models: str = ""
    tasks: str = ""
    pipelines: str = ""
    verbs: str = ""  # "see/detect": what `regard see` does with its models
    views: str = ""  # of reports: each has a figure and a script
    forms: str = ""  # of other programs that models are converted to


FAMILIES: dict[str, Row] = {
    "translation": Row(
        "transformer seq2seq", "translation", "translator", "translate data", forms="marian ctranslate2 onnx"
    ),
    "language": Row(
        "bert gpt lstm word2vec elmo t5",
        "language words masked classification tags answers spans prompts",
        "language_model text_to_text text_encoder word_vectors",
        "generate embed embed/neighbours read/classify read/tag read/answer read/fill",
        forms="word2vec",
    ),
    "images": Row(
        "resnet vit swin mvit segmenter sagan",
        "images segmentation pixels gan",
        "image_classifier image_segmenter pixel_generator image_generator",
        "see/classify see/segment",
    ),
    "captions": Row("captioner", "captioning", "image_captioner", "see/caption", "strip"),
    "detection": Row("detector", "detection", "object_detector", "see/detect", "boxes"),
    "vision_language": Row("vilbert", "vision_language retrieval pointing questions", "vision_language", "match"),
    "navigation": Row("vlnbert path_lstm", "paths path_pairs", "navigator", "navigate", "house"),
    "speech": Row("conformer whisper", "speech", "speech_recognizer whisper_transcriber", "transcribe", "spectrogram"),
    "trajectories": Row("agentformer", "forecasting forecast_sampler", "forecaster", "forecast", "agents"),
    "folding": Row("evoformer", "folding", "structure_predictor", "fold", "structure"),
    "proteins": Row("interactor", "interactions", "interactions", "interact"),
    "dictionaries": Row("sparse_autoencoder", "dictionary", "feature_dictionary", "features"),
}


@cache
def family(name: str) -> Family:
    """A family of the table."""
    return import_module(f"{__package__}.{name}").FAMILY


@cache
def installed() -> tuple[Family, ...]:
    """The families that other packages bring."""
    return tuple(point.load() for point in entry_points(group=GROUP))


class Names(Mapping[str, E], Generic[E]):
    """What all families bring of one part, by name. A name of ours imports the one family that it belongs to."""

    def __init__(self, part: str, column: str = "") -> None:
        self.part = part
        self._owners = {name: own for own, row in FAMILIES.items() for name in getattr(row, column or part).split()}

    def __getitem__(self, name: str) -> E:
        families = (family(self._owners[name]),) if name in self._owners else installed()
        for each in families:
            if name in (entries := getattr(each, self.part)):
                return entries[name]
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return name in self._owners or any(name in getattr(other, self.part) for other in installed())

    def __iter__(self) -> Iterator[str]:
        yield from self._owners
        for other in installed():
            yield from getattr(other, self.part)

    def __len__(self) -> int:
        return sum(1 for _ in self)


MODELS: Names[ModelEntry] = Names("models")
TASKS: Names[TaskEntry] = Names("tasks")
PIPELINES: Names[PipelineEntry] = Names("pipelines")
FORMS: Names[FormEntry] = Names("forms")
VERBS: Names[VerbEntry] = Names("verbs")
FIGURES: Names[str] = Names("figures", "views")  # "package.module.function"
VIEWS: Names[str] = Names("views")  # "family/NAME/FILE.js"


def imported(path: str) -> Any:
    """What "package.module.name" stands for."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def models_for(task: str) -> tuple[str, ...]:
    """The names of the models that a training task can train."""
    return tuple(name for name, entry in MODELS.items() if task in entry.tasks)


def models_run_by(pipeline: str) -> tuple[str, ...]:
    """The names of the models that a pipeline runs."""
    return tuple(name for name, entry in MODELS.items() if entry.pipeline == pipeline)


def page_scripts() -> list[str]:
    """What families add to the page of the server, as "family/NAME/FILE.js"."""
    return [each.page for each in (*map(family, FAMILIES), *installed()) if each.page]


def family_script(name: str, file: str) -> Traversable:
    """A JavaScript file of a family, by the name of its row or by its package; KeyError if there is none."""
    packages = {row: f"{OURS}{row}" for row in FAMILIES} | {other.package: other.package for other in installed()}
    script = resources.files(packages[name]) / file
    if not (file.endswith(".js") and file[:-3].isidentifier() and script.is_file()):
        raise KeyError(file)
    return script


def recipe_folders() -> list[Traversable]:
    """The folders of shipped recipes, one a family that has any."""
    ours = [resources.files("regard") / "families" / name for name in FAMILIES]
    folders = [package / "recipes" for package in (*ours, *(resources.files(other.package) for other in installed()))]
    return [folder for folder in folders if folder.is_dir()]
