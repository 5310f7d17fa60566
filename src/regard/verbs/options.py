"""Options and loaders that several commands share."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, runtime_checkable

import typer

if TYPE_CHECKING:
    from regard.families.images.pipeline import ImageClassifier
    from regard.families.language.encoder import TextEncoder
    from regard.families.language.generator import TextGenerator
    from regard.families.language.word_vectors import WordVectors
    from regard.families.translation.translator import Translator
    from regard.search.pipeline import Labelled

    Embedder = TextEncoder | WordVectors

Models = Annotated[
    list[str], typer.Option("-m", "--model", help="Model folder or hf:owner/name; several translate as an ensemble.")
]
Model = Annotated[str, typer.Option("-m", "--model", help="Model folder or hf:owner/name.")]
Truncate = Annotated[bool, typer.Option("--truncate", help="Cut texts that are too long instead of refusing them.")]
DataRoot = Annotated[
    str,
    typer.Option(
        "--data-root", help="Folder of what recipes call data:NAME. Default: that of REGARD_DATA, else ../shared/data."
    ),
]
Sets = Annotated[list[str], typer.Option("--set", help="Change a value of the recipe: section.key=value. Repeatable.")]
To = Annotated[str, typer.Option("--to", help="Target language, for models that know several.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
Precision = Annotated[
    str,
    typer.Option(
        help="fp32; int8 on a CPU, bf16 or fp16 on a GPU: fewer bytes, faster, answers may differ; auto: the fastest "
        "here. `regard doctor` tells what each becomes."
    ),
]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="Also read .bin weights (tensors only, no code).")]
Without = Annotated[
    list[str],
    typer.Option("--without", help="Switch a head off: LAYER:HEAD, such as decoder.1.cross:3; * is all. Repeatable."),
]
Changes = Annotated[
    list[str],
    typer.Option(
        "--change",
        help="WHERE=WHAT, WHERE a head LAYER:HEAD or a place, WHAT off, uniform, row QUERY: W W ..., weights, patch or "
        "add FILE.npy STRENGTH. Repeatable; see docs/reading.md.",
    ),
]
Passes = Annotated[
    int,
    typer.Option(min=0, max=100, help="Quality: also by so many passes with dropout, or the members of an ensemble."),
]
Reverse = Annotated[str, typer.Option(help="Quality: also by this model, which translates the answers back.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per line, for machines.")]


@runtime_checkable
class FileClassifier(Protocol):
    """A pipeline that labels files."""

    def classify(self, files: list[str], /) -> list[Labelled]: ...


def load_translator(
    names: list[str], device: str = "cpu", allow_pickle: bool = False, precision: str = "fp32"
) -> Translator:
    """The translator of these folders. Without any, the built-in one, which is trained on first use."""
    from regard.checkpoints.hub import local_folder
    from regard.families.translation.translator import Translator

    folders = map(local_folder, names or [str(built_in())])
    return Translator.load(*folders, device=device, allow_pickle=allow_pickle, precision=precision)


def ask_opinions(translator: Translator, passes: int, reverse: str, device: str, allow_pickle: bool) -> None:
    """Let the quality of this translator's answers be estimated by passes with dropout and by a reverse model too."""
    if not (passes or reverse):
        return
    from regard.families.translation.quality_estimators import SecondOpinions

    other = load_translator([reverse], device, allow_pickle) if reverse else None
    translator.quality.opinions = SecondOpinions(translator, passes, other)


def load_encoder(name: str, device: str = "cpu", allow_pickle: bool = False) -> TextEncoder:
    """The text encoder of a folder."""
    from regard.checkpoints.hub import local_folder
    from regard.families.language.encoder import TextEncoder

    encoder = TextEncoder.load(local_folder(name), device=device, allow_pickle=allow_pickle)
    encoder.warns = False  # the commands report unknown words themselves
    return encoder


def switch_off(context: typer.Context, pipeline: object, heads: list[str]) -> None:
    """Switch heads off, each LAYER:HEAD, until the command of the context ends."""
    from regard.look.interventions import without_heads

    if heads:
        context.with_resource(without_heads(pipeline, heads))


def refuse_given(options: Mapping[str, object], why: str) -> None:
    """Refuse the first of some options, by name, that is not as if it had not been given: it would do nothing."""
    from regard.errors import UsageError

    for name, value in options.items():
        if value not in (None, "", False, 0):
            raise UsageError(f"{name} {why}; leave it out")


def is_image_model(name: str) -> bool:
    """Whether the model of a folder reads or generates images."""
    return input_of(name) == "image"


def input_of(name: str) -> str:
    """What the model of a folder reads: text, image, or another kind of file."""
    from regard.families import loading

    return loading.input_of(name)


def generates_images(name: str) -> bool:
    """Whether the model of a folder generates images."""
    from regard.families.loading import ability_of

    return ability_of(name) == "generate_images"


def load_file_classifier(name: str, device: str = "cpu", allow_pickle: bool = False) -> FileClassifier:
    """The classifier of a folder whose model reads files."""
    import regard
    from regard.errors import UsageError, with_article

    if is_image_model(name):
        return load_classifier(name, device, allow_pickle)
    found = regard.load(name, device=device, allow_pickle=allow_pickle)
    if not isinstance(found, FileClassifier):
        raise UsageError(
            f"{name} is {with_article(type(found).__name__)}, which classifies no files; choose another model"
        )
    return found


def load_classifier(name: str, device: str = "cpu", allow_pickle: bool = False) -> ImageClassifier:
    """The image classifier of a folder."""
    from regard.checkpoints.hub import local_folder
    from regard.families.images.pipeline import ImageClassifier

    return ImageClassifier.load(local_folder(name), device=device, allow_pickle=allow_pickle)


def load_embedder(name: str, device: str = "cpu", allow_pickle: bool = False) -> Embedder:
    """The text encoder or word vectors of a folder."""
    import regard
    from regard.errors import UsageError, with_article
    from regard.families.language.encoder import TextEncoder
    from regard.families.language.word_vectors import WordVectors
    from regard.families.loading import models_that

    found = regard.load(name, device=device, allow_pickle=allow_pickle)
    if not isinstance(found, TextEncoder | WordVectors):
        expected = " or ".join(models_that("embed"))
        raise UsageError(
            f"{name} is {with_article(type(found).__name__)}, which makes no vectors of texts; "
            f"expected {with_article(expected)}"
        )
    found.warns = False  # the commands report unknown words themselves
    return found


def load_word_vectors(name: str, device: str = "cpu", allow_pickle: bool = False) -> WordVectors:
    """The word vectors of a folder or a file."""
    from regard.checkpoints.hub import local_folder
    from regard.families.language.word_vectors import WordVectors

    return WordVectors.load(local_folder(name), device=device, allow_pickle=allow_pickle)


def load_writer(name: str, device: str = "cpu", allow_pickle: bool = False, precision: str = "fp32") -> TextGenerator:
    """The language model or text-to-text model of a folder."""
    import regard
    from regard.errors import UsageError, with_article
    from regard.families.language.generator import TextGenerator
    from regard.families.loading import models_that

    found = regard.load(name, device=device, allow_pickle=allow_pickle, precision=precision)
    if not isinstance(found, TextGenerator):
        expected = " or ".join(models_that("write"))
        raise UsageError(
            f"{name} is {with_article(type(found).__name__)}, which writes no texts; expected {with_article(expected)}"
        )
    return found


def built_in() -> Path:
    """The folder of the built-in translator. It is trained on first use, and the user is told so."""
    from regard.families.translation.demo import demo_folder, demo_model

    if not (demo_folder() / "manifest.json").is_file():
        where = f"training the built-in translator once, into {demo_folder()}"
        print(f"{where}; this takes a few minutes (-m FOLDER uses another model)", file=sys.stderr)
    return demo_model()


def use_data_root(folder: str) -> None:
    """Set the folder of data files, for this process and its child processes."""
    from regard.data.sources import VARIABLE
    from regard.errors import UsageError

    if folder and not Path(folder).is_dir():
        raise UsageError(f"--data-root {folder!r} is no folder")
    if folder:
        os.environ[VARIABLE] = folder


def located_file(name: str) -> str:
    """The path of `data:NAME`, which must be below the data root, also of a part of it (`data:NAME#PART`); any other
    name as it is, unless it is that of a file which is only there."""
    from regard.data.sources import PREFIX, data_root, is_there, located, missing
    from regard.errors import DataError
    from regard.training.recipe.files import PHRASEBOOK, SCENES

    path, file = located(name), name.partition("#")[0]
    if path != name:
        if message := missing(path.partition("#")[0]):
            raise DataError(message)
    elif file and file not in (PHRASEBOOK, SCENES) and not is_there(file) and is_there(f"{data_root()}/{file}"):
        raise DataError(f"there is no {file!r} here; what is below the data root is called {PREFIX}{name}")
    return str(path)


def existing(path: str) -> Path:
    """The path; raises an error if no file is there."""
    from regard.errors import UsageError

    if not Path(path).is_file():
        raise UsageError(f"there is no file {path!r}")
    return Path(path)


def finite(number: float | None) -> float | None:
    """Validate an option with a fraction; typer's own limits accept nan."""
    if number is not None and not math.isfinite(number):
        raise typer.BadParameter(f"{number} is not a finite number.")
    return number


def numbers(text: str, separator: str, count: int | None = None) -> list[int]:
    """Parse the whole numbers of an option: 1,32 or 5-9."""
    from regard.errors import UsageError

    parts = text.split(separator)
    if not all(part.strip().isdecimal() for part in parts) or (count and len(parts) != count):
        raise UsageError(f"{text!r} is not understood; write whole numbers separated by {separator!r}")
    return [int(part) for part in parts]
