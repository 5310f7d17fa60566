"""regard embed: sentence vectors."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.answering import answer_lines, given_texts
from regard.cli.options import AllowPickle, AsJson, Device, Model, Truncate, load_embedder
from regard.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor


def embed(
    model: Model,
    text: Annotated[list[str] | None, typer.Argument(help="Texts to embed; without any, lines of stdin.")] = None,
    pooling: Annotated[str, typer.Option(help="mean or cls. Default: the model's own, else mean.")] = "",
    raw: Annotated[bool, typer.Option("--raw", help="Leave vectors as long as they are; otherwise length 1.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write all vectors to FILE.npy instead of printing them.")
    ] = None,
    truncate: Truncate = False,
    as_json: AsJson = False,
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Turn texts into vectors: one line of numbers out for each line in.

    A line that is too long for the model comes out empty with a message on stderr, and the exit code is 1.

    Example: regard embed "we are eating bread" "they have lunch" -m hf:sentence-transformers/all-MiniLM-L6-v2 --json
    """
    if output and (output.suffix != ".npy" or as_json):
        raise UsageError("--output writes the vectors as one matrix to a file called something.npy, without --json")
    encoder = load_embedder(model, device, allow_pickle)

    def answer(lines: list[str]) -> Tensor:
        return encoder.embed(lines, pooling=pooling, normalise=not raw, truncate=truncate)

    def show(line: str, vector: Tensor | None) -> str:
        if vector is None:
            return "null" if as_json else ""
        numbers = vector.tolist()
        if as_json:
            return json.dumps({"text": line, "embedding": numbers}, ensure_ascii=False)
        return " ".join(f"{number:.8g}" for number in numbers)

    if output is None:
        answer_lines(given_texts(text), lambda lines: list(answer(lines)), show)
        return
    import numpy as np

    vectors = answer(list(given_texts(text)))
    with output.open("wb") as file:
        np.save(file, vectors.numpy())
    print(f"{len(vectors)} vectors of {vectors.shape[1]} numbers written to {output}", file=sys.stderr)
