"""Edit XML in place: everything that is not changed keeps its spelling, including quotes, spaces and line ends.

lxml parses the document. The positions of its elements come from the tags in the text, which are in the order in which
lxml lists the elements.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from lxml import etree

from regard.data.formats.exchange import name_of, refuse_entities
from regard.documents.document_job import edited
from regard.documents.markup import Mark, Piece, parse
from regard.errors import DataError

TOKEN = re.compile(
    r"""
      <!--.*?--> | <!\[CDATA\[.*?\]\]> | <\?.*?\?>
    | <!DOCTYPE (?: [^\[\]<>"'] | "[^"]*" | '[^']*'
                | \[ (?: [^\]"'<] | "[^"]*" | '[^']*' | <!--.*?--> | <(?!!--) )* \] )* >
    | < (?P<close>/)? (?P<name>[^\s/>!?]+) (?: [^>"'/] | "[^"]*" | '[^']*' | /(?!>) )*+ (?P<empty>/)? >
    """,
    re.VERBOSE | re.DOTALL,
)


def declared_encoding(head: bytes) -> str | None:
    """The encoding of an XML declaration; UTF-8 without one."""
    found = re.match(rb"""<\?xml[^>]*?\sencoding\s*=\s*["']([\w.:-]+)["']""", head)
    return found[1].decode() if found else "utf-8"


class Span(NamedTuple):
    """The position of an element: its start tag from `start` to `inside`, its end tag from `outside` to `end`."""

    start: int
    inside: int
    outside: int
    end: int
    name: str  # with its namespace prefix

    @property
    def is_empty(self) -> bool:
        """Whether it is written as one tag: <x/>."""
        return self.outside == self.end


class XmlDocument:
    """A document, the positions of its elements, and the pending changes."""

    def __init__(self, text: str, path: Path) -> None:
        self.text = text
        parser = etree.XMLParser(encoding="utf-8", resolve_entities=False, no_network=True)
        try:
            self.root = etree.fromstring(text.encode(), parser)
        except etree.XMLSyntaxError as error:
            raise DataError(f"{path}: not well-formed XML ({error})") from None
        refuse_entities(self.root, path)
        self.line_end = "\r\n" if "\r\n" in text else "\n"
        elements = list(self.root.iter(etree.Element))
        self._spans: dict[Any, Span] = dict(zip(elements, _spans(text), strict=True))
        self._tags: dict[Any, str] = {}
        self._contents: dict[Any, str] = {}
        self._added: dict[int, str] = {}

    def span(self, element: Any) -> Span:
        return self._spans[element]

    def outer(self, element: Any, changes: Mapping[Any, str] | None = None) -> str:
        """The text of an element with its tags, with replaced contents for some of its descendants."""
        opening, closing = self.tags(element)
        return f"{opening}{self.inner(element, changes)}{closing}"

    def inner(self, element: Any, changes: Mapping[Any, str] | None = None) -> str:
        """The text inside an element, with replaced contents for some of its descendants; of nested ones, for the
        outermost."""
        span = self._spans[element]
        parts, end = [], span.inside
        for inside, content in sorted((self._spans[each], content) for each, content in (changes or {}).items()):
            if inside.start < end:
                continue
            parts += [self.text[end : inside.start], opened(self.text[inside.start : inside.inside]), content]
            parts.append(self.text[inside.outside : inside.end] or f"</{inside.name}>")
            end = inside.end
        return "".join([*parts, self.text[end : span.outside]])

    def tags(self, element: Any) -> tuple[str, str]:
        """The start and end tag of an element."""
        span = self._spans[element]
        return self.text[span.start : span.inside], self.text[span.outside : span.end]

    def space_before(self, element: Any) -> str:
        """The white space before an element."""
        start = self._spans[element].start
        return self.text[self._space_begins(start) : start]

    def space_at_end(self, element: Any) -> str:
        """The white space before the end tag of an element."""
        outside = self._spans[element].outside
        return self.text[self._space_begins(outside) : outside]

    def _space_begins(self, end: int) -> int:
        while end and self.text[end - 1] in " \t\r\n":
            end -= 1
        return end

    def escape(self, text: str) -> str:
        """Text escaped for use between tags."""
        return escape(text, quote=False).replace("\r", "&#13;").replace("\n", self.line_end)

    # Changes

    def set_attribute(self, element: Any, name: str, value: str) -> None:
        self._tags[element] = with_attribute(self._tags.get(element, self.tags(element)[0]), name, value)

    def set_content(self, element: Any, content: str) -> None:
        """Replace the text between the tags."""
        self._contents[element] = content

    def insert_after(self, element: Any, text: str) -> None:
        end = self._spans[element].end
        self._added[end] = self._added.get(end, "") + text

    def result(self) -> str:
        """The text with all changes applied."""
        edits = [(end, end, text) for end, text in self._added.items()]
        for element in {**self._tags, **self._contents}:
            span, tag = self._spans[element], self._tags.get(element, self.tags(element)[0])
            if element not in self._contents:
                edits.append((span.start, span.inside, tag))
            elif span.is_empty:
                edits.append((span.start, span.end, f"{opened(tag)}{self._contents[element]}</{span.name}>"))
            else:
                edits += [(span.start, span.inside, tag), (span.inside, span.outside, self._contents[element])]
        return edited(self.text, edits)


def inline_pieces(
    document: XmlDocument,
    element: Any,
    text: Callable[[str], Iterable[Piece]],
    is_wrapper: Callable[[Any], bool],
    single: Callable[[Any], Mark],
    light: str = "",
) -> Iterator[Piece]:
    """The text and inline elements of a segment, in document order.

    A wrapper is a pair of marks around its own pieces, any other element a `single` mark. Elements of the name `light`
    only format their words."""
    yield from text(element.text or "")
    for inner in element:
        if name_of(inner) and not document.span(inner).is_empty and is_wrapper(inner):
            opening, closing = document.tags(inner)
            is_light = name_of(inner) == light
            yield Mark(opening, "open", inner, firm=True, light=is_light)
            yield from inline_pieces(document, inner, text, is_wrapper, single, light)
            yield Mark(closing, "close", inner, firm=True, light=is_light)
        elif name_of(inner):  # not a comment
            yield single(inner)
        yield from text(inner.tail or "")


def text_pieces(document: XmlDocument, text: str) -> Iterator[Piece]:
    """Text and its placeholders, which are escaped as XML."""
    for piece in parse(text):
        yield piece if isinstance(piece, str) else replace(piece, content=document.escape(piece.content))


def opened(tag: str) -> str:
    """The start tag for an empty-element tag: <x> for <x/>."""
    return f"{tag[:-2].rstrip()}>" if tag.endswith("/>") else tag


def with_attribute(tag: str, name: str, value: str) -> str:
    """A tag with an attribute set."""
    written = f'{name}="{escape(value)}"'
    old = re.search(rf"""(?<=\s){re.escape(name)}\s*=\s*(?:"[^"]*"|'[^']*')""", tag)
    if old:
        return tag[: old.start()] + written + tag[old.end() :]
    end = re.search(r"\s*/?>\Z", tag)
    assert end is not None
    return f"{tag[: end.start()]} {written}{end[0]}"


def _spans(text: str) -> list[Span]:
    """The positions of all elements in the order of their start tags, in well-formed text."""
    spans: list[Span] = []
    opened: list[int] = []
    for match in TOKEN.finditer(text):
        if match["close"]:
            number = opened.pop()
            spans[number] = spans[number]._replace(outside=match.start(), end=match.end())
        elif match["name"]:
            if not match["empty"]:
                opened.append(len(spans))
            spans.append(Span(match.start(), match.end(), match.end(), match.end(), match["name"]))
    return spans
