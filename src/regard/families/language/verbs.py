"""regard tag: a tag for every word of a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.errors import DataError, UsageError
from regard.verbs.answering import Unknown, answer_lines, given_texts, refuse_images
from regard.verbs.options import (
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
    load_word_vectors,
    switch_off,
)

if TYPE_CHECKING:
    from regard.families.language.encoder import TextEncoder
    from regard.families.language.text_reader import TaggedWord
    from regard.families.language.word_vectors import Neighbour
    from regard.search.pipeline import Labelled


def answer(
    question: Annotated[str, typer.Argument(help="The question.")],
    model: Model,
    text: Annotated[str, typer.Option("--text", help="The text that has the answer.")] = "",
    file: Annotated[Path | None, typer.Option("-i", "--input", help="A file with the text instead.")] = None,
    top: Annotated[int, typer.Option(min=1, help="So many answers, best first.")] = 1,
    truncate: Truncate = False,
    as_json: AsJson = False,
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Find the answer to a question in a text: answer TAB probability; an empty answer says that it is not there.

    Example: regard answer "Where does Anna live ?" --text "Anna lives in New York ." -m runs/facts-answers
    """
    if bool(text) == (file is not None):
        raise UsageError("give the text to read: --text TEXT or -i FILE, one of them")
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {file} as UTF-8 text: {error}") from None
    found = load_encoder(model, device, allow_pickle).answer(question, text, top=top, truncate=truncate)
    for each in found:
        plain = " ".join(each.text.split())
        print(json.dumps(each._asdict(), ensure_ascii=False) if as_json else f"{plain}\t{each.probability:.4f}")


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
    from regard.look.interventions import changed, switched_off

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

    answer_lines(given_texts(text), answer, lambda line, found: _tagged(line, found, as_json), unknown)


def _tagged(line: str, found: list[TaggedWord] | None, as_json: bool) -> str:
    if found is None:
        return "null" if as_json else ""
    if as_json:
        return json.dumps({"text": line, "words": [word._asdict() for word in found]}, ensure_ascii=False)
    return "".join(f"{word.word}\t{word.tag}\n" for word in found)
