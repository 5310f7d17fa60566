"""Fill TMX and XLIFF files with translations; everything else in them keeps its spelling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from regard.data.formats import exchange
from regard.data.formats.exchange import child, name_of
from regard.data.formats.languages import find_language
from regard.documents.document_job import DocumentJob, batches
from regard.documents.markup import Mark, Piece, same_text, sent_text, translate_marked
from regard.documents.xml_edits import XmlDocument, inline_pieces, text_pieces, with_attribute
from regard.errors import DataError

# Inline elements that come as two separate halves: role, and the attributes that both halves share
HALVES = {
    "bpt": ("open", "i", "rid"), "ept": ("close", "i", "rid"),
    "bx": ("open", "rid", "id"), "ex": ("close", "rid", "id"),
    "sc": ("open", "id"), "ec": ("close", "startRef"),
}  # fmt: skip
WRAPPERS = frozenset({"g", "pc", "mrk", "hi", "sub"})
PROTECTED = frozenset({"protected", "x-protected", "x-DNT"})  # types of <mrk> whose text is not to be translated
NO_SOURCE = "without a source text"
ALREADY_TRANSLATED = "already translated"


# Inline elements


def _translated(job: DocumentJob, document: XmlDocument, elements: Sequence[Any]) -> dict[Any, str]:
    """The translated content of each element, as XML."""
    done: dict[Any, str] = {}
    for batch in batches(elements):
        pieces = [_pieces(document, element) for element in batch]
        for element, before, after in zip(batch, pieces, translate_marked(pieces, job.translate), strict=True):
            written = (document.escape(piece) if isinstance(piece, str) else piece.content for piece in after)
            done[element] = document.inner(element) if same_text(before, after) else "".join(written)
    job.report.translated += len(elements)
    return done


def _pieces(document: XmlDocument, element: Any) -> list[Piece]:
    """The text and inline elements of a segment."""

    def single(inner: Any) -> Mark:
        if name_of(inner) not in HALVES:
            return Mark(document.outer(inner))
        role, *names = HALVES[name_of(inner)]
        key = next((inner.get(name) for name in names if inner.get(name) is not None), None)
        return Mark(document.outer(inner), "open" if role == "open" else "close", ("half", key))

    def is_wrapper(inner: Any) -> bool:
        return name_of(inner) in WRAPPERS and inner.get("translate") != "no" and inner.get("mtype") not in PROTECTED

    return list(inline_pieces(document, element, partial(text_pieces, document), is_wrapper, single))


# TMX


def translate_tmx(job: DocumentJob) -> None:
    document = XmlDocument(job.text(), job.path)
    # Each item: the source segment, the target segment if there is one, and the unit
    todo: list[tuple[Any, Any, Any]] = []
    seen: set[str] = set()
    for unit in document.root.iter("{*}tu"):
        variants = exchange.tmx_variants(unit)
        seen |= variants.keys()
        source_code, target_code = find_language(variants, job.source), find_language(variants, job.target)
        if source_code is None or not exchange.has_content(variants[source_code]):
            job.report.skipped[NO_SOURCE if source_code else f"without the language {job.source!r}"] += 1
        elif target_code and exchange.text_within(variants[target_code]) and not job.overwrite:
            job.report.kept[ALREADY_TRANSLATED] += 1
        else:
            todo.append((variants[source_code], variants[target_code] if target_code else None, unit))
    if seen and find_language(seen, job.source) is None:
        raise DataError(f"{job.path}: no language {job.source!r}; the languages are: {', '.join(sorted(seen))}")
    done = _translated(job, document, [source_element for source_element, *_ in todo])
    for source_element, target_element, unit in todo:
        if target_element is None:
            document.insert_after(
                unit.findall("{*}tuv")[-1], _variant(document, source_element, done[source_element], job.target)
            )
        else:
            document.set_content(target_element, done[source_element])
    job.write(document.result())


def _variant(document: XmlDocument, source_element: Any, content: str, language: str) -> str:
    """A <tuv> of another language, with the indentation of the source's."""
    outer, inner = document.span(source_element.getparent()).name, document.span(source_element).name
    around = [document.space_before(element) for element in (source_element.getparent(), source_element)]
    tag = with_attribute(f"<{outer}>", "xml:lang", language)
    end = document.space_at_end(source_element.getparent())
    return f"{around[0]}{tag}{around[1]}<{inner}>{content}</{inner}>{end}</{outer}>"


# XLIFF


class TargetEdit(NamedTuple):
    """A <target> to write: its unit, its source, the parts of the source to translate, and kept translations."""

    unit: Any  # <trans-unit> in XLIFF 1.2, <segment> in 2.x
    source_element: Any
    target_element: Any
    parts: Sequence[Any]
    kept: Mapping[Any, str]


def translate_xliff(job: DocumentJob) -> None:
    document = XmlDocument(job.text(), job.path)
    edits: list[TargetEdit] = []
    owners: dict[Any, None] = {}
    for unit in document.root.iter(*(f"{{*}}{name}" for name in exchange.XLIFF_UNITS)):
        owner = exchange.language_owner(unit)
        if owner not in owners:
            exchange.check_languages(owner, job.source, job.target, job.path)
            owners[owner] = None
        for segment in exchange.xliff_segments(unit):
            if edit := _target_edit(document, segment, job):
                edits.append(edit)
    for owner in owners:
        name = exchange.language_attributes(owner)[1]
        if job.target and not owner.get(name):
            document.set_attribute(owner, name, job.target)
    done = _translated(job, document, [part for edit in edits for part in edit.parts])
    for edit in edits:
        _apply(document, edit, done, job)
    job.write(document.result())


def _target_edit(document: XmlDocument, segment: Any, job: DocumentJob) -> TargetEdit | None:
    """The edit for a segment, or None with the reason counted in the report."""
    source_element, target_element = child(segment, "source"), child(segment, "target")
    parts = exchange.segments_within(segment)
    count = len(parts) or 1
    if exchange.is_forbidden(segment):
        job.report.skipped['marked translate="no"'] += count
    elif source_element is None or not exchange.has_content(source_element):
        job.report.skipped[NO_SOURCE] += count
    elif target_element is not None and exchange.is_settled(segment, target_element):
        job.report.kept["approved or final"] += count
    elif not parts:
        if job.overwrite or target_element is None or not exchange.is_translated(segment, target_element):
            return TargetEdit(segment, source_element, target_element, [source_element], {})
        job.report.kept[ALREADY_TRANSLATED] += 1
    else:
        return _segmented_edit(document, segment, parts, job)
    return None


def _segmented_edit(document: XmlDocument, unit: Any, parts: Sequence[Any], job: DocumentJob) -> TargetEdit | None:
    """The edit for a unit of XLIFF 1.2 with <mrk mtype="seg">; each of these is translated or kept by itself."""
    source_element, target_element = child(unit, "seg-source"), child(unit, "target")
    kept: dict[Any, str] = {}
    if target_element is not None and not job.overwrite and exchange.is_translated(unit, target_element):
        written = {mark.get("mid"): mark for mark in exchange.segment_marks(target_element)}
        if not written:  # translated without segmentation
            job.report.kept[ALREADY_TRANSLATED] += len(parts)
            return None
        found = {part: written[part.get("mid")] for part in parts if part.get("mid") in written}
        kept = {part: document.inner(mark) for part, mark in found.items() if exchange.has_content(mark)}
    job.report.kept.update({ALREADY_TRANSLATED: len(kept)} if kept else {})
    todo = [part for part in parts if part not in kept and exchange.has_content(part)]
    return TargetEdit(unit, source_element, target_element, todo, kept) if todo else None


def _apply(document: XmlDocument, edit: TargetEdit, done: Mapping[Any, str], job: DocumentJob) -> None:
    unit, source_element, target_element, parts, kept = edit
    new = {part: done[part] for part in parts}
    content = new.get(source_element)
    if content is None:
        content = _segmented_content(document, source_element, target_element, new, kept)
    attributes, note = {"state": "translated"}, ""
    doubt = job.doubt(sent_text(_pieces(document, part)) for part in parts)
    if name_of(unit) != "trans-unit":  # XLIFF 2.x, where the state is that of the segment
        if job.review or doubt:
            attributes["subState"] = f"regard:{doubt.replace(', ', '-').replace(' ', '-') or 'needs-review'}"
        for name, value in attributes.items():
            document.set_attribute(unit, name, value)
        attributes = {}
    elif job.review or doubt:
        attributes["state"] = "needs-review-translation"
        name = document.span(child(unit, "source")).name.replace("source", "note")
        note = f"{document.space_before(child(unit, 'source'))}<{name}>{doubt}</{name}>" if doubt else ""
    if target_element is None:
        source, cut = child(unit, "source"), child(unit, "seg-source")
        target = _target(document, source, content, attributes)
        document.insert_after(source if cut is None else cut, document.space_before(source) + target + note)
        return
    for name, value in attributes.items():
        document.set_attribute(target_element, name, value)
    document.set_content(target_element, content)
    if note:
        document.insert_after(target_element, note)


def _segmented_content(
    document: XmlDocument, source_element: Any, target_element: Any, new: Mapping[Any, str], kept: Mapping[Any, str]
) -> str:
    """The content of a segmented <target>: its old structure if it has all segments, else that of <seg-source>."""
    places = (
        {} if target_element is None else {mark.get("mid"): mark for mark in exchange.segment_marks(target_element)}
    )
    wanted = [part.get("mid") for part in exchange.segment_marks(source_element)]
    if len(set(wanted)) == len(wanted) and places.keys() >= set(wanted):
        return document.inner(target_element, {places[part.get("mid")]: content for part, content in new.items()})
    return document.inner(source_element, {**kept, **new})


def _target(document: XmlDocument, source: Any, content: str, attributes: Mapping[str, str]) -> str:
    name = document.span(source).name.replace("source", "target")
    tag = f"<{name}>"
    if source.get(exchange.XML_SPACE):
        tag = with_attribute(tag, "xml:space", source.get(exchange.XML_SPACE))
    for attribute, value in attributes.items():
        tag = with_attribute(tag, attribute, value)
    return f"{tag}{content}</{name}>"
