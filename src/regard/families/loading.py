"""From a model folder to the pipeline that runs it."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from regard.checkpoints.folder import local_folder, resolve
from regard.checkpoints.models import identify
from regard.config import Config
from regard.data.images.files import PREPROCESSING
from regard.data.tokenizers.pair import PairTokenizer
from regard.errors import UsageError
from regard.families.catalog import MODELS, PIPELINES
from regard.families.contract import ANY_HEAD, TRANSLATOR, PipelineEntry

Pipeline: TypeAlias = Any  # the pipeline classes of all families, which only the catalog names


def find_pipeline(folder: Path, model: str = "") -> str:
    """The key of the pipeline that runs the model in a folder; `model` names it where the folder is not complete yet.

    A tokenizer of sentence pairs makes any model a translator. Image preprocessing means that the tokens of a language
    model are the colours of pixels.
    """
    if PairTokenizer.is_in(folder):
        return TRANSLATOR
    key = MODELS[model or identify(folder)[0]].pipeline
    return PIPELINES[key].for_images or key if (folder / PREPROCESSING).is_file() else key


def load_pipeline(
    *folders: str | Path, device: str = "cpu", allow_pickle: bool = False, precision: str = "fp32"
) -> Pipeline:
    """The pipeline of one model folder or `hf:owner/name`, or of an ensemble of translators; see `regard.load`.

    Without a folder, the built-in translators.
    """
    for folder in folders:
        if not isinstance(folder, str | PathLike):
            raise UsageError(f"load takes model folders or hf:owner/name, not {folder!r:.60} ({type(folder).__name__})")
    if not folders:
        entry = PIPELINES[TRANSLATOR]
        return entry.load(entry.built_in)(device=device, precision=precision)
    places = [local_folder(folder) for folder in folders]
    pipeline = PIPELINES[find_pipeline(resolve(places[0])) if len(places) == 1 else TRANSLATOR]
    if precision != "fp32" and not pipeline.takes_precision:
        name, _, _ = identify(resolve(places[0]))
        raise UsageError(f"precision {precision} is for models that write or translate; {name} has fp32 alone")
    options = {"precision": precision} if pipeline.takes_precision else {}
    return pipeline.load_class().load(*places, device=device, allow_pickle=allow_pickle, **options)


def entry_of(model: str | Path) -> PipelineEntry:
    """The entry of the pipeline that runs the model of a folder, or of `hf:owner/name`."""
    return PIPELINES[find_pipeline(resolve(local_folder(model)))]


def head_of(model: str | Path) -> str:
    """The head of the model of a folder, or of `hf:owner/name`: what it was trained for, where its config says that."""
    _, config, _ = identify(resolve(local_folder(model)))
    return str(getattr(config, "head", ANY_HEAD))


def input_of(model: str | Path) -> str:
    """What the model of a folder, or of `hf:owner/name`, reads."""
    return entry_of(model).input


def default_model(name: str = "") -> str:
    """The folder of the model that is used where none is named, or of another of the built-in ones."""
    entry = PIPELINES[TRANSLATOR]
    return str(entry.load(entry.default_model)(name))


def models_that(ability: str) -> tuple[str, ...]:
    """The names of the models whose pipeline has an ability."""
    return tuple(name for name, entry in MODELS.items() if PIPELINES[entry.pipeline].ability == ability)


def use_line(folder: Path, model: str, config: Config) -> str:
    """The line of Python with which the card of a model folder shows its use."""
    uses = PIPELINES[find_pipeline(folder, model)].uses
    return uses.get(getattr(config, "head", ANY_HEAD), uses[ANY_HEAD])
