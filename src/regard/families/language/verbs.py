"""regard read and regard embed: text encoders and word vectors on texts."""

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
from regard.verbs.options import Truncate, existing, refuse_both, refuse_given
from regard.verbs.progress import Progress
from regard.verbs.verb import AttentionVerb, TextVerb, label_line, label_values

if TYPE_CHECKING:
    from torch import Tensor

    from regard.families.language.text_reader import TaggedWord
    from regard.families.loading import Pipeline
    from regard.search.pipeline import Labelled
    from regard.verbs.inputs import Unknown

Texts = Annotated[list[str] | None, typer.Argument(help="Texts; without any, lines of stdin.")]


@dataclass(kw_only=True)
class Classify(TextVerb):
    """Label texts: one line out for each line in, label TAB probability, or the value it is rated with.

    A line that is too long for the model, or not a pair, comes out empty with a message on stderr, and the exit code is
    1.

    Example: regard read "a moving, funny film" -m runs/sst2
    """

    abilities, method, does, heads = ("embed",), "classify", "label texts", ("classify",)

    text: Texts = None
    pairs: Annotated[bool, typer.Option("--pairs", help="Each line is two texts with a TAB between them.")] = False
    truncate: Truncate = False

    def answers(self, inputs: list[str]) -> list[Labelled]:
        texts = zip(*map(_pair, inputs), strict=True) if self.pairs else [inputs]
        found: list[Labelled] = self.pipeline.classify(*texts, truncate=self.truncate)
        return found

    def as_text(self, given: str, answer: Labelled) -> str:
        return label_line(answer)

    def as_values(self, given: str, answer: Labelled) -> dict[str, Any]:
        return {"text": given, **label_values(answer)}


def _pair(line: str) -> list[str]:
    parts = line.split("\t")
    if len(parts) != 2:
        raise DataError(f"{line[:60]!r} has {len(parts) - 1} TABs; --pairs expects two texts with one between them")
    return parts


@dataclass(kw_only=True)
class Fill(TextVerb):
    """Fill in hidden words, written [MASK]: each line comes out with its most probable words in place.

    A line that hides no word, or with --top more than one, comes out empty with a message on stderr, and the exit code
    is 1. With --json every hidden word has its own guesses.

    Example: regard read "Paris is the [MASK] of France." -m hf:google-bert/bert-base-uncased --top 5
    """

    abilities, method, does = ("embed",), "fill", "fill in hidden words"
    heads = ("masked", "pretraining")

    text: Annotated[list[str] | None, typer.Argument(help="Texts with [MASK]; without any, lines of stdin.")] = None
    top: Annotated[
        int, typer.Option(min=1, help="Above 1: so many lines per text, probability TAB token TAB text.")
    ] = 1

    def answers(self, inputs: list[str]) -> list[Any]:
        if self.as_json:
            return [self.pipeline.fill_each(line, self.top) for line in inputs]
        return [
            self.pipeline.fill_all(line) if self.top == 1 else self.pipeline.fill(line, self.top) for line in inputs
        ]

    def as_text(self, given: str, answer: Any) -> str:
        if self.top == 1:
            return str(answer)
        return "\n".join(f"{guess.probability:.4f}\t{guess.token}\t{guess.text}" for guess in answer)

    def as_values(self, given: str, answer: Any) -> dict[str, Any]:
        return {"text": given, "masks": [[guess._asdict() for guess in guesses] for guesses in answer]}


@dataclass(kw_only=True)
class Tag(TextVerb):
    """Tag the words of texts: word TAB tag, one word a line, an empty line after each text, as in CoNLL's files.

    With --json each text is one line. A text that is too long for the model comes out as an empty line with a message
    on stderr, and the exit code is 1.

    Example: regard read "Anna lives in New York ." -m runs/facts-tags
    """

    abilities, method, does, heads = ("embed",), "tag", "tag words", ("tags",)

    text: Texts = None
    truncate: Truncate = False

    def answers(self, inputs: list[str]) -> Any:
        return self.pipeline.tag(inputs, truncate=self.truncate)

    def as_text(self, given: str, answer: list[TaggedWord]) -> str:
        return "".join(f"{word.word}\t{word.tag}\n" for word in answer)

    def as_values(self, given: str, answer: list[TaggedWord]) -> dict[str, Any]:
        return {"text": given, "words": [word._asdict() for word in answer]}


@dataclass(kw_only=True)
class Answer(AttentionVerb):
    """Find the answer to a question in a text: answer TAB probability; an empty answer says that it is not there.

    Example: regard read "Where does Anna live ?" --text "Anna lives in New York ." -m runs/facts-answers
    """

    abilities, method, does = ("embed",), "answer", "answer questions about texts"
    heads = ("answer",)

    question: Annotated[str, typer.Argument(help="The question.")]
    text: Annotated[str, typer.Option("--text", help="The text that has the answer.")] = ""
    file: Annotated[Path | None, typer.Option("-i", "--input", help="A file with the text instead.")] = None
    top: Annotated[int, typer.Option(min=1, help="So many answers, best first.")] = 1
    truncate: Truncate = False

    def check(self) -> None:
        if bool(self.text) == (self.file is not None):
            raise UsageError("give the text to read: --text TEXT or -i FILE, one of them")
        if self.file is not None:
            try:
                self.text = self.file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(f"cannot read {self.file} as UTF-8 text: {error}") from None

    def run(self) -> None:
        for found in self.pipeline.answer(self.question, self.text, top=self.top, truncate=self.truncate):
            self.say(f"{' '.join(found.text.split())}\t{found.probability:.4f}", found._asdict())


TOP = 10  # neighbours
PART = 4096  # lines in a part, the unit of work that a process finishes and stores


@dataclass(kw_only=True)
class Embed(TextVerb):
    """Turn texts into vectors: one line of numbers out for each line in; or print the words most like each word.

    Word vectors know neighbours: with --neighbours the words that are most like each word, with their cosines. A word
    that is not known comes out empty with a message on stderr, and the exit code is 1.

    A large file can be shared: torchrun --nproc-per-node 8 -m regard embed -m MODEL -i texts.txt -o vectors.npy

    A line that is too long for the model comes out empty with a message on stderr, and the exit code is 1.

    Example: regard embed "we are eating bread" "they have lunch" -m hf:sentence-transformers/all-MiniLM-L6-v2 --json
    Example: regard embed man king woman --analogy -m runs/words
    """

    abilities = ("embed",)

    model: Annotated[str, typer.Option("-m", "--model", help="Model folder or hf:owner/name; a file of word vectors.")]
    text: Annotated[list[str] | None, typer.Argument(help="Texts to embed; without any, lines of stdin.")] = None
    neighbours: Annotated[bool, typer.Option("--neighbours", help="Words: the words most like each of them.")] = False
    analogy: Annotated[
        bool, typer.Option("--analogy", help="Three words, a b c: what is to c as b is to a (one triple a line).")
    ] = False
    top: Annotated[int, typer.Option("-n", "--top", min=1, help="How many neighbours.")] = TOP
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

    @property
    def of_words(self) -> bool:
        """Whether words are asked for, not vectors."""
        return self.neighbours or self.analogy

    @property
    def method(self) -> str:  # type: ignore[override]  # what is asked for
        return "neighbours" if self.of_words else "embed"

    @property
    def does(self) -> str:  # type: ignore[override]
        return "have vectors of words" if self.of_words else "make vectors of texts"

    def load(self) -> Pipeline:
        from regard.families.language.word_vectors import WordVectors

        return WordVectors.read(Path(self.model)) if Path(self.model).is_file() else super().load()

    @property
    def typed(self) -> list[str]:
        return [" ".join(self.text)] if self.text and self.analogy else self.text or []

    @property
    def unknown(self) -> Unknown | None:  # of its neighbours an unknown word is an error
        return None if self.of_words else super().unknown

    def check(self) -> None:
        of_vectors = {
            "--pooling": self.pooling, "--prompt": self.prompt, "--raw": self.raw, "-o": self.output,
            "--truncate": self.truncate,
        }  # fmt: skip
        if self.of_words:
            refuse_given(of_vectors, "is for vectors, and --neighbours and --analogy print words")
        else:
            refuse_given({"--top": self.top != TOP}, "counts the words of --neighbours and --analogy")
        if self.output and (self.output.suffix != ".npy" or self.as_json):
            raise UsageError("--output writes the vectors as one matrix to a file called something.npy, without --json")
        refuse_both(self.input_file, self.text, "texts or --input")
        super().check()

    def inputs(self) -> Iterator[str]:
        from regard.data.formats.lines import read_lines

        return read_lines(existing(self.input_file)) if self.input_file else given_texts(self.typed)

    @property
    def total(self) -> int | None:
        if not self.input_file:
            return super().total
        return sum(1 for _ in self.inputs()) if sys.stderr.isatty() else None

    def vectors(self, texts: list[str]) -> Tensor:
        found: Tensor = self.pipeline.embed(
            texts, pooling=self.pooling, prompt=self.prompt, normalise=not self.raw, truncate=self.truncate
        )
        return found

    def answers(self, inputs: list[str]) -> list[Any]:
        if self.analogy:
            return [self.pipeline.analogy(*_triple(words), self.top) for words in inputs]
        if self.neighbours:
            return [self.pipeline.neighbours(word.strip(), self.top) for word in inputs]
        return list(self.vectors(inputs))

    def as_text(self, given: str, answer: Any) -> str:
        if self.of_words:
            return "\t".join(f"{each.word} {each.similarity:.3f}" for each in answer)
        return " ".join(f"{number:.8g}" for number in answer.tolist())

    def as_values(self, given: str, answer: Any) -> dict[str, Any]:
        if self.of_words:
            return {"asked": given, "neighbours": [each._asdict() for each in answer]}
        return {"text": given, "embedding": answer.tolist()}

    def run(self) -> None:
        if self.output is None:
            super().run()
        else:
            self._write(self.output)
            self.finish([])

    def _write(self, output: Path) -> None:
        """One matrix of all vectors; the processes that torchrun started share the lines of a file."""
        import numpy as np
        import torch

        from regard.data.files import Parts
        from regard.training.distributed import joined

        def noted(texts: list[str]) -> bytes:
            vectors = []
            for begin in range(0, max(1, len(texts)), self.at_once):
                some = texts[begin : begin + self.at_once]
                for text in some:
                    self.note(text, None)
                vectors.append(self.vectors(some).numpy())
                progress.advance(len(some))
            np.save(file := io.BytesIO(), np.concatenate(vectors))
            return file.getvalue()

        progress = Progress(self.unit, self.total)
        if not self.input_file:
            with progress:
                write_whole(output, noted(list(self.inputs())))
            _tell(output)
            return
        names = ("model", "pooling", "prompt", "raw", "truncate")
        parts = Parts.of(output, Path(self.input_file), **{name: getattr(self, name) for name in names})
        with progress, joined(torch.device("cpu")) as ranks:
            parts.work(self.inputs(), PART, noted, lambda places: _join(places, output), ranks.wait)


@dataclass(kw_only=True)
class Neighbours(Embed):
    __doc__ = Embed.__doc__

    neighbours: bool = True


def _triple(given: str) -> list[str]:
    words = given.split()
    if len(words) != 3:
        raise UsageError(f"an analogy needs three words, as in man king woman; {given!r} has {len(words)}")
    return words


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
