"""The inline elements of TMX and XLIFF segments as marks, and back."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from lxml import etree

from regard.data.exchange import name_of
from regard.data.markup import Mark, Piece, parse

# Inline elements that come in two halves, by what tells which halves belong together
HALVES = {
    "bpt": ("open", "i", "rid"), "ept": ("close", "i", "rid"),
    "bx": ("open", "rid", "id"), "ex": ("close", "rid", "id"),
    "sc": ("open", "id"), "ec": ("close", "startRef"),
}  # fmt: skip
WRAPPERS = frozenset({"g", "pc", "mrk", "hi", "sub"})


def inline_pieces(element: Any) -> Iterator[Piece]:
    """The text and inline elements of a segment, outermost text first."""
    yield from parse(element.text or "")
    for inner in element:
        if name_of(inner) in WRAPPERS:
            yield Mark(inner, "open", inner, firm=True)
            yield from inline_pieces(inner)
            yield Mark(inner, "close", inner, firm=True)
        elif name_of(inner) in HALVES:
            role, *names = HALVES[name_of(inner)]
            key = next((inner.get(name) for name in names if inner.get(name) is not None), None)
            yield Mark(inner, "open" if role == "open" else "close", ("half", key))
        elif name_of(inner):
            yield Mark(inner)
        yield from parse(inner.tail or "")


def rebuild(element: Any, pieces: Sequence[Piece]) -> None:
    """Make an element's content anew from text, placeholders and inline elements."""
    for inner in list(element):
        element.remove(inner)
    element.text = None
    for piece in pieces:
        if isinstance(piece, str) or isinstance(piece.content, str):
            _append_text(element, piece if isinstance(piece, str) else piece.content)
        elif not piece.firm:
            element.append(_bare(piece.content))
        elif piece.role == "open":
            element = etree.SubElement(element, piece.content.tag, dict(piece.content.attrib), piece.content.nsmap)
        else:
            element = element.getparent()


def _append_text(element: Any, text: str) -> None:
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text


def _bare(element: Any) -> Any:
    twin = copy.copy(element)
    twin.tail = None
    return twin
