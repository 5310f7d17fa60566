"""Paragraphs of office documents as text with marks, and back.

In OOXML a paragraph has runs, each with its own properties. Runs of the same properties are joined; the properties of
most of the text are the paragraph's own, and every other run is a pair of marks. In ODF text and elements are mixed, as
in HTML."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from regard.data.formats.exchange import name_of
from regard.documents.markup import Mark, Piece, parse
from regard.documents.xml_edits import XmlDocument

Outer = Callable[[Any], str]  # the XML of an element, with the changed paragraphs inside


class Paragraph(Protocol):
    """An element that is a segment: its pieces, and its content for translated pieces."""

    element: Any
    pieces: list[Piece]

    def render(self, pieces: Sequence[Piece], outer: Outer) -> str: ...


class Raw(NamedTuple):
    """XML that is copied: text, and elements with whatever changes inside them."""

    parts: tuple[Any, ...]

    def render(self, outer: Outer) -> str:
        return "".join(part if isinstance(part, str) else outer(part) for part in self.parts)


# What separates texts: a tab, or the end of a line within a paragraph
BREAKS = frozenset({"br", "cr", "tab", "ptab", "line-break"})


def _single(kind: str, raw: Raw) -> Mark:
    """The mark of an element that is copied. A break is a tag without a partner, which keeps its place."""
    return Mark(raw, "close", object()) if kind in BREAKS else Mark(raw)


# ODF: text and elements are mixed

ODF_WRAPPERS = frozenset({"span", "a", "meta", "ruby", "ruby-base"})


class FlowParagraph:
    """A paragraph or heading of ODF."""

    def __init__(self, document: XmlDocument, element: Any) -> None:
        self.document, self.element = document, element
        self.pieces = list(self._pieces(element))

    def _pieces(self, element: Any) -> Iterator[Piece]:
        yield from parse(element.text or "")
        for inner in element:
            kind = name_of(inner)
            if kind in ODF_WRAPPERS and not self.document.span(inner).is_empty:
                opening, closing = self.document.tags(inner)
                light = kind == "span"
                yield Mark(Raw((opening,)), "open", inner, firm=True, light=light)
                yield from self._pieces(inner)
                yield Mark(Raw((closing,)), "close", inner, firm=True, light=light)
            elif kind:
                yield _single(kind, Raw((inner,)))
            yield from parse(inner.tail or "")

    def render(self, pieces: Sequence[Piece], outer: Outer) -> str:
        contents = (piece if isinstance(piece, str) else piece.content for piece in pieces)
        return "".join(each.render(outer) if isinstance(each, Raw) else self.document.escape(each) for each in contents)


def flow_paragraph(document: XmlDocument, element: Any) -> Paragraph:
    return FlowParagraph(document, element)


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
        inside = [each for each in element if each not in (*self._first, *self._last)]
        items = list(self._items(inside))
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
                yield Item("", mark=_single(kind, Raw((element,))))

    def _wrapped(self, tags: tuple[str, str], inside: Sequence[Any], key: object) -> Iterator[Item]:
        yield Item("", mark=Mark(Raw((tags[0],)), "open", key, firm=True))
        yield from self._items(inside)
        yield Item("", mark=Mark(Raw((tags[1],)), "close", key, firm=True))

    def _control_items(self, control: Any, content: Any) -> Iterator[Item]:
        """The items of a content control, unless it is empty or holds paragraphs of its own."""
        outside, inside = self.document.span(control), self.document.span(content)
        if inside.is_empty:
            yield Item("", mark=Mark(Raw((control,))))
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
                yield Item("", mark=_single(name_of(inner), Raw((f"<{name}>{written}", inner, f"</{name}>"))))

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


def run_paragraph(document: XmlDocument, element: Any) -> Paragraph:
    return RunParagraph(document, element)


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
