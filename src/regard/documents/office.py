"""Translate office documents, which are zip archives of XML: DOCX, PPTX, ODT and ODP.

Every paragraph is a segment; runs and spans of another format, hyperlinks and fields are marks in it. Only the
paragraphs that change are written again; all other parts of the archive keep their bytes. `KINDS` has the parts that
hold text.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.formats.encodings import UTF8, text_codec
from regard.data.formats.lines import open_bytes
from regard.documents.document_job import SPOOL, DocumentJob
from regard.documents.office_paragraphs import Paragraph, flow_paragraph, run_paragraph
from regard.documents.sentences import translate_sentences
from regard.documents.xml_edits import XmlDocument, declared_encoding
from regard.documents.xml_inline import same_text
from regard.errors import DataError

MAX_PARTS, MAX_PART, MAX_TOTAL = 20_000, 64 << 20, 2 << 30  # files; bytes of an XML part and of all, unpacked
TAG = re.compile(r"<[^<>]*>")
COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # begins what Microsoft's programs encrypt, and .doc and .ppt
COPY = 1 << 20  # bytes copied at a time


class Kind(NamedTuple):
    """A kind of office document: the part it must have, the parts with text, and how its paragraphs are read."""

    main: str
    parts: re.Pattern[str]
    paragraphs: tuple[str, ...]
    read: Callable[[XmlDocument, Any], Paragraph]
    copied: tuple[str, ...] = ()  # elements whose paragraphs are not translated


OOXML = ("{*}p",)
ODF = ("{*}p", "{*}h")
CHARTS = r"charts/chart\d*|diagrams/(?:data|drawing)\d*"
OPEN_DOCUMENT = Kind(
    "content.xml", re.compile(r"(?:content|styles)\.xml"), ODF, flow_paragraph, ("tracked-changes", "annotation")
)
KINDS = {
    ".docx": Kind(
        "word/document.xml",
        re.compile(rf"word/(?:document\d*|header\d*|footer\d*|footnotes|endnotes|{CHARTS})\.xml"),
        OOXML,
        run_paragraph,
    ),
    ".pptx": Kind(
        "ppt/presentation.xml",
        re.compile(rf"ppt/(?:slides/slide\d*|notesSlides/notesSlide\d*|{CHARTS})\.xml"),
        OOXML,
        run_paragraph,
    ),
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
    paragraphs = [kind.read(document, element) for element in _paragraphs(document, kind)]
    done = translate_sentences([each.pieces for each in paragraphs], job.translate_counted, job.source)
    changed: dict[Any, str] = {}
    # The paragraphs of a text box come after the one it is in; its new text has theirs in it
    for paragraph, pieces in reversed(list(zip(paragraphs, done, strict=True))):
        if not same_text(paragraph.pieces, pieces):
            changed[paragraph.element] = paragraph.render(pieces, lambda part: _outer(document, part, changed))
    for element, content in changed.items():
        if not any(around in changed for around in element.iterancestors()):
            document.set_content(element, content)
    _update_cells(document, changed)
    return document.result().encode(encoding, "xmlcharrefreplace") if changed else raw


def _paragraphs(document: XmlDocument, kind: Kind) -> Iterator[Any]:
    copied = tuple(f"{{*}}{name}" for name in kind.copied)
    left_out = {inside for element in document.root.iter(*copied) for inside in element.iter()} if copied else set()
    yield from (element for element in document.root.iter(*kind.paragraphs) if element not in left_out)


def _update_cells(document: XmlDocument, changed: Mapping[Any, str]) -> None:
    """Set the value of ODF's cells that repeat their text in an attribute."""
    for cell in {element.getparent() for element in changed}:
        if any(name.endswith("}string-value") for name in cell.attrib):
            texts = (TAG.sub("", changed.get(inside) or document.inner(inside)) for inside in cell)
            document.set_attribute(cell, "office:string-value", unescape("\n".join(texts)))


def _outer(document: XmlDocument, element: Any, changed: Mapping[Any, str]) -> str:
    """The text of an element, with changed paragraphs inside."""
    inside = [each for each in element.iterdescendants() if each in changed]
    outermost = {each: changed[each] for each in inside if not _has_changed_parent(each, element, changed)}
    return document.outer(element, outermost)


def _has_changed_parent(inner: Any, limit: Any, changed: Mapping[Any, str]) -> bool:
    for around in inner.iterancestors():
        if around is limit:
            return False
        if around in changed:
            return True
    return False
