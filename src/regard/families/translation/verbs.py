"""regard translate: text, lines on standard input, or whole documents."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext
from itertools import compress, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from regard.errors import DataError, UsageError
from regard.families.translation.document_verb import Foreign, translate_file
from regard.verbs.answering import Unknown, refuse_images, unknown_to
from regard.verbs.options import (
    AllowPickle,
    AsJson,
    Changes,
    Device,
    Models,
    Passes,
    Precision,
    Reverse,
    To,
    Without,
    ask_opinions,
    existing,
    load_translator,
)

if TYPE_CHECKING:
    from regard.documents.memory import MemoryMatch
    from regard.families.translation.glossary import Glossary
    from regard.families.translation.memory import Remembered
    from regard.families.translation.pivot import Pivot
    from regard.families.translation.translation import Translation
    from regard.families.translation.translator import Translator


TEXT_ALONE = {"--json", "--align", "--quality", "--attention", "--n-best"}  # what a document or a stream cannot show


def refuse_clashes(asked: AbstractSet[str], texts: int) -> None:
    """Refuse options, named as on the command line, that clash with each other or with a number of given texts."""
    if "--input" in asked and texts:
        raise UsageError("give texts or --input, not both")
    if "--attention" in asked and texts != 1:
        raise UsageError("--attention draws one sentence; give exactly one text")
    document = {"--input", "--output"} <= asked
    if (document or "--stream" in asked) and asked & TEXT_ALONE:
        way = "--stream" if "--stream" in asked else "--input with --output"
        raise UsageError(
            f"{way} gives the translation alone; leave out --json, --align, --quality, --attention and --n-best"
        )
    if {"--stream", "--memory"} <= asked:
        raise UsageError("--memory shows and takes whole translations; leave out --stream")
    if document and asked & {"--without", "--change"}:
        raise UsageError("--without and --change are for texts and lines; leave out --output")
    if (asked & {"--review", "--review-below"} and not document) or ("--encoding" in asked and texts):
        raise UsageError(
            "--review and --review-below are for documents (--input with --output), --encoding for what is read, not "
            "for texts"
        )
    if asked & {"--passes", "--reverse"} and ("--from" in asked or not asked & {"--quality", "--review-below"}):
        raise UsageError("--passes and --reverse need --quality or --review-below, and a model named without --from")


def output_line(
    answer: Translation | None, matches: list[MemoryMatch], *, align: bool, quality: bool, as_json: bool
) -> str:
    """What is printed for one text: the translation, several translations with their scores, or JSON."""
    if answer is None:
        return "null" if as_json else ""
    if as_json:
        others = [_as_json(each, align, quality) for each in answer.alternatives]
        unknown = [each.to_json() for each in answer.unknown]
        values = _as_json(answer, align, quality) | {"unknown": unknown, "alternatives": others}
        values |= {"memory": [each.to_json(answer.source) for each in matches]} if matches else {}
        values |= {"terms": [each.to_json() for each in answer.terms]} if answer.glossary else {}
        return json.dumps(values, ensure_ascii=False)
    if not answer.alternatives:
        return _with_columns(answer, align, quality)
    return "\n".join(
        f"{each.score:.4f}\t{_with_columns(each, align, quality)}" for each in (answer, *answer.alternatives)
    )


def _with_columns(answer: Translation, align: bool, quality: bool) -> str:
    """A translation, and after TABs what was asked for: its alignment, its quality with what is wrong."""
    from regard.look.word_alignment import to_pharaoh

    columns = [answer.text]
    columns += [to_pharaoh(answer.alignment)] if align else []
    columns += [" ".join([f"{answer.quality:.4f}", *answer.flags])] if quality else []
    return "\t".join(columns)


def _as_json(answer: Translation, align: bool, quality: bool) -> dict[str, Any]:
    from regard.families.translation.pivot import PivotTranslation

    values: dict[str, Any] = {
        "source": answer.source,
        "text": answer.text,
        "score": answer.score,
        "tokens": answer.tokens,
        "truncated": answer.truncated,
    }
    if isinstance(answer, PivotTranslation):
        way = answer.hops[0]
        values["pivot"] = {"language": way.to, "text": way.text, "score": way.score}
    values |= {"alignment": answer.alignment} if align else {}
    return values | answer.assessment.to_json() if quality else values


def show_matches(text: str, matches: list[MemoryMatch]) -> None:
    """The matches of a memory on stderr: what the text lacks in [-…-], what it has more in {+…+}."""
    marks = {"same": "{}", "gone": "[-{}-]", "new": "{{+{}+}}"}
    for each in matches:
        shown = " ".join(marks[change.kind].format(change.text) for change in each.changes(text))
        print(f"memory {100 * each.similarity:.0f} %: {shown} → {each.target}", file=sys.stderr)


LINES_AT_A_TIME = 512


def translate(
    text: Annotated[list[str] | None, typer.Argument(help="Texts to translate; without any, lines of stdin.")] = None,
    model: Models = [],  # noqa: B006 - typer's way to say "none given"
    to: To = "",
    style: Annotated[str, typer.Option(help="A style that the model learnt, such as formal; see data.style.")] = "",
    source_language: Annotated[
        str,
        typer.Option(
            "--from", help="Source language: choose among the models of -m, two through a pivot language if needed."
        ),
    ] = "",
    beam: Annotated[int | None, typer.Option(help="Beam width; 1 is greedy. Default: the model's own.")] = None,
    n_best: Annotated[int, typer.Option(help="Above 1: so many lines per text, best first, score TAB text.")] = 1,
    align: Annotated[
        bool, typer.Option("--align", help="Add the word alignment after a TAB, in Pharaoh format (0-0 1-2).")
    ] = False,
    quality: Annotated[
        bool,
        typer.Option(
            "--quality", help="Add the estimated quality (0 to 1) after a TAB, and what is wrong; see --json."
        ),
    ] = False,
    passes: Passes = 0,
    reverse: Reverse = "",
    attention: Annotated[
        Path | None, typer.Option(help="Draw where it looked: FILE.svg, .png, .html or .json.")
    ] = None,
    input_file: Annotated[
        str, typer.Option("-i", "--input", help="A file: text, DOCX, PPTX, ODT, HTML, PO, XLIFF, JSON, SRT and more.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write; for documents, as --input.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Also replace translations a document has.")] = False,
    review: Annotated[
        bool, typer.Option("--review", help="Mark new translations as to be reviewed, in PO, XLIFF and .xcstrings.")
    ] = False,
    review_below: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="PO, XLIFF, .xcstrings: mark translations of a lower estimated quality, as --review."
        ),
    ] = 0.0,
    encoding: Annotated[
        str, typer.Option(help="Encoding of the input, such as utf-16 or cp1251. Default: found, and kept.")
    ] = "",
    length_penalty: Annotated[float | None, typer.Option(help="0 prefers short, 1 is the mean per token.")] = None,
    min_length: Annotated[int | None, typer.Option(help="Fewest tokens of a translation.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Most tokens of a translation.")] = None,
    no_repeat_ngram: Annotated[int | None, typer.Option(help="Never repeat so many tokens in a row.")] = None,
    prefix: Annotated[str, typer.Option(help="How every translation must begin.")] = "",
    glossary: Annotated[
        Path | None, typer.Option(help="Terms: lines of source TAB target; forms by |. See docs/steering.md.")
    ] = None,
    keep: Annotated[list[str], typer.Option("--keep", help="A term that is not translated. Repeatable.")] = [],  # noqa: B006
    memory: Annotated[
        list[Path], typer.Option("--memory", help="Earlier translations: TMX, TSV or other pairs. Repeatable.")
    ] = [],  # noqa: B006
    use: Annotated[
        str, typer.Option("--memory-use", help="Take a translation from the memory: exact, or a similarity as 0.9.")
    ] = "",
    sample: Annotated[
        bool | None, typer.Option("--sample/--search", help="Draw at random, or search. Default: the model's own.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling: below 1 is bolder, above 1 wilder.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sampling: from the k most probable tokens only.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sampling: from the most probable tokens of this mass.")] = None,
    seed: Annotated[int | None, typer.Option(help="Sampling: same seed, same answer.")] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Show the translation as it is produced.")] = False,
    without: Without = [],  # noqa: B006 - typer's way to say "none given"
    change: Changes = [],  # noqa: B006 - typer's way to say "none given"
    as_json: AsJson = False,
    device: Device = "cpu",
    precision: Precision = "fp32",
    allow_pickle: AllowPickle = False,
) -> None:
    """Translate texts, lines or documents: one line out for each line in.

    A line that cannot be translated, because one of its sentences is too long for the model, comes out empty with a
    message on stderr, and the exit code is 1.

    Example: regard translate "we are eating bread" -m runs/en-es --beam 5 --align --attention bread.svg
    """
    asked = {
        "--input": input_file, "--output": output, "--stream": stream, "--json": as_json, "--align": align,
        "--quality": quality, "--attention": attention, "--n-best": n_best > 1, "--memory": memory,
        "--without": without, "--change": change, "--review": review, "--review-below": review_below,
        "--encoding": encoding, "--passes": passes, "--reverse": reverse, "--from": source_language,
    }  # fmt: skip
    refuse_clashes({option for option, value in asked.items() if value}, len(text or []))
    if input_file and not output:
        _refuse_document(input_file)
    from regard.families.translation.pivot import Pivot

    given = {
        "beam": beam, "length_penalty": length_penalty, "min_length": min_length, "max_length": max_length,
        "no_repeat_ngram": no_repeat_ngram, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed,
        "sample": sample,
    }  # fmt: skip
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    changes |= {"n_best": n_best, "prefix": prefix, "to": to}
    terms, least = _glossary(glossary, keep), _memory_use(use, memory)
    if source_language:
        routes = _route(model, source_language, to, device, allow_pickle, precision)
    else:
        routes = (load_translator(model, device, allow_pickle, precision),)
    if len(routes) > 1 and (terms.terms or memory or prefix or stream or attention or without or change):
        raise UsageError(
            f"{source_language} to {to} goes through another language here; leave out --glossary, --keep, --memory, "
            "--prefix, --stream, --attention, --without and --change, or translate each step by itself"
        )
    translator, last = routes[0], routes[-1]
    ask_opinions(translator, passes, reverse, device, allow_pickle)
    if terms:
        translator.terms.check(terms)
    target_language = last.target_language(to, style)  # refuse an unknown one before anything is read or written
    changes |= {"to": target_language} if style else {}
    translator.search_settings({key: value for key, value in changes.items() if key not in ("prefix", "to")})
    changes |= {"glossary": terms} if terms.terms else {}
    remembered = _remembered(translator, memory, least, target_language) if len(routes) == 1 else Pivot(*routes)
    if input_file and output:
        translate_file(
            translator, model, existing(input_file), output, target_language, encoding, changes, remembered,
            overwrite=overwrite, review=review, review_below=review_below,
        )  # fmt: skip
        return
    reads = translator.tokenizer.source_language
    lines = _given(text) if text else _lines(input_file, reads, encoding)
    lines = Foreign(reads, target_language, typed=bool(text)).watch(lines)
    from regard.look.interventions import changed, switched_off

    with changed(translator, switched_off(without) + change), _writer(output) as out:
        if stream:
            _stream(translator, lines, out, changes, unknown_to(translator, model, typed=bool(text)))
            return
        refused, unknown = 0, unknown_to(translator, model, typed=bool(text))
        for answer in _answers(translator, lines, changes, remembered):
            refused += answer is None
            matches = remembered.matches(answer.source) if answer and (as_json or text) else []
            print(output_line(answer, matches, align=align, quality=quality, as_json=as_json), file=out, flush=True)
            if answer and not as_json:
                show_matches(answer.source, matches)
            if answer:
                unknown.note(answer.source, answer.unknown)
            if attention and answer:
                _draw(translator, answer, attention)
        unknown.tell()
    if refused:
        raise typer.Exit(1)


def _route(
    models: list[str], source: str, target: str, device: str, allow_pickle: bool, precision: str
) -> tuple[Translator, ...]:
    """The model for two languages among several, or two models through a pivot language."""
    from regard.families.translation.pivot import find_route

    if not target:
        raise UsageError("--from chooses models by both languages; give the other one with --to")
    loaded = [load_translator([each] if each else [], device, allow_pickle, precision) for each in models or [""]]
    return find_route(loaded, source, target)


def _glossary(file: Path | None, keep: list[str]) -> Glossary:
    from regard.families.translation.glossary import Glossary

    return Glossary.parse([], keep=keep) if file is None else Glossary.read(file, keep=keep)


def _memory_use(use: str, files: list[Path]) -> float | None:
    from regard.documents.memory import memory_use

    if use and not files:
        raise UsageError("--memory-use takes translations from a memory; give its file with --memory")
    return memory_use(use)


def _remembered(translator: Translator, files: list[Path], least: float | None, to: str) -> Remembered:
    from regard.documents.memory import TranslationMemory
    from regard.families.translation.memory import Remembered

    languages = translator.tokenizer.source_language, translator.target_language(to)
    memory = TranslationMemory.read(files, *languages) if files else None
    return Remembered(translator, memory, least, ",".join(f"{file}@{least}" for file in files))


def _given(texts: list[str]) -> Iterator[str]:
    from regard.data.tokenizers.base import well_formed

    refuse_images(texts)
    for name in filter(os.path.isfile, texts):  # Path.is_file fails on a text that is too long for a file name
        warnings.warn(f"{name} is a file, but its name is translated; for its lines use --input {name}", stacklevel=1)
    return map(well_formed, texts)


def _refuse_document(path: str) -> None:
    from regard.documents.translate import document_format

    if document_format(existing(path)) != ".txt":
        raise UsageError(f"{path} is a document; say with --output where its translation goes")


def _lines(path: str, language: str, encoding: str) -> Iterator[str]:
    """The lines of a plain file, or of standard input."""
    from regard.documents.translate import read_document_lines

    return read_document_lines(existing(path) if path else sys.stdin.buffer, language, encoding)


def _writer(output: Path | None) -> AbstractContextManager[IO[str]]:
    from regard.data.files import atomic_text

    return atomic_text(output) if output else nullcontext(sys.stdout)


def _answers(
    translator: Translator, lines: Iterator[str], changes: dict[str, Any], remembered: Remembered | Pivot
) -> Iterator[Translation | None]:
    """A translation for every line, in batches unless the lines are typed; None for a line with an error."""
    number = 0
    while chunk := list(islice(lines, 1 if sys.stdin.isatty() else LINES_AT_A_TIME)):
        readable = [_is_readable(translator, line, number + place) for place, line in enumerate(chunk, start=1)]
        answers = iter(remembered.translate(list(compress(chunk, readable)), **changes))
        for good in readable:
            number += 1
            answer = next(answers) if good else None
            if answer and answer.truncated:
                warnings.warn(
                    f"line {number}: the translation reached the length limit and may lack its end", stacklevel=1
                )
            yield answer


def _is_readable(translator: Translator, line: str, number: int) -> bool:
    try:
        translator.sentences(line)
    except DataError as error:
        print(f"regard: line {number} is not translated: {error}", file=sys.stderr)
        return False
    return True


def _draw(translator: Translator, answer: Translation, file: Path) -> None:
    from regard.families.translation.view import inspect_translation
    from regard.look.save import save

    save(inspect_translation(translator, answer).report(), file)
    print(f"attention drawn to {file}", file=sys.stderr)


def _stream(
    translator: Translator, texts: Iterable[str], out: IO[str], changes: dict[str, Any], unknown: Unknown
) -> None:
    """Print each translation: on a terminal the line is rewritten at every step, elsewhere it is written once."""
    for text in texts:
        shown = ""
        for shown, *_ in translator.stream(text, **changes):
            if out.isatty():
                print(f"\r\x1b[K{shown}", end="", file=out, flush=True)
        print(f"\r\x1b[K{shown}" if out.isatty() else shown, file=out, flush=True)
        unknown.note(text)
    unknown.tell()
