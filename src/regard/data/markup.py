"""Placeholders and tags kept through translation: taken out before it, put back by word alignment after it.

The translator never sees a mark, so none depends on a model copying strange tokens. Each mark goes back once, beside
the target word aligned with its source neighbour; a pair of tags wraps the target words aligned with what it wrapped.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from regard.errors import DataError

OBJECT = "\ufffc"  # stands for a mark while a segment is taken apart
PLACEHOLDER = re.compile(
    rf"""
      (?P<tag> </?[A-Za-z][^<>]*> )
    | (?:https?|ftp)://[^\s<>"{OBJECT}]*[^\s<>".,;:!?)'\]{OBJECT}]    # URL, less the punctuation that follows it
    | \$?\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}                    # {{name}} {{0}} ${{VAR}}, ICU's {{n, plural, one {{..}}}}
    | %\([^()\s]*\)[#0+-]*\d*(?:\.\d+)?[a-zA-Z]          # %(name)s
    | %\{{[^{{}}\s]*\}} | %%
    | (?<!\d)%(?:\d+\$)?[#0+-]*\d*(?:\.\d+)?(?:hh?|ll?|[zjt])?[diouxXeEfFgGcrsa@]  # %s %1$s %5.2f
    | &(?:\#\d+|\#x[0-9A-Fa-f]+|[A-Za-z]\w*);            # &amp; &#160;
    | \$[A-Za-z_]\w* | \\[nrt"'] | {OBJECT}
    """,
    re.VERBOSE,
)
VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())
ENCLOSING = {"(": ")", "[": "]", '"': '"', "'": "'", "«": "»", "“": "”", "„": "“", "‘": "’", "`": "`"}
CLOSING = frozenset(",.;:!?…)]}»”’")
CODE_CHARACTER = re.compile(r"[\w/@:.+=\\-]")
Links = Sequence[tuple[int, int]]


class Translated(NamedTuple):
    """A translation and the links between the whitespace words of source and translation, counted from 0."""

    text: str
    links: Links = ()


Translate = Callable[[list[str]], Sequence[str | Translated]]


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """Something to keep: a placeholder, or one end of a pair of tags, whose two ends share a key.

    A firm pair is an XML element: nothing may close across it."""

    content: Any
    role: Literal["single", "open", "close"] = "single"
    key: object = None
    firm: bool = False


Piece = str | Mark


@dataclass(slots=True)
class _Place:
    """A mark's place in the source: how many units stand before it, and whether white space is beside it."""

    mark: Mark
    unit: int
    space_before: bool
    space_after: bool = False
    order: int = 0


@dataclass(slots=True)
class _Node:
    """A placeholder, or a pair of tags with what it holds; `start`, `end` are its source units."""

    opening: _Place | None = None
    closing: _Place | None = None
    start: int = 0
    end: int = 0
    children: list[_Node] = field(default_factory=list)


# Taking a segment apart


def parse(text: str) -> list[Piece]:
    """Split a string into its text and its placeholders and tags."""
    pieces: list[Piece] = []
    end = 0
    for start, stop, tag in _spans(text):
        pieces += [text[end:start], Mark(text[start:stop]) if not tag else _tag(text[start:stop])]
        end = stop
    return [piece for piece in [*pieces, text[end:]] if piece != ""]


def _spans(text: str) -> list[tuple[int, int, bool]]:
    spans: list[tuple[int, int, bool]] = []
    for match in PLACEHOLDER.finditer(text):
        before = spans[-1][1] if spans else 0
        start, stop = match.span()
        if start < before:  # swallowed by the widened span before
            continue
        if match["tag"]:
            spans.append((start, stop, True))
            continue
        start, stop = _widen(text, before, start, stop)
        if spans and start == before and not spans[-1][2] and text[spans[-1][1] - 1] in "/:@=-+.":
            start = spans.pop()[0]
        spans.append((start, stop, False))
    return spans


def _widen(text: str, lowest: int, start: int, stop: int) -> tuple[int, int]:
    """Take in what belongs to a placeholder: the brackets or quotes around it, or the code word it stands within."""
    around = text[start - 1 : start] if start > lowest else "", text[stop : stop + 1]
    if around[0] and ENCLOSING.get(around[0]) == around[1]:
        return start - 1, stop + 1
    if around[0] and around[1] and all(map(CODE_CHARACTER.match, around)):
        ahead = stop
        while ahead < len(text) and CODE_CHARACTER.match(text[ahead]):
            ahead += 1
        while ahead > stop and not text[ahead - 1].isalnum():
            ahead -= 1
        if ahead > stop:
            while start > lowest and CODE_CHARACTER.match(text[start - 1]):
                start -= 1
            return start, ahead
    return start, stop


def _tag(raw: str) -> Mark:
    match = re.match(r"</?([A-Za-z][\w:-]*)", raw)
    name = match[1].lower() if match else ""
    if name in VOID or raw.endswith("/>"):
        return Mark(raw)
    return Mark(raw, "close" if raw.startswith("</") else "open", name)
