"""regard embed: sentence vectors."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.data.files import write_whole
from regard.errors import DataError, UsageError
from regard.verbs.inputs import given_texts
from regard.verbs.options import Truncate, existing, refuse_both
from regard.verbs.verb import TextVerb

if TYPE_CHECKING:
    from torch import Tensor

PART = 4096  # lines in a part, the unit of work that a process finishes and stores


@dataclass(kw_only=True)
class Embed(TextVerb):
    """Turn texts into vectors: one line of numbers out for each line in.

    A large file can be shared: torchrun --nproc-per-node 8 -m regard embed -m MODEL -i texts.txt -o vectors.npy

    A line that is too long for the model comes out empty with a message on stderr, and the exit code is 1.

    Example: regard embed "we are eating bread" "they have lunch" -m hf:sentence-transformers/all-MiniLM-L6-v2 --json
    """

    abilities, method, does = ("embed",), "embed", "make vectors of texts"

    text: Annotated[list[str] | None, typer.Argument(help="Texts to embed; without any, lines of stdin.")] = None
    pooling: Annotated[str, typer.Option(help="mean, cls, max, … Default: the model's own modules, else mean.")] = ""
    prompt: Annotated[str, typer.Option(help="Name of one of the model's prompts, put before each text.")] = ""
    raw: Annotated[bool, typer.Option("--raw", help="Leave vectors as long as they are; otherwise length 1.")] = False
    input_file: Annotated[
        str, typer.Option("-i", "--input", help="A text file, one text a line; torchrun's processes share it.")
    ] = ""
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write all vectors to FILE.npy instead of printing them.")
    ] = None
    truncate: Truncate = False

    def check(self) -> None:
        if self.output and (self.output.suffix != ".npy" or self.as_json):
            raise UsageError("--output writes the vectors as one matrix to a file called something.npy, without --json")
        refuse_both(self.input_file, self.text, "texts or --input")
        super().check()

    def inputs(self) -> Iterator[str]:
        from regard.data.formats.lines import read_lines

        return read_lines(existing(self.input_file)) if self.input_file else given_texts(self.text)

    def vectors(self, texts: list[str]) -> Tensor:
        found: Tensor = self.pipeline.embed(
            texts, pooling=self.pooling, prompt=self.prompt, normalise=not self.raw, truncate=self.truncate
        )
        return found

    def answers(self, inputs: list[str]) -> list[Tensor]:
        return list(self.vectors(inputs))

    def as_text(self, given: str, answer: Tensor) -> str:
        return " ".join(f"{number:.8g}" for number in answer.tolist())

    def as_values(self, given: str, answer: Tensor) -> dict[str, Any]:
        return {"text": given, "embedding": answer.tolist()}

    def run(self) -> None:
        if self.output is None:
            super().run()
        else:
            self._write(self.output)
            self.finish([])

    def _write(self, output: Path) -> None:
        """One matrix of all vectors; the processes that torchrun started share the lines of a file."""
        import torch

        from regard.data.files import Parts
        from regard.training.distributed import joined

        def noted(texts: list[str]) -> bytes:
            for text in texts:
                self.note(text, None)
            return _npy(self.vectors(texts))

        if not self.input_file:
            write_whole(output, noted(list(self.inputs())))
            _tell(output)
            return
        names = ("model", "pooling", "prompt", "raw", "truncate")
        parts = Parts.of(output, Path(self.input_file), **{name: getattr(self, name) for name in names})
        with joined(torch.device("cpu")) as ranks:
            parts.work(self.inputs(), PART, noted, lambda places: _join(places, output), ranks.wait)


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
