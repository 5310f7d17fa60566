"""Android's string resources (strings.xml): strings, plurals and arrays, each item by itself.

Elements such as <b> are put back by alignment; <xliff:g> is not translated. What is marked translatable="false" is
kept. Apostrophes, quotes and other characters with a meaning of their own are written with a backslash."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from regard.data.formats.exchange import name_of
from regard.documents.document_job import DocumentJob, batches
from regard.documents.icu_messages import has_letters
from regard.documents.markup import Mark, Piece, parse
from regard.documents.sentences import translate_sentences
from regard.documents.xml_edits import XmlDocument
from regard.documents.xml_inline import same_text
from regard.errors import DataError

BREAK = re.compile(r"((?<!\\)(?:\\[nrt])+)")
ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
SPECIAL = re.compile(r"""(['"\\])""")


def translate_android(job: DocumentJob) -> None:
    text = job.text()
    document = XmlDocument(text, job.path)
    if name_of(document.root) != "resources":
        raise DataError(
            f"{job.path}: of .xml files only Android's string resources can be translated, whose root is <resources>; "
            f"this one is <{name_of(document.root)}>"
        )
    elements = list(_elements(job, document.root))
    for batch in batches(elements):
        pieces = [list(_pieces(document, element)) for element in batch]
        done = translate_sentences(pieces, job.translate, job.source)
        for element, before, after in zip(batch, pieces, done, strict=True):
            if not same_text(before, after):
                document.set_content(element, _render(document, after))
    job.report.translated += len(elements)
    job.write(document.result())


def _elements(job: DocumentJob, root: Any) -> Iterator[Any]:
    """The elements whose content is a text."""
    for entry in root:
        kind = name_of(entry)
        if kind not in ("string", "plurals", "string-array"):
            continue
        items = [entry] if kind == "string" else [item for item in entry if name_of(item) == "item"]
        if entry.get("translatable") == "false":
            job.report.skipped['marked translatable="false"'] += len(items)
            continue
        for item in items:
            if has_letters("".join(item.itertext())) and not _is_reference(item):
                yield item


def _is_reference(item: Any) -> bool:
    """Whether it is the name of another resource: @string/title."""
    return not len(item) and bool(re.fullmatch(r"\s*[@?][\w.:+-]+/[\w.]+\s*", item.text or ""))


def _pieces(document: XmlDocument, element: Any) -> Iterator[Piece]:
    yield from _text_pieces(document, element.text)
    for inner in element:
        if name_of(inner) in ("", "g") or document.span(inner).is_empty:
            if name_of(inner):
                yield Mark(document.outer(inner))
        else:
            opening, closing = document.tags(inner)
            yield Mark(opening, "open", inner, firm=True)
            yield from _pieces(document, inner)
            yield Mark(closing, "close", inner, firm=True)
        yield from _text_pieces(document, inner.tail)


def _text_pieces(document: XmlDocument, text: str | None) -> Iterator[Piece]:
    raw = text or ""
    quoted = len(raw) > 1 and raw[0] == raw[-1] == '"' and raw[-2] != "\\"
    if quoted:  # they keep the spaces of the text; a tag without a partner keeps its place
        yield Mark('"', "close", object())
        raw = raw[1:-1]
    for number, part in enumerate(BREAK.split(raw)):
        if number % 2:
            yield Mark(part, "close", object())  # a tag without a partner, which keeps its place
            continue
        for piece in parse(ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else match[2], part)):
            yield piece if isinstance(piece, str) else replace(piece, content=_spelled(document, piece.content))
    if quoted:
        yield Mark('"', "close", object())


def _spelled(document: XmlDocument, text: str) -> str:
    return document.escape(SPECIAL.sub(r"\\\1", text))


def _render(document: XmlDocument, pieces: list[Piece]) -> str:
    content = "".join(_spelled(document, piece) if isinstance(piece, str) else piece.content for piece in pieces)
    return f"\\{content}" if content[:1] in ("@", "?") else content
