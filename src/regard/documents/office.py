"""Translate office documents, which are zip archives of XML: DOCX, PPTX, ODT and ODP.

Every paragraph is a segment; runs and spans of another format, hyperlinks and fields are marks in it. Only the
paragraphs that change are written again; all other parts of the archive keep their bytes. `KINDS` has the parts that
hold text.

In OOXML a paragraph has runs, each with its own properties. Runs of the same properties are joined; the properties of
most of the text are the paragraph's own, and every other run is a pair of marks. In ODF text and elements are mixed, as
in HTML.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from html import unescape
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.formats.encodings import UTF8, text_codec
from regard.data.formats.exchange import name_of
from regard.data.formats.lines import open_bytes
from regard.documents.document_job import SPOOL, DocumentJob
from regard.documents.markup import Mark, Piece, parse, same_text
from regard.documents.sentences import translate_sentences
from regard.documents.xml_edits import XmlDocument, declared_encoding, inline_pieces, text_pieces
from regard.errors import DataError

MAX_PARTS, MAX_PART, MAX_TOTAL = 20_000, 64 << 20, 2 << 30  # files; bytes of an XML part and of all, unpacked
TAG = re.compile(r"<[^<>]*>")
COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # begins what Microsoft's programs encrypt, and .doc and .ppt
COPY = 1 << 20  # bytes copied at a time

Outer = Callable[[Any], str]  # the XML of an element, with the changed paragraphs inside


class Raw(NamedTuple):
    """XML that is copied: text, and elements with whatever changes inside them."""

    parts: tuple[Any, ...]

    def render(self, outer: Outer) -> str:
        return "".join(part if isinstance(part, str) else outer(part) for part in self.parts)


# What separates texts: a tab, or the end of a line within a paragraph
BREAKS = frozenset({"br", "cr", "tab", "ptab", "line-break"})


def _copied(element: Any, before: str = "", after: str = "") -> Mark:
    """The mark of an element that is copied. A break is a tag without a partner, which keeps its place."""
    raw = Raw((before, element, after))
    return Mark(raw, "close", object()) if name_of(element) in BREAKS else Mark(raw)


# ODF: text and elements are mixed

ODF_WRAPPERS = frozenset({"span", "a", "meta", "ruby", "ruby-base"})


class FlowParagraph:
    """A paragraph or heading of ODF."""

    def __init__(self, document: XmlDocument, element: Any) -> None:
        self.document, self.element = document, element
        text, is_wrapper = partial(text_pieces, document), lambda inner: name_of(inner) in ODF_WRAPPERS
        self.pieces = list(inline_pieces(document, element, text, is_wrapper, _copied, light="span"))

    def render(self, pieces: Sequence[Piece], outer: Outer) -> str:
        return "".join(self._written(piece, outer) for piece in pieces)

    def _written(self, piece: Piece, outer: Outer) -> str:
        if isinstance(piece, str):
            return self.document.escape(piece)
        return piece.content.render(outer) if isinstance(piece.content, Raw) else str(piece.content)


# OOXML: text is in runs

# Elements around runs, whose content is translated
WRAPPERS = frozenset({"hyperlink", "ins", "moveTo", "smartTag", "customXml"})
# What word processors note about the old text, and of no use to the new one
DROPPED = frozenset({"proofErr", "lastRenderedPageBreak", "softHyphen"})
LETTERS = {"noBreakHyphen": "\u2011"}  # elements that stand for a letter of a word
NOTED = re.compile(r'<w:(?:lang|noProof)\b[^>]*/>|(?<=\s)(?:lang|altLang|dirty|err|smtClean|noProof)="[^"]*"\s?')
NO_PROPERTIES = re.compile(r"<([\w:]+)\s*(?:/>|>\s*</\1>)")


class Run(NamedTuple):
    """The properties of a run, as XML; the content of the marks around its text."""

    properties: str


class Item(NamedTuple):
    """Text with its properties, or a mark."""

    properties: str
    text: str = ""
    mark: Mark | None = None


class RunParagraph:
    """A paragraph of WordprocessingML or DrawingML."""

    def __init__(self, document: XmlDocument, element: Any) -> None:
        self.document, self.element = document, element
        self.prefix = document.span(element).name.rpartition("p")[0]
        self._namespace = element.tag.rpartition("}")[0] + "}"
        self._first = [each for each in element if each.tag == f"{self._namespace}pPr"]
        self._last = [each for each in element if each.tag == f"{self._namespace}endParaRPr"]
        items = list(self._items([each for each in element if each not in (*self._first, *self._last)]))
        lengths: Counter[str] = Counter()
        for item in items:
            lengths[item.properties] += len(item.text)
        self.own = lengths.most_common(1)[0][0] if lengths else ""
        self.pieces = list(self._pieces(items))

    # Elements to pieces

    def _items(self, elements: Sequence[Any]) -> Iterator[Item]:
        number = 0
        while number < len(elements):
            element = elements[number]
            number += 1
            kind = name_of(element)
            if kind in DROPPED or not kind:
                continue
            if element.tag == f"{self._namespace}r":
                field = _field(elements, number - 1)
                if field:
                    yield from self._field_items(elements[number - 1 : field])
                    number = field
                else:
                    yield from self._run_items(element)
            elif kind in WRAPPERS and not self.document.span(element).is_empty:
                yield from self._wrapped(self.document.tags(element), list(element), element)
            elif kind == "sdt" and (content := element.find(f"{self._namespace}sdtContent")) is not None:
                yield from self._control_items(element, content)
            else:
                yield Item("", mark=_copied(element))

    def _wrapped(self, tags: tuple[str, str], inside: Sequence[Any], key: object) -> Iterator[Item]:
        yield Item("", mark=Mark(Raw((tags[0],)), "open", key, firm=True))
        yield from self._items(inside)
        yield Item("", mark=Mark(Raw((tags[1],)), "close", key, firm=True))

    def _control_items(self, control: Any, content: Any) -> Iterator[Item]:
        """The items of a content control, unless it is empty or holds paragraphs of its own."""
        outside, inside = self.document.span(control), self.document.span(content)
        if inside.is_empty:
            yield Item("", mark=_copied(control))
            return
        text = self.document.text
        tags = text[outside.start : inside.inside], text[inside.outside : outside.end]
        yield from self._wrapped(tags, list(content), control)

    def _field_items(self, runs: Sequence[Any]) -> Iterator[Item]:
        """A field is copied, because a program computes its text; a hyperlink's text is translated."""
        code = "".join(run.findtext(f"{self._namespace}instrText") or "" for run in runs)
        middle = next((n for n, run in enumerate(runs) if _field_char(run) == "separate"), None)
        if code.strip().upper().startswith("HYPERLINK") and middle is not None:
            yield Item("", mark=Mark(Raw(tuple(runs[: middle + 1])), "open", runs[0], firm=True))
            yield from self._items(runs[middle + 1 : -1])
            yield Item("", mark=Mark(Raw((runs[-1],)), "close", runs[0], firm=True))
        else:
            yield Item("", mark=Mark(Raw(tuple(runs))))

    def _run_items(self, run: Any) -> Iterator[Item]:
        properties, written = "", ""
        name = self.document.span(run).name
        for inner in run:
            if inner.tag == f"{self._namespace}rPr":
                written = self.document.outer(inner)
                properties = NOTED.sub("", written)
                properties = "" if NO_PROPERTIES.fullmatch(properties) else properties
            elif inner.tag == f"{self._namespace}t":
                yield Item(properties, inner.text or "")
            elif name_of(inner) in LETTERS:
                yield Item(properties, LETTERS[name_of(inner)])
            elif name_of(inner) and name_of(inner) not in DROPPED:
                yield Item("", mark=_copied(inner, f"<{name}>{written}", f"</{name}>"))

    def _pieces(self, items: Sequence[Item]) -> Iterator[Piece]:
        for (properties, is_text), group in groupby(items, key=lambda item: (item.properties, item.mark is None)):
            if not is_text:
                yield from (item.mark for item in group if item.mark)
                continue
            pieces = parse("".join(item.text for item in group))
            if properties == self.own:
                yield from pieces
            else:
                content, key, light = Run(properties), object(), "hlinkClick" not in properties
                yield Mark(content, "open", key, firm=True, light=light)
                yield from pieces
                yield Mark(content, "close", key, firm=True, light=light)

    # Pieces to XML

    def render(self, pieces: Sequence[Piece], outer: Outer) -> str:
        written = [outer(element) for element in self._first]
        properties, text = [self.own], ""
        for piece in pieces:
            content = piece if isinstance(piece, str) else piece.content
            if isinstance(content, str):
                text += content
                continue
            written.append(self._run(properties[-1], text))
            text = ""
            if isinstance(content, Raw):
                written.append(content.render(outer))
            elif isinstance(piece, Mark) and piece.role == "open":
                properties.append(content.properties)
            else:
                properties.pop()
        written += [self._run(properties[-1], text), *(outer(element) for element in self._last)]
        return "".join(written)

    def _run(self, properties: str, text: str) -> str:
        if not text:
            return ""
        prefix = self.prefix
        is_word = "wordprocessingml" in self._namespace
        space = ' xml:space="preserve"' if is_word and text != text.strip() else ""
        return f"<{prefix}r>{properties}<{prefix}t{space}>{self.document.escape(text)}</{prefix}t></{prefix}r>"


def _field_char(run: Any) -> str:
    """What a run says of a field: that it begins, has its result next, or ends; empty if nothing."""
    found = run.find("{*}fldChar")
    if found is None:
        return ""
    return next((value for name, value in found.attrib.items() if name.endswith("fldCharType")), "")


def _field(elements: Sequence[Any], start: int) -> int:
    """The number after the run that ends the field which begins at `start`; 0 if none begins or ends here."""
    if _field_char(elements[start]) != "begin":
        return 0
    depth = 0
    for number in range(start, len(elements)):
        kind = _field_char(elements[number]) if name_of(elements[number]) == "r" else ""
        depth += {"begin": 1, "end": -1}.get(kind, 0)
        if kind == "end" and not depth:
            return number + 1
    return 0


# Archives


Paragraph = FlowParagraph | RunParagraph


class Kind(NamedTuple):
    """A kind of office document: the part it must have, the parts with text, and how its paragraphs are read."""

    main: str
    parts: re.Pattern[str]
    paragraphs: tuple[str, ...]
    read: Callable[[XmlDocument, Any], Paragraph]
    copied: tuple[str, ...] = ()  # elements whose paragraphs are not translated


CHARTS = r"charts/chart\d*|diagrams/(?:data|drawing)\d*"
WORD = re.compile(rf"word/(?:document\d*|header\d*|footer\d*|footnotes|endnotes|{CHARTS})\.xml")
POWERPOINT = re.compile(rf"ppt/(?:slides/slide\d*|notesSlides/notesSlide\d*|{CHARTS})\.xml")
OPEN_DOCUMENT = Kind(
    "content.xml",
    re.compile(r"(?:content|styles)\.xml"),
    ("{*}p", "{*}h"),
    FlowParagraph,
    copied=("{*}tracked-changes", "{*}annotation"),
)
KINDS = {
    ".docx": Kind("word/document.xml", WORD, ("{*}p",), RunParagraph),
    ".pptx": Kind("ppt/presentation.xml", POWERPOINT, ("{*}p",), RunParagraph),
    ".odt": OPEN_DOCUMENT,
    ".odp": OPEN_DOCUMENT,
}


def translate_office(job: DocumentJob) -> None:
    suffix = Path(job.path.stem if job.path.suffix == ".gz" else job.path.name).suffix.lower()
    with open_bytes(job.path) as stream, tempfile.SpooledTemporaryFile(SPOOL) as spool:
        try:
            with zipfile.ZipFile(stream) as archive, zipfile.ZipFile(spool, "w") as new:
                _translate_archive(job, KINDS[suffix], archive, new)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            stream.seek(0)
            if stream.read(len(COMPOUND)) == COMPOUND:
                raise DataError(
                    f"{job.path}: protected by a password, or of an older version of the program; "
                    f"open it, and save it as {suffix} without protection"
                ) from None
            raise DataError(f"{job.path}: not a readable {suffix} file, which is a zip archive ({error})") from None
        spool.seek(0)
        while chunk := spool.read(COPY):
            job.write(chunk)


def _translate_archive(job: DocumentJob, kind: Kind, archive: zipfile.ZipFile, new: zipfile.ZipFile) -> None:
    infos = archive.infolist()
    _check(job.path, kind, infos)
    for info in infos:
        if kind.parts.fullmatch(info.filename):
            new.writestr(info, _translate_part(job, kind, info.filename, archive.read(info)))
        else:
            with archive.open(info) as source, new.open(info, "w") as target:
                shutil.copyfileobj(source, target, COPY)


def _check(path: Path, kind: Kind, infos: list[zipfile.ZipInfo]) -> None:
    """Refuse an archive that is protected, no document of this kind, or made to fill the memory."""
    if any(info.flag_bits & 1 for info in infos):
        raise DataError(f"{path}: protected by a password; remove the protection first")
    if all(info.filename != kind.main for info in infos):
        raise DataError(f"{path}: has no {kind.main}, which a {path.suffix} file must have")
    total = sum(info.file_size for info in infos)
    largest = max(info.file_size for info in infos if kind.parts.fullmatch(info.filename) or info.filename == kind.main)
    if len(infos) > MAX_PARTS or total > MAX_TOTAL or largest > MAX_PART:
        raise DataError(
            f"{path}: too large when unpacked ({len(infos)} files, {total >> 20} MiB, {largest >> 20} MiB of text); "
            f"the limits are {MAX_PARTS} files, {MAX_TOTAL >> 20} MiB and {MAX_PART >> 20} MiB of XML"
        )


def _translate_part(job: DocumentJob, kind: Kind, name: str, raw: bytes) -> bytes:
    where = Path(f"{job.path}, {name}")
    encoding = text_codec(declared_encoding(raw) or UTF8, where)
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not in {encoding} ({error.reason}); is it protected by a password?") from None
    document = XmlDocument(text.removeprefix("\ufeff"), where)
    left_out = {inside for name in kind.copied for element in document.root.iter(name) for inside in element.iter()}
    elements = [element for element in document.root.iter(*kind.paragraphs) if element not in left_out]
    paragraphs = [kind.read(document, element) for element in elements]
    done = translate_sentences([each.pieces for each in paragraphs], job.translate_counted, job.source)
    changed: dict[Any, str] = {}

    def outer(element: Any) -> str:
        return document.outer(element, {each: changed[each] for each in element.iterdescendants() if each in changed})

    # The paragraphs of a text box come after the one it is in; its new text has theirs in it
    for paragraph, pieces in reversed(list(zip(paragraphs, done, strict=True))):
        if not same_text(paragraph.pieces, pieces):
            changed[paragraph.element] = paragraph.render(pieces, outer)
    for element, content in changed.items():
        if not any(around in changed for around in element.iterancestors()):
            document.set_content(element, content)
    _update_cells(document, changed)
    return document.result().encode(encoding, "xmlcharrefreplace") if changed else raw


def _update_cells(document: XmlDocument, changed: Mapping[Any, str]) -> None:
    """Set the value of ODF's cells that repeat their text in an attribute."""
    for cell in {element.getparent() for element in changed}:
        if any(name.endswith("}string-value") for name in cell.attrib):
            texts = (TAG.sub("", changed.get(inside) or document.inner(inside)) for inside in cell)
            document.set_attribute(cell, "office:string-value", unescape("\n".join(texts)))
