"""Placeholders and tags kept through translation: taken out before it, put back by word alignment after it.

The translator never sees a mark, so none depends on a model copying strange tokens. `parse` splits a string into text
and marks; `translate_marked` translates the text alone and lets `regard.data.reinsertion` put every mark back, once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from regard.data.reinsertion import Links, Slot, reinsert
from regard.errors import DataError

OBJECT = "\ufffc"  # stands for a mark while a segment is taken apart
PLACEHOLDER = re.compile(
    rf"""
      (?P<tag> </?[A-Za-z][^<>]*> )
    | (?:https?|ftp)://[^\s<>"{OBJECT}]*[^\s<>".,;:!?)'\]{OBJECT}]   # a URL, less the punctuation that follows it
    | \$?\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}                 # {{name}}, {{0}}, ${{VAR}}, ICU's {{n, plural, one {{..}}}}
    | %\([^()\s]*\)[\#0+-]*\d*(?:\.\d+)?[a-zA-Z]      # %(name)s
    | %\{{[^{{}}\s]*\}} | %%                              # %{{name}}
    | (?<!\d)%(?:\d+\$)?[\#0+-]*\d*(?:\.\d+)?(?:hh?|ll?|[zjt])?[diouxXeEfFgGcrsa@]   # %s, %1$s, %5.2f
    | &(?:\#\d+|\#x[0-9A-Fa-f]+|[A-Za-z]\w*);         # &amp;, &#160;
    | \$[A-Za-z_]\w* | \\[nrt"'] | {OBJECT}
    """,
    re.VERBOSE,
)
VOID = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"})
ENCLOSING = {"(": ")", "[": "]", '"': '"', "'": "'", "«": "»", "“": "”", "„": "“", "‘": "’", "`": "`"}
CODE = re.compile(r"[\w/@:.+=\\-]*")
CLOSING = tuple(",.;:!?…)]}»”’")
# "%s: not found": what leads to the sentence is not part of it
LEADER = re.compile(rf"(?:{OBJECT}\s*)+[:;,.!?|>–—-]+\s+")


class Translated(NamedTuple):
    """A translation and the links between the whitespace words of source and translation, counted from 0."""

    text: str
    links: Links = ()


Translate = Callable[[list[str]], Sequence[str | Translated]]


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """Something to keep: a placeholder, or one end of a pair of tags, whose two ends share a key.

    A firm pair is an XML element: no other pair may close across its ends."""

    content: Any
    role: Literal["single", "open", "close"] = "single"
    key: object = None
    firm: bool = False


Piece = str | Mark


# Strings to pieces


def parse(text: str) -> list[Piece]:
    """Split a string into its text and its placeholders and tags."""
    pieces: list[Piece] = []
    end = 0
    for start, stop, tag in _spans(text):
        pieces += [text[end:start], _tag(text[start:stop]) if tag else Mark(text[start:stop])]
        end = stop
    return [piece for piece in [*pieces, text[end:]] if piece != ""]


def _spans(text: str) -> list[tuple[int, int, bool]]:
    """Where marks stand and whether each is a tag; placeholders joined by code (`%s/%s`) are one mark."""
    spans: list[tuple[int, int, bool]] = []
    for match in PLACEHOLDER.finditer(text):
        free = spans[-1][1] if spans else 0
        start, stop = match.span()
        if start < free:  # the mark before has taken it in
            continue
        if not match["tag"]:
            start, stop = _widen(text, free, start, stop)
            if spans and not spans[-1][2] and CODE.fullmatch(text, free, start):
                start = spans.pop()[0]
        spans.append((start, stop, bool(match["tag"])))
    return spans


def _widen(text: str, free: int, start: int, stop: int) -> tuple[int, int]:
    """Take in what belongs to a placeholder: the brackets or quotes around it, or the code word it stands within."""
    before, after = text[max(free, start - 1) : start], text[stop : stop + 1]
    if before and ENCLOSING.get(before) == after:
        return start - 1, stop + 1
    if not (before and after and CODE.fullmatch(before + after)):
        return start, stop
    ahead = CODE.match(text, stop)
    tail = ahead[0].rstrip("/@:.+=\\-") if ahead else ""
    if not tail:
        return start, stop
    while start > free and CODE.fullmatch(text[start - 1]):
        start -= 1
    return start, stop + len(tail)


def _tag(raw: str) -> Mark:
    name = re.sub(r"^</?([\w:-]+).*", r"\1", raw, flags=re.DOTALL).lower()
    if name in VOID or raw.endswith("/>"):
        return Mark(raw)
    return Mark(raw, "close" if raw.startswith("</") else "open", name)


# Translation


def translate_texts(texts: Sequence[str], translate: Translate) -> list[str]:
    """Translate strings, each line of each by itself, with white space at the ends, placeholders and tags kept."""
    split = [re.split(r"(\r?\n)", text) for text in texts]
    lines = [line for parts in split for line in parts[::2]]
    done = iter(translate_marked([parse(line) for line in lines], translate))
    for parts in split:
        parts[::2] = [
            "".join(piece if isinstance(piece, str) else piece.content for piece in next(done)) for _ in parts[::2]
        ]
    return ["".join(parts) for parts in split]


def translate_marked(segments: Sequence[Sequence[Piece]], translate: Translate) -> list[list[Piece]]:
    """Translate the text of each segment and put its marks back; a segment without words is copied."""
    taken = [_take_apart(pieces) for pieces in segments]
    texts = [parts.text for parts in taken if parts.has_words]
    outputs = list(translate(texts)) if texts else []
    if len(outputs) != len(texts):
        raise DataError(f"the translator returned {len(outputs)} translations for {len(texts)} segments")
    done = iter(outputs)
    return [_put_together(parts, next(done)) if parts.has_words else list(parts.pieces) for parts in taken]


@dataclass(frozen=True, slots=True)
class _Parts:
    """A segment taken apart: leading pieces to copy, the text to translate, the marks to put back, white space."""

    pieces: Sequence[Piece]
    lead: list[Piece]
    text: str
    slots: list[Slot]
    marks: list[Mark]
    tail: str

    @property
    def has_words(self) -> bool:
        return any(map(str.isalnum, self.text))


def _take_apart(pieces: Sequence[Piece]) -> _Parts:
    marks = [piece for piece in pieces if isinstance(piece, Mark)]
    joined = "".join(piece if isinstance(piece, str) else OBJECT for piece in pieces)
    body = joined.strip()
    space = joined[: len(joined) - len(joined.lstrip())]
    leader = LEADER.match(body)
    led = leader[0].count(OBJECT) if leader else 0
    if leader and all(mark.role == "single" for mark in marks[:led]):
        space, body = space + leader[0], body[leader.end() :]
    else:
        led = 0
    text, slots = _without_marks(body, marks[led:])
    return _Parts(
        pieces, list(_with_marks(space, marks[:led])), text, slots, marks[led:], joined[len(joined.rstrip()) :]
    )


def _with_marks(text: str, marks: Sequence[Mark]) -> Iterator[Piece]:
    strings = text.split(OBJECT)
    for string, mark in zip(strings, marks, strict=False):
        yield from (string, mark)
    yield strings[-1]


def _without_marks(body: str, marks: Sequence[Mark]) -> tuple[str, list[Slot]]:
    """The text with single spaces and without marks, and the place of each mark in it."""
    if not marks:
        return " ".join(body.split()), []
    text = ""
    slots: list[Slot] = []
    for gap, word in re.findall(rf"([\s{OBJECT}]*)([^\s{OBJECT}]*)", body):
        first = len(slots)
        for place, character in enumerate(gap):
            if character == OBJECT:
                mark = marks[len(slots)]
                before = gap[place - 1].isspace() if place else not text
                after = gap[place + 1].isspace() if place + 1 < len(gap) else not word
                slots.append(Slot(len(text), before, after, len(slots), mark.role, mark.key, mark.firm))
        if text and word:
            text += _joint(text, gap, word, any(slot.role == "single" for slot in slots[first:]))
        text += word
    return text, slots


def _joint(text: str, gap: str, word: str, parted: bool) -> str:
    """What stays between two stretches of text when the marks between them are gone."""
    if gap.endswith(OBJECT) and word.startswith(CLOSING):
        return ""  # "Hello %s, you": the comma joins the word before the placeholder
    if not gap.replace(OBJECT, ""):
        return " " if parted and text[-1].isalnum() and word[0].isalnum() else ""
    return " "


def _put_together(parts: _Parts, output: str | Translated) -> list[Piece]:
    translated = Translated(output) if isinstance(output, str) else output
    body = reinsert(parts.text, parts.slots, " ".join(translated.text.split()), translated.links)
    pieces = [piece if isinstance(piece, str) else parts.marks[piece] for piece in body]
    return [piece for piece in [*parts.lead, *pieces, parts.tail] if piece != ""]
