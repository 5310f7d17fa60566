"""Translate whole documents, keeping format, encoding, markup, comments and line ends."""

from __future__ import annotations

import json
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from regard.data.files import Parts, atomic_write
from regard.data.formats import exchange
from regard.data.formats.encodings import UTF8, Stated, find_encoding, given_encoding, read_encoded, text_codec
from regard.data.formats.languages import NAMES
from regard.data.formats.pairs import find_key, parse_object, sides, text_of
from regard.data.formats.tables import format_of
from regard.documents.document_job import (
    BATCH,
    MARK,
    DocumentJob,
    Report,
    batches,
    encoded_lines,
    encoded_write,
)
from regard.documents.html import stated_encoding, translate_html
from regard.documents.json_yaml import translate_arb, translate_json, translate_xcstrings, translate_yaml
from regard.documents.markdown import translate_markdown
from regard.documents.markup import Translate, translate_texts
from regard.documents.office import KINDS as OFFICE
from regard.documents.office import translate_office
from regard.documents.po import translate_po
from regard.documents.sentences import split_text
from regard.documents.string_files import translate_android, translate_properties, translate_strings
from regard.documents.subtitles import translate_subtitles
from regard.documents.tables import translate_table
from regard.documents.translation_memories import translate_tmx, translate_xliff
from regard.documents.xml_edits import declared_encoding
from regard.errors import DataError, UsageError

NumberedLine = tuple[int, str]  # the number of a line, and the line


def translate_document(
    path_in: str | Path,
    path_out: str | Path,
    translate: Translate,
    source: str,
    target: str,
    *,
    overwrite: bool = False,
    review: bool = False,
    review_below: float = 0.0,
    encoding: str = "",
) -> Report:
    """Translate a document of one of the `FORMATS`, plain or .gz, and report how many segments were translated.

    `translate` takes a list of texts and returns as many strings, or `Translated` with word links by which markup is
    put back. Existing translations are kept unless `overwrite`; `review` marks new ones as needing review in PO, XLIFF
    and Xcode's catalogues, `review_below` those of a lower estimated quality, in the first two with a note. The
    encoding is detected if it is not given, and kept. The output is written atomically."""
    path_in, path_out = Path(path_in), Path(path_out)
    kind = find_format(path_in)
    check_output(path_in, path_out, review_below)
    if kind.binary and encoding:
        raise UsageError(f"{path_in}: states its encoding itself; leave out --encoding")
    found = UTF8 if kind.binary else _encoding(path_in, encoding, source, kind.stated)
    with _writer(path_out, found, kind) as write:
        job = DocumentJob(path_in, found, write, translate, source, target, overwrite, review, review_below)
        kind.rewrite(job)
    return job.report


def check_output(path_in: Path, path_out: Path, review_below: float = 0.0) -> None:
    """Refuse an output of another format, and doubts where there is no place for them."""
    if document_format(path_out) != document_format(path_in):
        raise UsageError(f"{path_out}: a document keeps its format; give the output the suffix of {path_in.name}")
    if review_below and not marks_doubts(path_in):
        raise UsageError(
            f"{path_in}: only PO, XLIFF and .xcstrings have a place for a doubt; leave out the review by quality"
        )


def refuse_lost_work(path_in: Path, path_out: Path) -> None:
    """Refuse to replace a file of a format with one language, which may hold the work of people."""
    if find_format(path_in) in ONE_LANGUAGE and path_out.exists() and not path_out.samefile(path_in):
        raise UsageError(
            f"{path_out} is there, and its translations would be lost; write to another file, or give --overwrite"
        )


def marks_doubts(path: Path) -> bool:
    """Whether a document's format can say which translations are to be reviewed."""
    return find_format(path) in REVIEWED


@contextmanager
def _writer(path: Path, encoding: str, kind: Format) -> Iterator[Callable[[Any], object]]:
    """Write bytes or encoded text; the file gets its name when it is complete."""
    if kind.binary:
        with atomic_write(path) as file:
            yield file.write
    else:
        with encoded_write(path, encoding, references=kind.references) as write:
            yield write


def _encoding(path: Path, given: str, language: str, stated: Stated = lambda head: None) -> str:
    return given_encoding(path, given) if given else find_encoding(path, language, stated)


def find_format(path: Path) -> Format:
    """How to translate a file, by its suffix."""
    suffix = document_format(path)
    if suffix not in FORMATS:
        advice = f"; save it as {INSTEAD[suffix]} first" if suffix in INSTEAD else ""
        raise UsageError(f"{path}: {suffix} files cannot be translated{advice}; known are {', '.join(SUFFIXES)}")
    return FORMATS[suffix]


def read_document_lines(file: Path | IO[bytes], language: str, encoding: str = "") -> Iterator[str]:
    """The lines of a plain text without line ends; a stream is UTF-8 unless its encoding is given."""
    if isinstance(file, Path):
        found = _encoding(file, encoding, language)
    else:
        found = text_codec(encoding or UTF8)
    for number, line in enumerate(read_encoded(file, found)):
        yield re.sub(r"\r?\n\Z", "", line.removeprefix("\ufeff") if number == 0 else line)


def document_text(path: Path, sources: Sequence[str], encoding: str = "") -> str:
    """The text of a document, to find its language; `sources` are those that it may be in."""
    collector = TextCollector()
    with tempfile.TemporaryDirectory() as folder:
        for source in sources:
            try:
                place = Path(folder) / path.name
                translate_document(path, place, collector, source, "", overwrite=True, encoding=encoding)
                return collector.text
            except DataError:  # such as an XLIFF file that declares another source language
                if source == sources[-1]:
                    raise
    return ""


def count_texts(path: Path, source: str, target: str, *, overwrite: bool = False, encoding: str = "") -> int:
    """How many texts `translate_document` will hand to its translator."""
    texts = TextCollector()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are told when it is translated
        place = Path(folder) / path.name
        translate_document(path, place, texts, source, target, overwrite=overwrite, encoding=encoding)
    return texts.count


class TextCollector:
    """A stand-in for a translator that returns every text unchanged and collects the texts."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def __call__(self, texts: list[str]) -> list[str]:
        self._texts += texts
        return texts

    @property
    def count(self) -> int:
        return len(self._texts)

    @property
    def text(self) -> str:
        return "\n".join(self._texts)


def translate_by_lines(
    path_in: Path,
    path_out: Path,
    translate: Callable[[list[NumberedLine]], list[str]],
    source: str,
    parts: Parts,
    wait: Callable[[], None],
    encoding: str = "",
    skip: Callable[[list[NumberedLine]], object] = lambda lines: None,
) -> None:
    """Translate this process's share of a plain text, line by line, then `wait` for the others. Each batch is stored as
    a part, so nothing that is done is lost; `skip` is called with the lines of those that are there."""
    found = _encoding(path_in, encoding, source)

    def do(lines: list[NumberedLine]) -> bytes:
        texts = [(number, re.sub(r"[\r\n]+\Z", "", line.removeprefix(MARK))) for number, line in lines]
        return "".join(
            line.replace(text.strip(), new, 1) if text.strip() else line
            for (_, line), (_, text), new in zip(lines, texts, translate(texts), strict=True)
        ).encode()

    def join(places: Sequence[Path]) -> None:
        with encoded_write(path_out, found) as write:
            for place in places:
                write(place.read_bytes().decode())

    parts.work(enumerate(encoded_lines(path_in, found), 1), BATCH, do, join, wait, skip)


def count_lines(path: Path, source: str, encoding: str = "") -> int:
    """How many lines `translate_by_lines` will see."""
    return sum(1 for _ in encoded_lines(path, _encoding(path, encoding, source)))


def document_format(path: Path) -> str:
    """The suffix of the format; `news.en` is plain text, as in Moses' file pairs."""
    suffix = format_of(path)
    return ".txt" if suffix[1:] in NAMES else SAME.get(suffix, suffix)


# Line-based formats, which are streamed


def _translate_plain(job: DocumentJob) -> None:
    """Sentence by sentence, as a server translates the same text when it is typed."""
    for lines in batches(job.lines()):
        split = split_text("".join(lines), job.source)
        outputs = job.translate_counted(split.sentences)
        job.write(split.join([each if isinstance(each, str) else each.text for each in outputs]))


def _translate_jsonl(job: DocumentJob) -> None:
    for batch in batches(enumerate(job.lines(), 1)):
        records = [_record(line, f"{job.path}, line {number}", job) for number, line in batch]
        todo = [record for record in records if record.key]
        texts = translate_texts([record.text for record in todo], job.translate)
        for record, text in zip(todo, texts, strict=True):
            record.sides[record.key] = text
        job.report.translated += len(todo)
        for record in records:
            job.write(_line(record) if record.key else record.raw)


class _Record(NamedTuple):
    """A line of JSONL; `key` is that of its translation, empty if there is nothing to translate."""

    raw: str
    value: Any = None
    sides: Any = None
    key: str = ""
    text: str = ""


def _record(raw: str, where: str, job: DocumentJob) -> _Record:
    if not raw.strip():
        return _Record(raw)
    value = parse_object(raw, where)
    maps = sides(value)
    key = find_key(maps, job.target, "target") or ("target" if "source" in maps else job.target)
    text = text_of(maps, job.source, "source", where, "replace")
    if maps.get(key) and not job.overwrite:
        job.report.kept["already translated"] += 1
        return _Record(raw)
    return _Record(raw, value, maps, key, text)


def _line(record: _Record) -> str:
    """An object in its original style: compact or not, letters beyond ASCII escaped or not, with its line end."""
    body = record.raw.rstrip()
    compact = not re.search(r'":\s', body)
    escaped = body.isascii() and "\\u" in body
    text = json.dumps(record.value, ensure_ascii=escaped, separators=(",", ":") if compact else None)
    return text + record.raw[len(body) :]


# Subtitles and HTML


def _translate_subtitles(job: DocumentJob) -> None:
    job.write(*translate_subtitles([job.text()], job.translate_counted, job.source))


def _translate_html(job: DocumentJob) -> None:
    job.write(*translate_html([job.text()], job.translate_counted, job.source, job.target))


class Format(NamedTuple):
    """How to translate a format, how its files declare their encoding, and whether it has character references.

    A `binary` format is not text: its files are archives."""

    rewrite: Callable[[DocumentJob], None]
    stated: Stated = lambda head: None
    references: bool = False
    binary: bool = False


PLAIN, SUBTITLES, TABLE = Format(_translate_plain), Format(_translate_subtitles), Format(translate_table)
HTML = Format(_translate_html, stated_encoding, references=True)
XLIFF = Format(translate_xliff, declared_encoding, references=True)
PO = Format(translate_po, exchange.stated_charset)
XCODE = Format(translate_xcstrings)
JSON, ARB, YAML, PROPERTIES, STRINGS = map(
    Format, (translate_json, translate_arb, translate_yaml, translate_properties, translate_strings)
)
ANDROID = Format(translate_android, declared_encoding, references=True)
ONE_LANGUAGE = (JSON, ARB, YAML, PROPERTIES, STRINGS, ANDROID)  # whose translations are files of their own
REVIEWED = (PO, XLIFF, XCODE)  # formats that say which translations are to be reviewed
MARKDOWN = Format(translate_markdown)
FORMATS = {
    ".txt": PLAIN, "": PLAIN, ".srt": SUBTITLES, ".vtt": SUBTITLES, ".html": HTML, ".htm": HTML, ".xhtml": HTML,
    ".tsv": TABLE, ".csv": TABLE, ".jsonl": Format(_translate_jsonl),
    ".tmx": Format(translate_tmx, declared_encoding, references=True), ".xlf": XLIFF, ".xliff": XLIFF,
    ".po": PO, ".pot": PO,
    **dict.fromkeys(OFFICE, Format(translate_office, binary=True)),
    ".md": MARKDOWN, ".markdown": MARKDOWN, ".yaml": YAML, ".yml": YAML,
    ".json": JSON, ".arb": ARB, ".xcstrings": XCODE, ".properties": PROPERTIES, ".strings": STRINGS, ".xml": ANDROID,
}  # fmt: skip
SUFFIXES = tuple(filter(None, FORMATS))
SAME = {
    "": ".txt", ".htm": ".html", ".xhtml": ".html", ".xlf": ".xliff", ".pot": ".po", ".markdown": ".md",
    ".yml": ".yaml",
}  # fmt: skip
INSTEAD = {  # formats that are not supported, and what programs that write them can write as well
    ".pdf": ".docx or .odt", ".doc": ".docx", ".rtf": ".docx", ".ppt": ".pptx", ".xls": ".csv", ".xlsx": ".csv",
    ".ods": ".csv", ".epub": ".html", ".tex": ".txt", ".rst": ".txt", ".adoc": ".txt", ".stringsdict": ".xcstrings",
}  # fmt: skip
