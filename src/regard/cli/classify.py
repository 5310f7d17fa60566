"""regard classify: labels of texts, of pairs of texts, or of images."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.answering import Unknown, answer_lines, given_texts, refuse_images
from regard.cli.options import (
    AllowPickle,
    AsJson,
    Changes,
    Device,
    Model,
    Truncate,
    Without,
    input_of,
    load_encoder,
    load_file_classifier,
)
from regard.errors import DataError, UsageError

if TYPE_CHECKING:
    from regard.inference.pipelines.labelled import Labelled


def classify(
    model: Model,
    text: Annotated[
        list[str] | None, typer.Argument(help="Texts, or files of images; without any, lines of stdin.")
    ] = None,
    pairs: Annotated[bool, typer.Option("--pairs", help="Each line is two texts with a TAB between them.")] = False,
    truncate: Truncate = False,
    without: Without = [],  # noqa: B006 - typer's way to say "none given"
    change: Changes = [],  # noqa: B006 - typer's way to say "none given"
    as_json: AsJson = False,
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Label texts or images: one line out for each line in, label TAB probability, or the value it is rated with.

    A line that is too long for the model, no pair, or the name of a file that is no image comes out empty with a
    message on stderr, and the exit code is 1.

    Example: regard classify "a moving, funny film" -m runs/sst2
    Example: regard classify holiday/*.jpg -m hf:google/vit-base-patch16-224
    """
    from regard.inference.insight.interventions import changed, switched_off

    if (kind := input_of(model)) != "text":
        if pairs or truncate:
            raise UsageError("--pairs and --truncate are for texts; this model reads files")
        classifier = load_file_classifier(model, device, allow_pickle)
        with changed(classifier, switched_off(without) + change):
            answer_lines(given_texts(text), classifier.classify, lambda line, found: _shown(kind, line, found, as_json))
        return
    refuse_images(text or ())
    encoder = load_encoder(model, device, allow_pickle)

    def answer(lines: list[str]) -> list[Labelled]:
        if not pairs:
            return encoder.classify(lines, truncate=truncate)
        firsts, seconds = zip(*map(_pair, lines), strict=True)
        return encoder.classify(firsts, seconds, truncate=truncate)

    unknown = Unknown(encoder.unknown_words, typed=bool(text))
    with changed(encoder, switched_off(without) + change):
        answer_lines(given_texts(text), answer, lambda line, found: _shown("text", line, found, as_json), unknown)


def _shown(kind: str, line: str, found: Labelled | None, as_json: bool) -> str:
    if found is None:
        return "null" if as_json else ""
    if as_json:
        values = {"label": found.label, "probability": found.probability, "labels": found.labels}
        return json.dumps({kind: line, **(values if found.labels else {"value": found.value})}, ensure_ascii=False)
    return f"{found.label}\t{found.probability:.4f}" if found.labels else f"{found.value:.4f}"


def _pair(line: str) -> tuple[str, str]:
    parts = line.split("\t")
    if len(parts) != 2:
        raise DataError(f"{line[:60]!r} has {len(parts) - 1} TABs; --pairs expects two texts with one between them")
    return parts[0], parts[1]
