"""regard fill: predict hidden words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.answering import Unknown, answer_lines, given_texts, refuse_images
from regard.cli.options import AllowPickle, AsJson, Device, Model, Without, load_encoder, switch_off

if TYPE_CHECKING:
    from regard.inference.pipelines.text_encoder import TextEncoder


def fill(
    context: typer.Context,
    model: Model,
    text: Annotated[list[str] | None, typer.Argument(help="Texts with [MASK]; without any, lines of stdin.")] = None,
    top: Annotated[
        int, typer.Option(min=1, help="Above 1: so many lines per text, probability TAB token TAB text.")
    ] = 1,
    without: Without = [],  # noqa: B006 - typer's way to say "none given"
    as_json: AsJson = False,
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Fill in hidden words, written [MASK]: each line comes out with its most probable words in place.

    A line that hides no word, or with --top more than one, comes out empty with a message on stderr, and the exit code
    is 1. With --json every hidden word has its own guesses.

    Example: regard fill "Paris is the [MASK] of France." -m hf:google-bert/bert-base-uncased --top 5
    """
    refuse_images(text or ())
    encoder = load_encoder(model, device, allow_pickle)
    switch_off(context, encoder, without)

    def answer(lines: list[str]) -> list[str]:
        return [_line(encoder, line, top, as_json) for line in lines]

    unknown = Unknown(encoder.unknown_words, typed=bool(text))
    answer_lines(given_texts(text), answer, lambda _, found: found or ("null" if as_json else ""), unknown)


def _line(encoder: TextEncoder, text: str, top: int, as_json: bool) -> str:
    if as_json:
        masks = [[guess._asdict() for guess in guesses] for guesses in encoder.fill_each(text, top)]
        return json.dumps({"text": text, "masks": masks}, ensure_ascii=False)
    if top == 1:
        return encoder.fill_all(text)
    return "\n".join(f"{guess.probability:.4f}\t{guess.token}\t{guess.text}" for guess in encoder.fill(text, top))
