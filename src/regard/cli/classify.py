"""regard classify: labels of texts, or of pairs of texts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.answering import answer_lines, given_texts
from regard.cli.options import AllowPickle, AsJson, Device, Model, Truncate, load_encoder
from regard.errors import DataError

if TYPE_CHECKING:
    from regard.inference.encoders import Labelled


def classify(
    model: Model,
    text: Annotated[list[str] | None, typer.Argument(help="Texts to classify; without any, lines of stdin.")] = None,
    pairs: Annotated[bool, typer.Option("--pairs", help="Each line is two texts with a TAB between them.")] = False,
    truncate: Truncate = False,
    as_json: AsJson = False,
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Label texts: one line out for each line in, label TAB probability, or the value a model rates it with.

    A line that is too long for the model, or no pair, comes out empty with a message on stderr, and the exit code is 1.

    Example: regard classify "a moving, funny film" -m runs/sst2
    """
    encoder = load_encoder(model, device, allow_pickle)

    def answer(lines: list[str]) -> list[Labelled]:
        if not pairs:
            return encoder.classify(lines, truncate=truncate)
        firsts, seconds = zip(*map(_pair, lines), strict=True)
        return encoder.classify(firsts, seconds, truncate=truncate)

    def show(line: str, found: Labelled | None) -> str:
        if found is None:
            return "null" if as_json else ""
        if as_json:
            values = {"label": found.label, "probability": found.probability, "labels": found.labels}
            return json.dumps(
                {"text": line, **(values if found.labels else {"value": found.value})}, ensure_ascii=False
            )
        return f"{found.label}\t{found.probability:.4f}" if found.labels else f"{found.value:.4f}"

    answer_lines(given_texts(text), answer, show)


def _pair(line: str) -> tuple[str, str]:
    parts = line.split("\t")
    if len(parts) != 2:
        raise DataError(f"{line[:60]!r} has {len(parts) - 1} TABs; --pairs expects two texts with one between them")
    return parts[0], parts[1]
