"""The inline elements of TMX and XLIFF segments as marks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from regard.data.formats.exchange import name_of
from regard.documents.markup import Mark, Piece, Translate, parse, sent_text, text_without_spaces, translate_marked
from regard.documents.xml_edits import XmlDocument

# Inline elements that come as two separate halves: role, and the attributes that both halves share
HALVES = {
    "bpt": ("open", "i", "rid"), "ept": ("close", "i", "rid"),
    "bx": ("open", "rid", "id"), "ex": ("close", "rid", "id"),
    "sc": ("open", "id"), "ec": ("close", "startRef"),
}  # fmt: skip
WRAPPERS = frozenset({"g", "pc", "mrk", "hi", "sub"})
PROTECTED = frozenset({"protected", "x-protected", "x-DNT"})  # types of <mrk> whose text is not to be translated


def translate_elements(document: XmlDocument, elements: Sequence[Any], translate: Translate) -> list[str]:
    """The translated content of each element, as XML."""
    pieces = [list(inline_pieces(document, element)) for element in elements]
    done = translate_marked(pieces, translate)
    return [
        document.inner(element) if same_text(before, after) else "".join(_render(document, after))
        for element, before, after in zip(elements, pieces, done, strict=True)
    ]


def element_text(document: XmlDocument, element: Any) -> str:
    """What `translate_elements` sends to the translator for an element."""
    return sent_text(list(inline_pieces(document, element)))


def same_text(before: Sequence[Piece], after: Sequence[Piece]) -> bool:
    """Whether nothing but white space has changed."""
    return text_without_spaces(before) == text_without_spaces(after) and _marks(before) == _marks(after)


def _marks(pieces: Sequence[Piece]) -> list[Mark]:
    return [piece for piece in pieces if isinstance(piece, Mark)]


def _render(document: XmlDocument, pieces: Sequence[Piece]) -> Iterator[str]:
    for piece in pieces:
        yield document.escape(piece) if isinstance(piece, str) else piece.content


def inline_pieces(document: XmlDocument, element: Any) -> Iterator[Piece]:
    """The text and inline elements of a segment, in document order."""
    yield from _text_pieces(document, element.text)
    for inner in element:
        if _is_wrapper(document, inner):
            opening, closing = document.tags(inner)
            yield Mark(opening, "open", inner, firm=True)
            yield from inline_pieces(document, inner)
            yield Mark(closing, "close", inner, firm=True)
        elif name_of(inner) in HALVES:
            role, *names = HALVES[name_of(inner)]
            key = next((inner.get(name) for name in names if inner.get(name) is not None), None)
            yield Mark(document.outer(inner), "open" if role == "open" else "close", ("half", key))
        elif name_of(inner):
            yield Mark(document.outer(inner))
        yield from _text_pieces(document, inner.tail)


def _is_wrapper(document: XmlDocument, inner: Any) -> bool:
    if name_of(inner) not in WRAPPERS or document.span(inner).is_empty:
        return False
    return inner.get("translate") != "no" and inner.get("mtype") not in PROTECTED


def _text_pieces(document: XmlDocument, text: str | None) -> Iterator[Piece]:
    for piece in parse(text or ""):
        yield piece if isinstance(piece, str) else replace(piece, content=document.escape(piece.content))
