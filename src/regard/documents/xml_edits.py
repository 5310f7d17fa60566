"""XML changed in place: what is not changed stays as it was written, to the last quote, space and line end.

lxml reads the document and finds what to change; where an element stands in the text is told by the tags, which come in
the order in which lxml lists the elements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from lxml import etree

from regard.data.formats.exchange import refuse_entities
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
    """The encoding that an XML declaration states; without one it is UTF-8."""
    found = re.match(rb"""<\?xml[^>]*?\sencoding\s*=\s*["']([\w.:-]+)["']""", head)
    return found[1].decode() if found else "utf-8"


class Span(NamedTuple):
    """Where an element stands: its first tag from `start` to `inside`, its last one from `outside` to `end`."""

    start: int
    inside: int
    outside: int
    end: int
    name: str  # as written, with its prefix

    @property
    def is_empty(self) -> bool:
        """Whether it is written as one tag: <x/>."""
        return self.outside == self.end


class XmlDocument:
    """A document, the places of its elements, and the changes to make."""

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

    def outer(self, element: Any) -> str:
        """An element as it is written."""
        span = self._spans[element]
        return self.text[span.start : span.end]

    def inner(self, element: Any, changes: Mapping[Any, str] | None = None) -> str:
        """The content of an element as it is written, with other contents for some of the elements within."""
        span = self._spans[element]
        parts, end = [], span.inside
        for inside, content in sorted((self._spans[each], content) for each, content in (changes or {}).items()):
            parts += [self.text[end : inside.start], opened(self.text[inside.start : inside.inside]), content]
            parts.append(self.text[inside.outside : inside.end] or f"</{inside.name}>")
            end = inside.end
        return "".join([*parts, self.text[end : span.outside]])

    def tags(self, element: Any) -> tuple[str, str]:
        """The first and the last tag of an element as they are written."""
        span = self._spans[element]
        return self.text[span.start : span.inside], self.text[span.outside : span.end]

    def space_before(self, element: Any) -> str:
        """The white space before an element, which a new one beside it gets too."""
        start = self._spans[element].start
        return self.text[self._space_begins(start) : start]

    def space_at_end(self, element: Any) -> str:
        """The white space before the last tag of an element."""
        outside = self._spans[element].outside
        return self.text[self._space_begins(outside) : outside]

    def _space_begins(self, end: int) -> int:
        while end and self.text[end - 1] in " \t\r\n":
            end -= 1
        return end

    def escape(self, text: str) -> str:
        """Text as it is written between tags."""
        return escape(text, quote=False).replace("\r", "&#13;").replace("\n", self.line_end)

    # Changes

    def set_attribute(self, element: Any, name: str, value: str) -> None:
        self._tags[element] = with_attribute(self._tags.get(element, self.tags(element)[0]), name, value)

    def set_content(self, element: Any, content: str) -> None:
        """Other content between the tags."""
        self._contents[element] = content

    def insert_after(self, element: Any, text: str) -> None:
        end = self._spans[element].end
        self._added[end] = self._added.get(end, "") + text

    def result(self) -> str:
        """The text with all changes made."""
        edits = [(end, end, text) for end, text in self._added.items()]
        for element in {**self._tags, **self._contents}:
            span, tag = self._spans[element], self._tags.get(element, self.tags(element)[0])
            if element not in self._contents:
                edits.append((span.start, span.inside, tag))
            elif span.is_empty:
                edits.append((span.start, span.end, f"{opened(tag)}{self._contents[element]}</{span.name}>"))
            else:
                edits += [(span.start, span.inside, tag), (span.inside, span.outside, self._contents[element])]
        parts, done = [], 0
        for start, end, text in sorted(edits):
            parts += [self.text[done:start], text]
            done = end
        return "".join([*parts, self.text[done:]])


def opened(tag: str) -> str:
    """A tag that opens an element, from one that may be the whole of it: <x> from <x/>."""
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
    """The places of all elements in the order of their first tags; lxml has found the text well-formed."""
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
