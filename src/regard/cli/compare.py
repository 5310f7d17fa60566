"""regard compare: architectures side by side on the same data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import AsJson, Device


def compare(
    what: Annotated[
        str, typer.Argument(help="`length`: BLEU against sentence length; `sequences`: three ways to process one.")
    ],
    model: Annotated[
        list[str], typer.Option("-m", "--model", help="For `length`: NAME=FOLDER or FOLDER. Repeatable.")
    ] = [],  # noqa: B006
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to draw: FILE.svg or .png.")] = None,
    to: Annotated[str, typer.Option("--to", help="Target language.")] = "",
    count: Annotated[int, typer.Option(help="Sentences per length bin.")] = 100,
    bins: Annotated[str, typer.Option(help="Length bins in source words.")] = "1-10,11-20,21-30,31-40,41-50,51-60",
    lengths: Annotated[str, typer.Option(help="For `sequences`: the lengths to measure.")] = "32,64,128,256,512,1024",
    width: Annotated[int, typer.Option(help="For `sequences`: the width of every layer.")] = 128,
    as_json: AsJson = False,
    device: Device = "cpu",
) -> None:
    """Compare models: BLEU against sentence length, or recurrence, convolution and attention on one sequence.

    Example: regard compare length -m fixed=runs/phrasebook-rnn-fixed -m attention=runs/phrasebook-rnn -o length.svg
    """
    from regard.errors import UsageError
    from regard.studies import compare as study

    if what == "length":
        study.report_length(model, output, to=to, count=count, bins=bins, as_json=as_json, device=device)
    elif what == "sequences":
        study.report_sequences(output, lengths=lengths, width=width, as_json=as_json)
    else:
        raise UsageError(f"cannot compare {what!r}; choose `length` or `sequences`")
