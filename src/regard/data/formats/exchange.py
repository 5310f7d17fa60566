"""Read the formats of translation tools: TMX and XLIFF (streamed, without entities) and PO."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import polib
from lxml import etree

from regard.data.formats.languages import find_language, same_language
from regard.data.formats.lines import Damage, Errors, decode, on_damage, open_bytes
from regard.errors import DataError

XML = "{http://www.w3.org/XML/1998/namespace}"
XML_LANG, XML_SPACE = f"{XML}lang", f"{XML}space"
# Inline elements whose content is native code, not text (TMX 1.4 section 4, XLIFF 1.2 section 2.4)
CODES = frozenset({"bpt", "ept", "ph", "it", "ut"})
XLIFF_UNITS = ("trans-unit", "unit")
UNTRANSLATED_STATES = frozenset({"new", "needs-translation", "initial"})
SETTLED_STATES = frozenset({"final", "signed-off"})
Texts = tuple[str, str]


def name_of(element: Any) -> str:
    """An element's name without its namespace; empty for comments and processing instructions."""
    return etree.QName(element).localname if isinstance(element.tag, str) else ""


def child(element: Any, name: str) -> Any:
    """The first child of that name in any namespace, or None."""
    return element.find(f"{{*}}{name}")


def text_within(element: Any) -> str:
    """The text of a segment in one line, without inline tags and the native code inside them."""
    return _one_line("".join(_texts(element)))


def _texts(element: Any) -> Iterator[str]:
    yield element.text or ""
    for inner in element:
        if name_of(inner) not in ("", *CODES):
            yield from _texts(inner)
        yield inner.tail or ""


def refuse_entities(root: Any, path: Path) -> None:
    """Raise an error for a document that declares entities, against entity bombs and access to other files."""
    declared = root.getroottree().docinfo.internalDTD
    if declared is not None and next(declared.iterentities(), None) is not None:
        raise DataError(f"{path}: declares XML entities, which are not accepted; remove them from its DOCTYPE")


def elements(path: Path, names: Iterable[str]) -> Iterator[Any]:
    """Stream the elements of these names from an XML file; each is freed after use."""
    wanted = frozenset(names)
    with open_bytes(path) as stream:
        try:
            events = etree.iterparse(stream, events=("start", "end"), resolve_entities=False, no_network=True)
            for number, (event, element) in enumerate(events):
                if number == 0:
                    refuse_entities(element, path)
                if event == "end" and name_of(element) in wanted:
                    yield element
                    element.clear()
                    while element.getprevious() is not None:
                        del element.getparent()[0]
        except etree.XMLSyntaxError as error:
            raise DataError(f"{path}: not well-formed XML ({error})") from None


def read_tmx(path: Path, source: str, target: str) -> Iterator[Texts]:
    """The pairs of a translation memory; units without both languages are skipped."""
    seen: set[str] = set()
    empty = True
    for unit in elements(path, ["tu"]):
        variants = tmx_variants(unit)
        seen |= variants.keys()
        source_element, target_element = find_language(variants, source), find_language(variants, target)
        if source_element and target_element:
            empty = False
            yield text_within(variants[source_element]), text_within(variants[target_element])
    if empty and seen:
        raise DataError(
            f"{path}: no unit has both {source!r} and {target!r}; the languages are: {', '.join(sorted(seen))}"
        )


def tmx_variants(unit: Any) -> dict[str, Any]:
    """The segments of a translation unit by language code, the first of each."""
    found: dict[str, Any] = {}
    for variant in unit.iterfind("{*}tuv"):
        language = variant.get(XML_LANG) or variant.get("lang") or ""
        segment = child(variant, "seg")
        if segment is not None:
            found.setdefault(language, segment)
    return found


def read_xliff(path: Path, source: str, target: str) -> Iterator[Texts]:
    """The translated segments of an XLIFF 1.2 or 2.x file."""
    for unit in elements(path, XLIFF_UNITS):
        check_languages(language_owner(unit), source, target, path)
        for segment in xliff_segments(unit):
            source_element, target_element = child(segment, "source"), child(segment, "target")
            if source_element is not None and target_element is not None and is_translated(segment, target_element):
                yield text_within(source_element), text_within(target_element)


def xliff_segments(unit: Any) -> list[Any]:
    """The parents of <source> and <target>: the unit itself in XLIFF 1.2, its segments in 2.x."""
    return [unit] if name_of(unit) == "trans-unit" else unit.findall("{*}segment")


def language_owner(unit: Any) -> Any:
    """The element that declares a unit's languages: <file> in XLIFF 1.2, <xliff> in 2.x."""
    return next(unit.iterancestors("{*}file" if name_of(unit) == "trans-unit" else "{*}xliff"), unit)


def language_attributes(owner: Any) -> tuple[str, str]:
    """The names of the language attributes in XLIFF 1.2 and 2.x."""
    return ("srcLang", "trgLang") if name_of(owner) == "xliff" else ("source-language", "target-language")


def check_languages(owner: Any, source: str, target: str, path: Path) -> None:
    """Raise an error if an XLIFF file declares other languages than the requested ones."""
    stated = [owner.get(attribute) for attribute in language_attributes(owner)]
    for code, wanted in zip(stated, (source, target), strict=True):
        if code and not same_language(code, wanted):
            raise DataError(f"{path}: no language {wanted!r}; the languages are: {', '.join(filter(None, stated))}")


def is_translated(segment: Any, target_element: Any) -> bool:
    """Whether a target has content, and no state that says it is untranslated."""
    return has_content(target_element) and not _states(segment, target_element) & UNTRANSLATED_STATES


def is_settled(segment: Any, target_element: Any) -> bool:
    """Whether a translation has been approved, so that it must not be replaced."""
    return has_content(target_element) and (
        segment.get("approved") == "yes" or bool(_states(segment, target_element) & SETTLED_STATES)
    )


def _states(segment: Any, target_element: Any) -> set[str]:
    return {state for state in (segment.get("state"), target_element.get("state")) if state}


def has_content(element: Any) -> bool:
    """Whether a segment has text or a placeholder; segmentation marks do not count."""
    return bool(text_within(element)) or any(name_of(inner) not in ("", "mrk") for inner in element.iterdescendants())


def is_forbidden(segment: Any) -> bool:
    """Whether translate="no" applies to a segment, by itself or inherited from an ancestor."""
    said = (each.get("translate") for each in (segment, *segment.iterancestors()))
    return next(filter(None, said), "yes") == "no"


def segments_within(unit: Any) -> list[Any]:
    """The segments of a unit of XLIFF 1.2, in its <seg-source>; empty if it is not segmented."""
    cut = child(unit, "seg-source")
    return [] if cut is None else segment_marks(cut)


def segment_marks(element: Any) -> list[Any]:
    return [mark for mark in element.iter("{*}mrk") if mark.get("mtype") == "seg"]


def read_po(path: Path, target: str, errors: Errors) -> Iterator[Texts]:
    """The finished entries of a PO file: neither fuzzy, obsolete nor untranslated; each plural form is a pair."""
    catalogue = load_po(path, errors)
    stated = catalogue.metadata.get("Language", "")
    if stated and not same_language(stated, target):
        raise DataError(f"{path}: no language {target!r}; it translates into {stated!r}")
    for entry in catalogue:
        if entry.translated():
            for text, form in po_forms(entry):
                translation = entry.msgstr if form is None else entry.msgstr_plural[form]
                yield _one_line(text), _one_line(translation)


def po_forms(entry: Any) -> Iterator[tuple[str, int | None]]:
    """The source text of each msgstr of an entry: the singular for form 0, the plural for all others."""
    if not entry.msgid_plural:
        yield entry.msgid, None
        return
    forms = sorted(entry.msgstr_plural)
    for form in forms:
        yield (entry.msgid if form == 0 and len(forms) > 1 else entry.msgid_plural), form


def _one_line(text: str) -> str:
    return " ".join(re.split(r"[ \t\r\n]+", text)).strip(" ")


def load_po(path: Path, errors: Errors) -> Any:
    """Parse a PO file in the encoding that its header declares."""
    with open_bytes(path) as stream:
        raw = stream.read()
    encoding = stated_charset(raw) or "utf-8"
    try:
        return parse_po(_decode_po(raw, encoding, path, errors), encoding, path)
    except (LookupError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as {encoding} ({error})") from None


def stated_charset(raw: bytes) -> str | None:
    """The encoding that the header of a PO file declares; None for a template's placeholder CHARSET."""
    stated = re.search(rb"charset=([\w.:-]+)", raw[:10_000])
    return stated[1].decode() if stated and stated[1] != b"CHARSET" else None


def parse_po(text: str, encoding: str, path: Path) -> Any:
    try:
        # with a line end polib never mistakes the content for a file name
        return polib.pofile(text.removeprefix("\ufeff") + "\n", encoding=encoding)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a well-formed PO file ({error})") from None


def _decode_po(raw: bytes, encoding: str, path: Path, errors: Errors) -> str:
    if encoding.lower().replace("-", "") != "utf8":
        return raw.decode(encoding)
    text, bad = decode(raw)
    if bad:
        on_damage(errors)(Damage(str(path), raw.count(b"\n", 0, bad[0]) + 1, tuple(bad)))
    return text
