"""Options that several verbs share, declared once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from regard.inference.pipelines import Translator

Models = Annotated[
    list[str], typer.Option("-m", "--model", help="Model folder or hf:owner/name; several translate as an ensemble.")
]
Sets = Annotated[list[str], typer.Option("--set", help="Change a value of the recipe: section.key=value. Repeatable.")]
To = Annotated[str, typer.Option("--to", help="Target language, for models that know several.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="Also read .bin weights (tensors only, no code).")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per line, for machines.")]


def load_translator(names: list[str], device: str = "cpu", allow_pickle: bool = False) -> Translator:
    """The translator of these folders, or the built-in one, trained on first use, when none is named."""
    import regard

    return regard.load(*(names or [str(built_in())]), device=device, allow_pickle=allow_pickle)


def built_in() -> Path:
    """The folder of the built-in translator; the first time it is asked for it is trained, and the user told so."""
    from regard.studies.demo import demo_folder, demo_model

    if not (demo_folder() / "manifest.json").is_file():
        where = f"training the built-in translator once, into {demo_folder()}"
        print(f"{where}; this takes a few minutes (-m FOLDER uses another model)", file=sys.stderr)
    return demo_model()


def existing(path: str) -> Path:
    """A file that must be there."""
    from regard.errors import UsageError

    if not Path(path).is_file():
        raise UsageError(f"there is no file {path!r}")
    return Path(path)
