"""regard convert: convert between Regard's model folders and those of other libraries."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from regard.verbs.options import AllowPickle


def convert(
    source: Annotated[str, typer.Argument(help="A model folder, ours or Hugging Face's, or hf:owner/name.")],
    target: Annotated[Path, typer.Argument(help="The folder (or file, of word2vec) to write; it must not exist.")],
    form: Annotated[
        str,
        typer.Option(
            "--to",
            help="regard, huggingface (loads in transformers), marian (the same, of translators alone), ctranslate2, "
            "onnx, or word2vec (a text file).",
        ),
    ] = "regard",
    store: Annotated[
        str,
        typer.Option(help="regard: weights in fp32, or in int8 as int8 inference uses them, a quarter of the size."),
    ] = "fp32",
    allow_pickle: AllowPickle = False,
) -> None:
    """Convert a model folder; what the model computes stays the same, but for the rounding of --store int8.

    huggingface writes a translator as a Marian model, with a tokenizer that AutoTokenizer reads.

    ctranslate2 and onnx need the extra `export`; what they write is for those engines and does not come back.

    Example: regard convert hf:Helsinki-NLP/opus-mt-en-de opus-en-de
    """
    from regard.families.conversion import convert as run

    run(source, target, form, storage=store, allow_pickle=allow_pickle)
    print(f"written to {target}", file=sys.stderr)
