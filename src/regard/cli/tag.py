"""regard tag: a tag for every word of a text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.answering import Unknown, answer_lines, given_texts, refuse_images
from regard.cli.options import AllowPickle, AsJson, Device, Model, Truncate, load_encoder

if TYPE_CHECKING:
    from regard.inference.pipelines.found_spans import TaggedWord


def tag(
    model: Model,
    text: Annotated[list[str] | None, typer.Argument(help="Texts; without any, lines of stdin.")] = None,
    truncate: Truncate = False,
    as_json: AsJson = False,
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Tag the words of texts: word TAB tag, one word a line, an empty line after each text, as in CoNLL's files.

    With --json each text is one line. A text that is too long for the model comes out as an empty line with a message
    on stderr, and the exit code is 1.

    Example: regard tag "Anna lives in New York ." -m runs/facts-tags
    """
    refuse_images(text or ())
    encoder = load_encoder(model, device, allow_pickle)
    unknown = Unknown(encoder.unknown_words, typed=bool(text))

    def answer(lines: list[str]) -> list[list[TaggedWord]]:
        return encoder.tag(lines, truncate=truncate)

    answer_lines(given_texts(text), answer, lambda line, found: _shown(line, found, as_json), unknown)


def _shown(line: str, found: list[TaggedWord] | None, as_json: bool) -> str:
    if found is None:
        return "null" if as_json else ""
    if as_json:
        return json.dumps({"text": line, "words": [word._asdict() for word in found]}, ensure_ascii=False)
    return "".join(f"{word.word}\t{word.tag}\n" for word in found)
