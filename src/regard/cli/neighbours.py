"""regard neighbours: the words most similar to a word, and analogies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.answering import answer_lines, given_texts
from regard.cli.options import AllowPickle, AsJson, Device, load_word_vectors
from regard.errors import UsageError

if TYPE_CHECKING:
    from regard.inference.pipelines.word_vectors import Neighbour

Vectors = Annotated[str, typer.Option("-m", "--model", help="Folder or file of word vectors.")]


def neighbours(
    model: Vectors,
    word: Annotated[list[str] | None, typer.Argument(help="Words; without any, lines of stdin.")] = None,
    analogy: Annotated[
        bool, typer.Option("--analogy", help="Three words, a b c: what is to c as b is to a (one triple a line).")
    ] = False,
    top: Annotated[int, typer.Option("-n", "--top", min=1, help="How many.")] = 10,
    as_json: AsJson = False,
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Print the words most like each word, with their cosines: one line out for each word.

    A word that is not known comes out empty with a message on stderr, and the exit code is 1.

    Example: regard neighbours man king woman --analogy -m runs/words
    """
    vectors = load_word_vectors(model, device, allow_pickle)

    def answer(asked: list[str]) -> list[list[Neighbour]]:
        if not analogy:
            return [vectors.neighbours(each.strip(), top) for each in asked]
        return [vectors.analogy(*_triple(each), top) for each in asked]

    def show(asked: str, found: list[Neighbour] | None) -> str:
        if found is None:
            return "null" if as_json else ""
        if as_json:
            return json.dumps({"asked": asked, "neighbours": [each._asdict() for each in found]}, ensure_ascii=False)
        return "\t".join(f"{each.word} {each.similarity:.3f}" for each in found)

    answer_lines(given_texts([" ".join(word)] if word and analogy else word), answer, show)


def _triple(asked: str) -> tuple[str, str, str]:
    words = asked.split()
    if len(words) != 3:
        raise UsageError(f"an analogy needs three words, as in man king woman; {asked!r} has {len(words)}")
    return words[0], words[1], words[2]
