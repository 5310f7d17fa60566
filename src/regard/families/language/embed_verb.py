"""regard embed: sentence vectors."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.data.files import write_whole
from regard.errors import DataError, UsageError
from regard.verbs.answering import Unknown, answer_lines, given_texts, refuse_images
from regard.verbs.options import (
    AllowPickle,
    AsJson,
    Device,
    Model,
    Truncate,
    Without,
    existing,
    load_embedder,
    switch_off,
)

if TYPE_CHECKING:
    from torch import Tensor

PART = 4096  # lines in a part, the unit of work that a process finishes and stores


def embed(
    context: typer.Context,
    model: Model,
    text: Annotated[list[str] | None, typer.Argument(help="Texts to embed; without any, lines of stdin.")] = None,
    pooling: Annotated[str, typer.Option(help="mean, cls, max, … Default: the model's own modules, else mean.")] = "",
    prompt: Annotated[str, typer.Option(help="Name of one of the model's prompts, put before each text.")] = "",
    raw: Annotated[bool, typer.Option("--raw", help="Leave vectors as long as they are; otherwise length 1.")] = False,
    input_file: Annotated[
        str, typer.Option("-i", "--input", help="A text file, one text a line; torchrun's processes share it.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write all vectors to FILE.npy instead of printing them.")
    ] = None,
    truncate: Truncate = False,
    without: Without = [],  # noqa: B006 - typer's way to say "none given"
    as_json: AsJson = False,
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Turn texts into vectors: one line of numbers out for each line in.

    A large file can be shared: torchrun --nproc-per-node 8 -m regard embed -m MODEL -i texts.txt -o vectors.npy

    A line that is too long for the model comes out empty with a message on stderr, and the exit code is 1.

    Example: regard embed "we are eating bread" "they have lunch" -m hf:sentence-transformers/all-MiniLM-L6-v2 --json
    """
    if output and (output.suffix != ".npy" or as_json):
        raise UsageError("--output writes the vectors as one matrix to a file called something.npy, without --json")
    import torch

    from regard.data.files import Parts
    from regard.data.formats.lines import read_lines
    from regard.training.distributed import joined

    if input_file and text:
        raise UsageError("give texts or --input, not both")
    refuse_images(text or ())
    encoder = load_embedder(model, device, allow_pickle)
    switch_off(context, encoder, without)

    unknown = Unknown(encoder.unknown_words, typed=bool(text))

    def answer(lines: list[str]) -> Tensor:
        return encoder.embed(lines, pooling=pooling, prompt=prompt, normalise=not raw, truncate=truncate)

    def noted(lines: list[str]) -> Tensor:
        for line in lines:
            unknown.note(line)
        return answer(lines)

    def show(line: str, vector: Tensor | None) -> str:
        if vector is None:
            return "null" if as_json else ""
        numbers = vector.tolist()
        if as_json:
            return json.dumps({"text": line, "embedding": numbers}, ensure_ascii=False)
        return " ".join(f"{number:.8g}" for number in numbers)

    lines = read_lines(existing(input_file)) if input_file else given_texts(text)
    if output is None:
        answer_lines(lines, lambda lines: list(answer(lines)), show, unknown)
        return
    if input_file:
        options = {"model": model, "pooling": pooling, "prompt": prompt, "raw": raw, "truncate": truncate}
        parts = Parts.of(output, Path(input_file), **options)
        with joined(torch.device("cpu")) as ranks:
            parts.work(lines, PART, lambda some: _npy(noted(some)), lambda places: _join(places, output), ranks.wait)
        unknown.tell()
        return
    write_whole(output, _npy(noted(list(lines))))
    unknown.tell()
    _tell(output)


def _npy(vectors: Tensor) -> bytes:
    import numpy as np

    file = io.BytesIO()
    np.save(file, vectors.numpy())
    return file.getvalue()


def _join(parts: Sequence[Path], output: Path) -> None:
    """Join several matrices into one; they need not fit into memory."""
    import numpy as np

    if not parts:
        raise DataError("there is no line to embed; give a file with some")
    matrices = [np.load(part, mmap_mode="r") for part in parts]
    shape = sum(len(matrix) for matrix in matrices), matrices[0].shape[1]
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    whole = np.lib.format.open_memmap(temporary, "w+", matrices[0].dtype, shape)
    np.concatenate(matrices, out=whole)
    whole.flush()
    temporary.replace(output)
    _tell(output)


def _tell(output: Path) -> None:
    import numpy as np

    rows, width = np.load(output, mmap_mode="r").shape
    print(f"{rows} vectors of {width} numbers written to {output}", file=sys.stderr)
