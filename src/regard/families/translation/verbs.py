"""regard translate: text, lines on standard input, or whole documents."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, compress, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from regard.errors import DataError, UsageError
from regard.families.translation.document_verb import DocumentTranslator, Foreign, kept_parts, translate_file
from regard.verbs.inputs import Unknown
from regard.verbs.options import (
    Beam,
    Models,
    Precision,
    To,
    existing,
    options_given,
    refuse_both,
    refuse_given,
    settings_given,
)
from regard.verbs.progress import Progress
from regard.verbs.verb import TextVerb, load_able

if TYPE_CHECKING:
    from regard.data.files import Parts
    from regard.documents.memory import MemoryMatch
    from regard.documents.translate import NumberedLine
    from regard.families.translation.glossary import Glossary
    from regard.families.translation.memory import Remembered
    from regard.families.translation.pivot import Pivot
    from regard.families.translation.translation import Translation
    from regard.families.translation.translator import Translator

Passes = Annotated[
    int,
    typer.Option(min=0, max=100, help="Quality: also by so many passes with dropout, or the members of an ensemble."),
]
Reverse = Annotated[str, typer.Option(help="Quality: also by this model, which translates the answers back.")]

SAMPLING = ("--temperature", "--top-k", "--top-p", "--seed")  # what has an effect on drawn answers alone
TEXT_ALONE = {"--json", "--align", "--quality", "--attention", "--n-best"}  # what a document or a stream cannot show


def refuse_clashes(asked: AbstractSet[str], texts: int) -> None:
    """Refuse options, named as on the command line, that clash with each other or with a number of given texts."""
    refuse_both("--input" in asked, texts, "texts or --input")
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
    if (asked & {"--review", "--review-below", "--resume"} and not document) or ("--encoding" in asked and texts):
        raise UsageError(
            "--review, --review-below and --resume are for files (--input with --output), --encoding for what is read, "
            "not for texts"
        )
    if "--insert-fuzzy" in asked and "--memory-use" not in asked:
        raise UsageError("--insert-fuzzy is for the similar segments of --memory-use; give it a similarity, as 0.9")
    if asked & {"--passes", "--reverse"} and ("--from" in asked or not asked & {"--quality", "--review-below"}):
        raise UsageError("--passes and --reverse need --quality or --review-below, and a model named without --from")


def load_translator(names: Sequence[str], **loading: Any) -> Translator:
    """The translator of these folders."""
    found: Translator = load_able(("translate",), "translate", "translate", *names, **loading)
    return found


def ask_opinions(translator: Translator, passes: int, reverse: str, **loading: Any) -> None:
    """Let the quality of this translator's answers be estimated by passes with dropout and by a reverse model too."""
    if passes or reverse:
        from regard.families.translation.quality_estimators import SecondOpinions

        other = load_translator([reverse], **loading) if reverse else None
        translator.quality.opinions = SecondOpinions(translator, passes, other)


@dataclass(kw_only=True)
class Translate(TextVerb):
    """Translate texts, lines or documents: one line out for each line in.

    Without a model the built-in ones translate between en, es, pt, fr, de and it; what is not English, into English
    unless --to says otherwise.

    A line that cannot be translated, because one of its sentences is too long for the model, comes out empty with a
    message on stderr, and the exit code is 1.

    Example: regard translate "where is the station?" --to fr
    Example: regard translate "we are eating bread" -m runs/en-es --beam 5 --align --attention bread.svg
    """

    refused_as = "not translated"
    groups: ClassVar = {
        "Documents": "input_file output resume overwrite review review_below encoding",
        "Terms and earlier translations": "glossary keep prefix memory use insert_fuzzy",
        "What is printed": "n_best align quality as_json stream skip_bad",
        "Search": "beam length_penalty min_length max_length no_repeat_ngram precision device",
        "Sampling": "sample temperature top_k top_p seed",
        "Research": "attention without change passes reverse allow_pickle",
    }

    text: Annotated[list[str] | None, typer.Argument(help="Texts to translate; without any, lines of stdin.")] = None
    model: Models = field(default_factory=list)  # type: ignore[assignment]  # several, or none: the built-in ones
    to: To = ""
    style: Annotated[str, typer.Option(help="A style that the model learnt, such as formal; see data.style.")] = ""
    source_language: Annotated[
        str,
        typer.Option(
            "--from",
            help="Source language: choose among the models of -m, or the built-in ones, two through a pivot language "
            "if needed. Default for the built-in ones: found by the text.",
        ),
    ] = ""
    beam: Beam = None
    n_best: Annotated[int, typer.Option(help="Above 1: so many lines per text, best first, score TAB text.")] = 1
    align: Annotated[
        bool, typer.Option("--align", help="Add the word alignment after a TAB, in Pharaoh format (0-0 1-2).")
    ] = False
    quality: Annotated[
        bool,
        typer.Option(
            "--quality", help="Add the estimated quality (0 to 1) after a TAB, and what is wrong; see --json."
        ),
    ] = False
    passes: Passes = 0
    reverse: Reverse = ""
    attention: Annotated[Path | None, typer.Option(help="Draw where it looked: FILE.svg, .png, .html or .json.")] = None
    input_file: Annotated[
        str, typer.Option("-i", "--input", help="A file: text, DOCX, PPTX, ODT, HTML, PO, XLIFF, JSON, SRT and more.")
    ] = ""
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write; for documents, as --input.")
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Also replace translations a document has.")] = False
    review: Annotated[
        bool, typer.Option("--review", help="Mark new translations as to be reviewed, in PO, XLIFF and .xcstrings.")
    ] = False
    review_below: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="PO, XLIFF, .xcstrings: mark translations of a lower estimated quality, as --review."
        ),
    ] = 0.0
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what an interrupted command has translated of a file.")
    ] = False
    encoding: Annotated[
        str, typer.Option(help="Encoding of the input, such as utf-16 or cp1251. Default: found, and kept.")
    ] = ""
    length_penalty: Annotated[float | None, typer.Option(help="0 prefers short, 1 is the mean per token.")] = None
    min_length: Annotated[int | None, typer.Option(help="Fewest tokens of a translation.")] = None
    max_length: Annotated[int | None, typer.Option(help="Most tokens of a translation.")] = None
    no_repeat_ngram: Annotated[int | None, typer.Option(help="Never repeat so many tokens in a row.")] = None
    prefix: Annotated[str, typer.Option(help="How every translation must begin.")] = ""
    glossary: Annotated[
        Path | None, typer.Option(help="Terms: lines of source TAB target; forms by |. See docs/steering.md.")
    ] = None
    keep: Annotated[list[str], typer.Option("--keep", help="A term that is not translated. Repeatable.")] = field(
        default_factory=list
    )
    memory: Annotated[
        list[Path], typer.Option("--memory", help="Earlier translations: TMX, TSV or other pairs. Repeatable.")
    ] = field(default_factory=list)
    use: Annotated[
        str, typer.Option("--memory-use", help="Take a translation from the memory: exact, or a similarity as 0.9.")
    ] = ""
    insert_fuzzy: Annotated[
        bool,
        typer.Option(
            "--insert-fuzzy",
            help="Take similar segments also where nothing can mark them for review: in lines and most documents.",
        ),
    ] = False
    sample: Annotated[
        bool | None, typer.Option("--sample/--search", help="Draw at random, or search. Default: the model's own.")
    ] = None
    temperature: Annotated[
        float | None, typer.Option(help="Sampling: below 1 keeps to probable words, above 1 varies.")
    ] = None
    top_k: Annotated[int | None, typer.Option(help="Sampling: from the k most probable tokens only.")] = None
    top_p: Annotated[float | None, typer.Option(help="Sampling: from the most probable tokens of this mass.")] = None
    seed: Annotated[int | None, typer.Option(help="Sampling: same seed, same answer.")] = None
    stream: Annotated[bool, typer.Option("--stream", help="Show the translation as it is produced.")] = False
    precision: Precision = "fp32"

    def check(self) -> None:
        super().check()
        refuse_clashes(set(options_given(self)), len(self.typed))
        if self.input_file and not self.output:
            from regard.documents.translate import document_format

            if document_format(existing(self.input_file)) != ".txt":
                raise UsageError(f"{self.input_file} is a document; say with --output where its translation goes")
        if self.use and not self.memory:
            raise UsageError("--memory-use takes translations from a memory; give its file with --memory")
        self.terms = self._terms()  # errors before a model is loaded
        if not self.model:
            self._find_direction()

    def _find_direction(self) -> None:
        """Choose among the built-in models; tell the source language if it was found by the text."""
        from regard.families.translation.shipped import find_direction

        text = "" if self.source_language else self._sample()
        direction = find_direction(text, self.source_language, self.to)
        self.source_language, self.to = direction.source, direction.to
        self.model = [model.name for model in direction.models]
        if direction.detected and text.strip():
            print(f"regard: {direction}", file=sys.stderr)

    def _sample(self) -> str:
        """Text by which the source language is found: all that was typed, a document, or the first lines."""
        if self.typed:
            return "\n".join(self.typed)
        if self.input_file and self.output:
            from regard.documents.translate import document_text
            from regard.families.translation.shipped import shipped_languages

            return document_text(existing(self.input_file), shipped_languages(), self.encoding)
        first = list(islice(self.given, 1 if sys.stdin.isatty() else self.at_once))
        self.given = chain(first, self.given)
        return "\n".join(first)

    def _terms(self) -> Glossary | None:
        if not self.glossary and not self.keep:
            return None
        from regard.families.translation.glossary import Glossary

        return Glossary.read(self.glossary, keep=self.keep) if self.glossary else Glossary.parse([], keep=self.keep)

    @property
    def loading(self) -> dict[str, Any]:
        return super().loading | {"precision": self.precision}

    def load(self) -> Translator:
        return self.routes[0]

    @cached_property
    def routes(self) -> tuple[Translator, ...]:
        """One translator, or two through a pivot language."""
        if not self.source_language:
            return (load_translator(self.model, **self.loading),)
        from regard.families.translation.routes import find_route

        if not self.to:
            raise UsageError("--from chooses models by both languages; give the other one with --to")
        loaded = [load_translator([name], **self.loading) for name in self.model]
        routes = find_route(loaded, self.source_language, self.to)
        steers = self.terms or self.memory or self.prefix or self.without or self.change
        if len(routes) > 1 and (steers or self.stream or self.attention):
            raise UsageError(
                f"{self.source_language} to {self.to} goes through another language here; leave out --glossary, "
                "--keep, --memory, --prefix, --stream, --attention, --without and --change, or translate each step by "
                "itself"
            )
        return routes

    @cached_property
    def target_language(self) -> str:
        return self.routes[-1].target_language(self.to, self.style)

    @cached_property
    def changes(self) -> dict[str, Any]:
        """How it is translated, where that is not as the model does it by itself."""
        if not (self.pipeline.settings.sample if self.sample is None else self.sample):
            refuse_given(
                {name: name in options_given(self) for name in SAMPLING}, "is for --sample, and this is a search"
            )
        search = settings_given(
            beam=self.beam, length_penalty=self.length_penalty, min_length=self.min_length, max_length=self.max_length,
            no_repeat_ngram=self.no_repeat_ngram, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p,
            seed=self.seed, sample=self.sample, n_best=self.n_best,
        )  # fmt: skip
        self.pipeline.search_settings(search)  # refuses what is out of range
        more = {"prefix": self.prefix, "to": self.target_language if self.style else self.to}
        return search | more | ({"glossary": self.terms} if self.terms else {})

    @cached_property
    def remembered(self) -> Remembered | Pivot:
        """What translates documents, and texts with a memory or through a pivot language."""
        if len(self.routes) > 1:
            from regard.families.translation.pivot import Pivot

            return Pivot(*self.routes)
        from regard.documents.memory import TranslationMemory
        from regard.families.translation.memory import Remembered

        least = self._least_similarity()
        source = self.source_language or self.pipeline.tokenizer.source_language
        languages = source, self.pipeline.target_language(self.target_language)
        memory = TranslationMemory.read(self.memory, *languages) if self.memory else None
        return Remembered(self.pipeline, memory, least, ",".join(f"{file}@{least}" for file in self.memory))

    def _least_similarity(self) -> float | None:
        """From which similarity on the memory is used: below 1 only where the segments can be marked for review, or as
        the user says."""
        from regard.documents.memory import memory_use
        from regard.documents.translate import marks_doubts

        least = memory_use(self.use)
        marked = bool(self.input_file and self.output) and marks_doubts(Path(self.input_file))
        if least is None or least == 1.0 or marked or self.insert_fuzzy:
            return least
        print(
            "regard: the memory is used for equal segments only, because nothing here can mark similar ones for review "
            "(PO, XLIFF and .xcstrings can); --insert-fuzzy takes them nevertheless",
            file=sys.stderr,
        )
        return 1.0

    @cached_property
    def unknown(self) -> Unknown:
        return Unknown(self.pipeline.unknown_words, typed=bool(self.text))

    def run(self) -> None:
        ask_opinions(self.pipeline, self.passes, self.reverse, device=self.device, allow_pickle=self.allow_pickle)
        if self.terms:
            self.pipeline.terms.check(self.terms)
        _ = self.target_language, self.changes  # errors before anything is read or written
        if self.memory:
            _ = self.remembered
        if self.input_file and self.output:
            self._translate_file(existing(self.input_file), self.output)
        elif self.stream:
            self._stream()
        else:
            super().run()

    @cached_property
    def given(self) -> Iterator[str]:
        """The texts of the command line, or the lines of a plain file or of standard input."""
        from regard.data.tokenizers.base import well_formed

        if self.typed:
            return map(well_formed, self.typed)
        from regard.documents.translate import read_document_lines

        place = existing(self.input_file) if self.input_file else sys.stdin.buffer
        language = self.source_language or (self.pipeline.tokenizer.source_language if self.model else "")
        return read_document_lines(place, language, self.encoding)

    def lines(self) -> Iterator[str]:
        """What is given, watched for other languages than the model's."""
        for name in filter(os.path.isfile, self.typed):  # Path.is_file fails on a text that is too long for a file name
            warnings.warn(
                f"{name} is a file, but its name is translated; for its lines use --input {name}", stacklevel=1
            )
        return Foreign(self.pipeline.source_languages, self.target_language, typed=bool(self.typed)).watch(self.given)

    def inputs(self) -> Iterator[str | DataError]:
        return self._readable(self.lines())

    def _readable(self, lines: Iterable[str]) -> Iterator[str | DataError]:
        for line in lines:
            try:
                self.pipeline.sentences(line)
                yield line
            except DataError as error:
                yield error

    @property
    def total(self) -> int | None:
        if not self.input_file:
            return super().total
        from regard.documents.translate import count_lines

        return count_lines(Path(self.input_file), self.source_language, self.encoding)

    def answers(self, inputs: list[str]) -> list[Translation]:
        """Translations; a text without a letter or digit, such as a line of dashes, is copied."""
        worded = [not text.strip() or any(map(str.isalnum, text)) for text in inputs]
        plain = not self.memory and len(self.routes) == 1
        translator = self.pipeline if plain else self.remembered
        if all(worded):
            return list(translator.translate(inputs, **self.changes))
        from regard.families.translation.memory import said_again

        found = iter(translator.translate(list(compress(inputs, worded)), **self.changes))
        last, to = self.routes[-1], self.target_language
        return [
            next(found) if has else said_again(last, text, text, to) for text, has in zip(inputs, worded, strict=True)
        ]

    def _translate_file(self, source: Path, target: Path) -> None:
        """Translate a document, or the lines of a plain text as if they were given on standard input."""
        from regard.data.files import Parts
        from regard.documents.translate import document_format, refuse_lost_work

        if not self.overwrite:
            refuse_lost_work(source, target)
        plain = document_format(source) == ".txt"
        languages = self.source_language or self.pipeline.tokenizer.source_language, self.target_language
        options: dict[str, Any] = {key: str(value) for key, value in self.changes.items()}
        options |= {"memory": self.remembered.name, "overwrite": self.overwrite, "review": self.review}
        options |= {"review_below": self.review_below, "encoding": self.encoding}
        parts = Parts.of(target, source, models=list(self.model), languages=languages, options=options)
        if parts.share.count > 1 and not plain:
            raise UsageError(f"{source}: processes share plain text only; translate it without torchrun")
        unit = "lines" if plain else "segments"
        with kept_parts(parts, self.resume) as wait, Progress(unit) as progress:
            if plain:
                self._translate_lines(source, target, parts, wait, progress)
                return
            judged = bool(self.review_below)
            translator = DocumentTranslator(self.remembered, self.changes, parts, progress, judged=judged)
            translate_file(
                source, target, languages, translator, overwrite=self.overwrite, review=self.review,
                review_below=self.review_below, encoding=self.encoding,
            )  # fmt: skip

    def _translate_lines(
        self, source: Path, target: Path, parts: Parts, wait: Callable[[], None], progress: Progress
    ) -> None:
        from regard.documents.document_job import Report
        from regard.documents.translate import check_output, count_lines, translate_by_lines

        check_output(source, target, self.review_below)
        language = self.source_language or self.pipeline.tokenizer.source_language
        foreign, report = Foreign(self.pipeline.source_languages, self.target_language, typed=False), Report()
        if progress.shown:
            progress.total = count_lines(source, language, self.encoding)

        def translated(lines: list[NumberedLine]) -> list[str]:
            texts, done = [text for _, text in lines], list[str]()
            for (number, text), answer in zip(lines, self._each(list(self._readable(texts))), strict=True):
                foreign.note(text)
                self.count = number - 1
                if isinstance(answer, DataError):
                    print(f"regard: line {number} is {self.refused_as}: {answer}", file=sys.stderr)
                    report.skipped["refused"] += 1
                    self.note(text, None)
                    done.append("")
                else:
                    report.translated += bool(text.strip())
                    self.note(text, answer)
                    done.append(answer.text)
            progress.advance(len(lines))
            return done

        def skip(lines: list[NumberedLine]) -> None:
            progress.advance(len(lines), earlier=True)

        translate_by_lines(source, target, translated, language, parts, wait, self.encoding, skip)
        self.unknown.tell()
        foreign.tell()
        print(f"{report}, written to {target}", file=sys.stderr)
        if report.skipped and not self.skip_bad:
            raise typer.Exit(1)

    def matches(self, text: str) -> list[MemoryMatch]:
        """What the memory has for a text."""
        return self.remembered.matches(text) if self.memory else []

    def output_stream(self) -> AbstractContextManager[IO[str]]:
        from regard.data.files import atomic_text

        return atomic_text(self.output) if self.output else super().output_stream()

    def as_text(self, given: str, answer: Translation) -> str:
        if not answer.alternatives:
            return _with_columns(answer, self.align, self.quality)
        several = (answer, *answer.alternatives)
        return "\n".join(f"{each.score:.4f}\t{_with_columns(each, self.align, self.quality)}" for each in several)

    def as_values(self, given: str, answer: Translation) -> dict[str, Any]:
        others = [_values(each, self.align, self.quality) for each in answer.alternatives]
        values = _values(answer, self.align, self.quality)
        values |= {"unknown": [each.to_json() for each in answer.unknown], "alternatives": others}
        if matches := self.matches(answer.source):
            values["memory"] = [each.to_json(answer.source) for each in matches]
        return values | ({"terms": [each.to_json() for each in answer.terms]} if answer.glossary else {})

    def note(self, given: str, answer: Translation | None) -> None:
        self.count = getattr(self, "count", 0) + 1
        if answer is None:
            return
        if answer.truncated:
            reached = "reached the length limit and may lack its end" if answer.text else "is empty"
            warnings.warn(f"line {self.count}: the translation {reached}", stacklevel=1)
        if answer.repeated:
            print(f"regard: warning: line {self.count}: the translation repeats itself", file=sys.stderr)
        if self.typed and not self.as_json:
            _show_matches(answer.source, self.matches(answer.source))
        self.unknown.note(answer.source, answer.unknown)
        if self.attention:
            from regard.families.translation.view import inspect_translation
            from regard.look.save import save

            save(inspect_translation(self.pipeline, answer).report(), self.attention)
            print(f"attention drawn to {self.attention}", file=sys.stderr)

    def _stream(self) -> None:
        """Print each translation: on a terminal the line is rewritten at every step, elsewhere it is written once."""
        with self.output_stream() as out:
            for text in self.lines():
                shown = ""
                for shown, *_ in self.pipeline.stream(text, **self.changes):
                    if out.isatty():
                        print(f"\r\x1b[K{shown}", end="", file=out, flush=True)
                print(f"\r\x1b[K{shown}" if out.isatty() else shown, file=out, flush=True)
                self.unknown.note(text)
        self.unknown.tell()


def _with_columns(answer: Translation, align: bool, quality: bool) -> str:
    """A translation, and after TABs what was asked for: its alignment, its quality with what is wrong."""
    from regard.look.word_alignment import to_pharaoh

    columns = [answer.text]
    columns += [to_pharaoh(answer.alignment)] if align else []
    columns += [" ".join([f"{answer.quality:.4f}", *answer.flags])] if quality else []
    return "\t".join(columns)


def _values(answer: Translation, align: bool, quality: bool) -> dict[str, Any]:
    from regard.families.translation.pivot import PivotTranslation

    values = {name: getattr(answer, name) for name in ("source", "text", "score", "tokens", "truncated")}
    if isinstance(answer, PivotTranslation):
        way = answer.hops[0]
        values["pivot"] = {"language": way.to, "text": way.text, "score": way.score}
    values |= {"alignment": answer.alignment} if align else {}
    return values | answer.assessment.to_json() if quality else values


def _show_matches(text: str, matches: list[MemoryMatch]) -> None:
    """The matches of a memory on stderr: what the text lacks in [-…-], what it has more in {+…+}."""
    marks = {"same": "{}", "gone": "[-{}-]", "new": "{{+{}+}}"}
    for each in matches:
        shown = " ".join(marks[change.kind].format(change.text) for change in each.changes(text))
        print(f"memory {100 * each.similarity:.0f} %: {shown} → {each.target}", file=sys.stderr)
