"""TMX and XLIFF files filled with translations; everything else in them stays as it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from regard.data.formats import exchange
from regard.data.formats.exchange import child
from regard.data.formats.languages import find_language
from regard.documents.jobs import Job, batches
from regard.documents.xml_edits import XmlDocument, with_attribute
from regard.documents.xml_inline import translate_elements
from regard.errors import DataError

NO_SOURCE = "without a source text"
DONE = "already translated"


def _translated(job: Job, document: XmlDocument, elements: Sequence[Any]) -> dict[Any, str]:
    """The new content of each element, as it is to be written."""
    done: dict[Any, str] = {}
    for batch in batches(elements):
        done.update(zip(batch, translate_elements(document, batch, job.translate), strict=True))
    job.report.translated += len(elements)
    return done


# TMX


def translate_tmx(job: Job) -> None:
    document = XmlDocument(job.text(), job.path)
    todo: list[tuple[Any, Any, Any]] = []  # the segment to translate, that of the target if there is one, the unit
    seen: set[str] = set()
    for unit in document.root.iter("{*}tu"):
        variants = exchange.tmx_variants(unit)
        seen |= variants.keys()
        here, there = find_language(variants, job.source), find_language(variants, job.target)
        if here is None or not exchange.has_content(variants[here]):
            job.report.skipped[NO_SOURCE if here else f"without the language {job.source!r}"] += 1
        elif there and exchange.text_within(variants[there]) and not job.overwrite:
            job.report.kept[DONE] += 1
        else:
            todo.append((variants[here], variants[there] if there else None, unit))
    if seen and find_language(seen, job.source) is None:
        raise DataError(f"{job.path}: no language {job.source!r}; the languages there are: {', '.join(sorted(seen))}")
    done = _translated(job, document, [here for here, *_ in todo])
    for here, there, unit in todo:
        if there is None:
            document.insert_after(unit.findall("{*}tuv")[-1], _variant(document, here, done[here], job.target))
        else:
            document.set_content(there, done[here])
    job.write(document.result())


def _variant(document: XmlDocument, here: Any, content: str, language: str) -> str:
    """A <tuv> of another language, set out like the one of the source."""
    outer, inner = document.span(here.getparent()).name, document.span(here).name
    around = [document.space_before(element) for element in (here.getparent(), here)]
    tag = with_attribute(f"<{outer}>", "xml:lang", language)
    return f"{around[0]}{tag}{around[1]}<{inner}>{content}</{inner}>{document.space_at_end(here.getparent())}</{outer}>"


# XLIFF


class Filling(NamedTuple):
    """A <target> to write: for which <source>, and of which stretches of it the translations are wanted."""

    unit: Any  # <trans-unit> in XLIFF 1.2, <segment> in 2.x
    here: Any
    there: Any
    parts: Sequence[Any]
    kept: Mapping[Any, str]


def translate_xliff(job: Job) -> None:
    document = XmlDocument(job.text(), job.path)
    fillings: list[Filling] = []
    owners: dict[Any, None] = {}
    for unit in document.root.iter(*(f"{{*}}{name}" for name in exchange.XLIFF_UNITS)):
        owner = exchange.language_owner(unit)
        if owner not in owners:
            exchange.check_languages(owner, job.source, job.target, job.path)
            owners[owner] = None
        for segment in exchange.xliff_segments(unit):
            if filling := _filling(document, segment, job):
                fillings.append(filling)
    for owner in owners:
        name = exchange.language_attributes(owner)[1]
        if job.target and not owner.get(name):
            document.set_attribute(owner, name, job.target)
    done = _translated(job, document, [part for filling in fillings for part in filling.parts])
    for filling in fillings:
        _fill(document, filling, done, job)
    job.write(document.result())


def _filling(document: XmlDocument, segment: Any, job: Job) -> Filling | None:
    """What is to be done for a segment; None, with the reason counted, if nothing is."""
    here, there = child(segment, "source"), child(segment, "target")
    parts = exchange.segments_within(segment)
    count = len(parts) or 1
    if exchange.is_forbidden(segment):
        job.report.skipped['marked translate="no"'] += count
    elif here is None or not exchange.has_content(here):
        job.report.skipped[NO_SOURCE] += count
    elif there is not None and exchange.is_settled(segment, there):
        job.report.kept["approved or final"] += count
    elif not parts:
        if job.overwrite or there is None or not exchange.is_translated(segment, there):
            return Filling(segment, here, there, [here], {})
        job.report.kept[DONE] += 1
    else:
        return _segmented(document, segment, parts, job)
    return None


def _segmented(document: XmlDocument, unit: Any, parts: Sequence[Any], job: Job) -> Filling | None:
    """A unit of XLIFF 1.2 that is cut into <mrk mtype="seg">: each of them is translated, or kept, by itself."""
    here, there = child(unit, "seg-source"), child(unit, "target")
    kept: dict[Any, str] = {}
    if there is not None and not job.overwrite and exchange.is_translated(unit, there):
        written = {mark.get("mid"): mark for mark in exchange.segment_marks(there)}
        if not written:  # translated as a whole
            job.report.kept[DONE] += len(parts)
            return None
        found = {part: written[part.get("mid")] for part in parts if part.get("mid") in written}
        kept = {part: document.inner(mark) for part, mark in found.items() if exchange.has_content(mark)}
    job.report.kept.update({DONE: len(kept)} if kept else {})
    todo = [part for part in parts if part not in kept and exchange.has_content(part)]
    return Filling(unit, here, there, todo, kept) if todo else None


def _fill(document: XmlDocument, filling: Filling, done: Mapping[Any, str], job: Job) -> None:
    unit, here, there, parts, kept = filling
    new = {part: done[part] for part in parts}
    content = new[here] if here in new else _joined(document, here, there, new, kept)
    attributes = {"state": "translated"}
    if exchange.name_of(unit) != "trans-unit":  # XLIFF 2.x, where the state is that of the segment
        if job.review:
            attributes["subState"] = "regard:needs-review"
        for name, value in attributes.items():
            document.set_attribute(unit, name, value)
        attributes = {}
    elif job.review:
        attributes["state"] = "needs-review-translation"
    if there is None:
        source, cut = child(unit, "source"), child(unit, "seg-source")
        target = _target(document, source, content, attributes)
        document.insert_after(source if cut is None else cut, document.space_before(source) + target)
        return
    for name, value in attributes.items():
        document.set_attribute(there, name, value)
    document.set_content(there, content)


def _joined(document: XmlDocument, here: Any, there: Any, new: Mapping[Any, str], kept: Mapping[Any, str]) -> str:
    """The content of a segmented <target>: as it was if all segments had a place there, else like <seg-source>."""
    places = {} if there is None else {mark.get("mid"): mark for mark in exchange.segment_marks(there)}
    wanted = [part.get("mid") for part in exchange.segment_marks(here)]
    if len(set(wanted)) == len(wanted) and places.keys() >= set(wanted):
        return document.inner(there, {places[part.get("mid")]: content for part, content in new.items()})
    return document.inner(here, {**kept, **new})


def _target(document: XmlDocument, source: Any, content: str, attributes: Mapping[str, str]) -> str:
    name = document.span(source).name.replace("source", "target")
    tag = f"<{name}>"
    if source.get(exchange.XML_SPACE):
        tag = with_attribute(tag, "xml:space", source.get(exchange.XML_SPACE))
    for attribute, value in attributes.items():
        tag = with_attribute(tag, attribute, value)
    return f"{tag}{content}</{name}>"
