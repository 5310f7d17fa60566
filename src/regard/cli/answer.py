"""regard answer: the part of a text that answers a question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import AllowPickle, AsJson, Device, Model, Truncate, load_encoder
from regard.errors import UsageError


def answer(
    question: Annotated[str, typer.Argument(help="The question.")],
    model: Model,
    text: Annotated[str, typer.Option("--text", help="The text that has the answer.")] = "",
    file: Annotated[Path | None, typer.Option("-i", "--input", help="A file with the text instead.")] = None,
    top: Annotated[int, typer.Option(min=1, help="So many answers, best first.")] = 1,
    truncate: Truncate = False,
    as_json: AsJson = False,
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Find the answer to a question in a text: answer TAB probability; an empty answer says that it is not there.

    Example: regard answer "Where does Anna live ?" --text "Anna lives in New York ." -m runs/facts-answers
    """
    if bool(text) == (file is not None):
        raise UsageError("give the text to read: --text TEXT or -i FILE, one of them")
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {file} as UTF-8 text: {error}") from None
    found = load_encoder(model, device, allow_pickle).answer(question, text, top=top, truncate=truncate)
    for each in found:
        plain = " ".join(each.text.split())
        print(json.dumps(each._asdict(), ensure_ascii=False) if as_json else f"{plain}\t{each.probability:.4f}")
