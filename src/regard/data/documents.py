"""Whole documents translated, out in the format they came in: markup, placeholders, comments and headers kept."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar, cast

from lxml import etree

from regard.data import exchange
from regard.data.exchange import child
from regard.data.hypertext import translate_html
from regard.data.inline import inline_pieces, rebuild
from regard.data.languages import NAMES, find_language, same_language
from regard.data.lines import open_bytes, read_lines
from regard.data.markup import Translate, Translated, translate_marked, translate_texts
from regard.data.parts import Parts
from regard.data.passages import translate_lines
from regard.data.subtitles import translate_subtitles
from regard.data.text import Columns, find_columns, find_key, format_of, read_objects, read_rows, sides, text_of
from regard.errors import DataError, UsageError

BATCH = 256  # segments handed to the translator at once
PART = 4  # batches of what a process does before it leaves it for good
CHARSET = re.compile(  # other encodings than UTF-8 that pages still come in
    rb"""<meta[^>]*[\s;]charset\s*=\s*["']?(iso-8859-(?:[2-9]|1[03-6]?)|latin1|us-ascii|windows-125[0-8]|koi8-[ru]|shift_jis
    |euc-(?:jp|kr)|gb2312|gbk|gb18030|big5)["'\s;/>]""",
    re.IGNORECASE | re.VERBOSE,
)
Item = TypeVar("Item")


class Job(NamedTuple):
    """What to translate, how, and between which languages."""

    path: Path
    out: IO[bytes]
    translate: Translate
    source: str
    target: str
    overwrite: bool


def translate_document(
    path_in: str | Path,
    path_out: str | Path,
    translate: Translate,
    source: str,
    target: str,
    *,
    overwrite: bool = False,
) -> int:
    """Translate a document of one of the `FORMATS`, plain or .gz, and return how many segments were new.

    `translate` takes a list of texts and gives as many strings, or `Translated` with word links, by which markup is
    put back. Translations already there are kept unless `overwrite`. The output appears complete or not at all."""
    path_in, path_out = Path(path_in), Path(path_out)
    write = FORMATS.get(document_format(path_in))
    if write is None:
        raise UsageError(f"{path_in}: cannot translate this format; known are {', '.join(filter(None, FORMATS))}")
    if document_format(path_out) != document_format(path_in):
        raise UsageError(f"{path_out}: a document keeps its format; give the output the suffix of {path_in.name}")
    with _replacing(path_out) as out:
        return write(Job(path_in, out, translate, source, target, overwrite))


def translate_shared(
    path_in: Path, path_out: Path, translate: Translate, source: str, parts: Parts, wait: Callable[[], None]
) -> int:
    """Translate this process's share of a plain text, `wait` for the others; returns how many segments it had to do.

    The output is what `translate_document` writes, since parts end where its batches do."""
    if {document_format(path_in), document_format(path_out)} != {".txt"}:
        raise UsageError(f"{path_in}: processes share plain text only, into plain text; translate it without torchrun")
    counting = _Counting(translate)

    def do(lines: list[str]) -> bytes:
        return "".join(translate_lines("".join(some), counting, source) for some in _batches(lines)).encode()

    def join(places: Sequence[Path]) -> None:
        with _replacing(path_out) as out:
            for place in places:
                with place.open("rb") as part:
                    shutil.copyfileobj(part, out)

    parts.work(read_lines(path_in, ends=True), PART * BATCH, do, join, wait)
    return counting.count


def document_format(path: Path) -> str:
    """The suffix of the format; `news.en` is plain text, as in Moses' pairs of files."""
    suffix = format_of(path)
    return ".txt" if suffix[1:] in NAMES else SAME.get(suffix, suffix)


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its name only when it is complete and on the disk."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                    yield cast(IO[bytes], packed)
            else:
                yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise DataError(f"{path}: not written ({error.strerror or error})") from None
    finally:
        partial.unlink(missing_ok=True)


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    iterator = iter(items)
    while batch := list(islice(iterator, BATCH)):
        yield batch


class _Counting:
    """A translator that takes as much as there is, in batches, and counts it."""

    def __init__(self, translate: Translate) -> None:
        self.translate, self.count = translate, 0

    def __call__(self, texts: list[str]) -> list[str | Translated]:
        self.count += len(texts)
        return [output for batch in _batches(texts) for output in self.translate(batch)]


# Formats of one segment a line, or some sentences: streamed


def _translate_plain(job: Job) -> int:
    translate = _Counting(job.translate)
    for lines in _batches(read_lines(job.path, ends=True)):
        _write(job, translate_lines("".join(lines), translate, job.source))
    return translate.count


def _translate_table(job: Job) -> int:
    rows: Iterator[list[str]] = (row for _, row in read_rows(job.path, "replace"))
    head = list(islice(rows, 1))
    columns = _columns_to_fill(head[0], job) if head else Columns()
    write = _row_writer(job)
    if columns.named:
        write(head[0])
    count = 0
    for batch in _batches(rows if columns.named else chain(head, rows)):
        todo = [row for row in batch if len(row) > columns.source and _is_open(row, columns.target, job.overwrite)]
        texts = translate_texts([row[columns.source] for row in todo], job.translate)
        for row, text in zip(todo, texts, strict=True):
            row += [""] * (columns.target + 1 - len(row))
            row[columns.target] = text
        for row in batch:
            write(row)
        count += len(todo)
    return count


def _columns_to_fill(head: list[str], job: Job) -> Columns:
    """The columns of a table; a header that names only the source gains a target."""
    for added in ([], [job.target], ["target"]):
        columns = find_columns(head + added, job.source, job.target)
        if columns.named:
            head += added
            return columns
    return Columns()


def _is_open(row: Sequence[str], column: int, overwrite: bool) -> bool:
    return overwrite or len(row) <= column or not row[column].strip()


def _row_writer(job: Job) -> Callable[[Sequence[str]], None]:
    if format_of(job.path) == ".tsv":
        return lambda row: _write(job, "\t".join(row) + "\n")

    def write(row: Sequence[str]) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(row)
        _write(job, line.getvalue())

    return write


def _write(job: Job, text: str) -> None:
    job.out.write(text.encode())


def _translate_jsonl(job: Job) -> int:
    count = 0
    for batch in _batches(read_objects(job.path, "replace")):
        todo, texts = [], []
        for where, record in batch:
            maps = sides(record)
            key = find_key(maps, job.target, "target") or ("target" if "source" in maps else job.target)
            if job.overwrite or not maps.get(key):
                todo.append((maps, key))
                texts.append(text_of(maps, job.source, "source", where, "replace"))
        for (maps, key), text in zip(todo, translate_texts(texts, job.translate), strict=True):
            maps[key] = text
        for _, record in batch:
            _write(job, json.dumps(record, ensure_ascii=False) + "\n")
        count += len(todo)
    return count


# Subtitles and HTML


def _translate_subtitles(job: Job) -> int:
    text = "".join(read_lines(job.path, ends=True))
    return _rewrite(job, text, "utf-8", translate_subtitles)


def _translate_html(job: Job) -> int:
    with open_bytes(job.path) as stream:
        raw = stream.read()
    stated = CHARSET.search(raw, 0, 1024)
    if raw.startswith(codecs.BOM_UTF8) or stated is None:
        return _rewrite(job, "".join(read_lines(job.path, ends=True)), "utf-8", translate_html)
    charset = stated[1].decode().lower()
    if charset in ("iso-8859-1", "latin1", "us-ascii"):
        charset = "windows-1252"  # as browsers do
    return _rewrite(job, raw.decode(charset, "replace"), charset, translate_html)


def _rewrite(job: Job, text: str, charset: str, rewrite: Callable[[list[str], Translate, str], list[str]]) -> int:
    """Translate a whole text; a byte order mark is no part of it."""
    translate = _Counting(job.translate)
    body = text.removeprefix("\ufeff")
    (done,) = rewrite([body], translate, job.source)
    job.out.write((text[: len(text) - len(body)] + done).encode(charset, "xmlcharrefreplace"))
    return translate.count


# PO


def _translate_po(job: Job) -> int:
    catalogue = exchange.load_po(job.path, "replace")
    stated = catalogue.metadata.get("Language", "")
    if stated and not same_language(stated, job.target) and not job.overwrite and catalogue.translated_entries():
        raise DataError(f"{job.path}: translates into {stated!r}, not {job.target!r}; overwrite=True replaces it all")
    catalogue.metadata["Language"] = stated if stated and same_language(stated, job.target) else job.target
    forms = re.search(r"nplurals\s*=\s*(\d)", catalogue.metadata.get("Plural-Forms", ""))
    todo: list[tuple[Any, int | None, str]] = []
    for entry in catalogue:
        if entry.msgid_plural:
            wanted = range(int(forms[1]) if forms else max(2, len(entry.msgstr_plural)))
            entry.msgstr_plural = {form: entry.msgstr_plural.get(form, "") for form in wanted}
        for text, form in [] if entry.obsolete else exchange.po_forms(entry):
            if job.overwrite or not (entry.msgstr if form is None else entry.msgstr_plural[form]):
                todo.append((entry, form, text))
    for batch in _batches(todo):
        for (entry, form, _), text in zip(
            batch, translate_texts([text for *_, text in batch], job.translate), strict=True
        ):
            if form is None:
                entry.msgstr = text
            else:
                entry.msgstr_plural[form] = text
    job.out.write(str(catalogue).encode(catalogue.encoding))
    return len(todo)


# TMX and XLIFF


def _parse_xml(path: Path) -> Any:
    with open_bytes(path) as stream:
        try:
            parser = etree.XMLParser(resolve_entities=False, no_network=True)
            tree = etree.parse(stream, parser)
        except etree.XMLSyntaxError as error:
            raise DataError(f"{path}: not well-formed XML ({error})") from None
    exchange.refuse_entities(tree.getroot(), path)
    return tree


def _translate_tmx(job: Job) -> int:
    tree = _parse_xml(job.path)
    todo: list[tuple[Any, Any]] = []
    seen: set[str] = set()
    units = list(tree.iter("{*}tu"))
    for unit in units:
        variants = exchange.tmx_variants(unit)
        seen |= variants.keys()
        here, there = find_language(variants, job.source), find_language(variants, job.target)
        if here is None:
            continue
        segment = variants[there] if there else _add_variant(unit, variants[here], job.target)
        if job.overwrite or not exchange.text_within(segment):
            todo.append((variants[here], segment))
    if seen and find_language(seen, job.source) is None:
        raise DataError(f"{job.path}: no language {job.source!r}; the languages there are: {', '.join(sorted(seen))}")
    return _fill(job, tree, todo)


def _add_variant(unit: Any, like: Any, language: str) -> Any:
    model = like.getparent()
    variant = etree.SubElement(unit, model.tag, {exchange.XML_LANG: language})
    variant.tail, variant.text = model.tail, model.text
    segment = etree.SubElement(variant, like.tag)
    segment.tail = like.tail
    return segment


def _translate_xliff(job: Job) -> int:
    tree = _parse_xml(job.path)
    todo: list[tuple[Any, Any]] = []
    for unit in tree.iter(*(f"{{*}}{name}" for name in exchange.XLIFF_UNITS)):
        owner = exchange.language_owner(unit)
        exchange.check_languages(owner, job.source, job.target, job.path)
        owner.set(exchange.language_attributes(owner)[1], owner.get(exchange.language_attributes(owner)[1], job.target))
        for segment in exchange.xliff_segments(unit):
            here, there = child(segment, "source"), child(segment, "target")
            kept = there is not None and exchange.is_translated(segment, there) and not job.overwrite
            if here is None or kept or unit.get("translate") == "no":
                continue
            there = _add_target(here) if there is None else there
            if segment is unit:
                there.set("state", "needs-review-translation")
            else:
                segment.set("state", "translated")
            todo.append((here, there))
    return _fill(job, tree, todo)


def _add_target(here: Any) -> Any:
    """An empty <target> after <source>, or after the <seg-source> that may follow it."""
    there = etree.Element(here.tag.replace("source", "target"))
    unit = here.getparent()
    segmented = child(unit, "seg-source")
    before = here if segmented is None else segmented
    there.tail = before.tail
    unit.insert(unit.index(before) + 1, there)
    return there


def _fill(job: Job, tree: Any, todo: Sequence[tuple[Any, Any]]) -> int:
    for batch in _batches(todo):
        done = translate_marked([list(inline_pieces(here)) for here, _ in batch], job.translate)
        for (_, there), pieces in zip(batch, done, strict=True):
            rebuild(there, pieces)
    tree.write(job.out, encoding="UTF-8", xml_declaration=True)
    return len(todo)


FORMATS: dict[str, Callable[[Job], int]] = {
    ".txt": _translate_plain, "": _translate_plain,
    ".srt": _translate_subtitles, ".vtt": _translate_subtitles, ".html": _translate_html, ".htm": _translate_html,
    ".tsv": _translate_table, ".csv": _translate_table, ".jsonl": _translate_jsonl,
    ".tmx": _translate_tmx, ".po": _translate_po, ".xlf": _translate_xliff, ".xliff": _translate_xliff,
}  # fmt: skip
SAME = {"": ".txt", ".htm": ".html", ".xlf": ".xliff"}
