"""Placeholders and tags kept through translation: taken out before it, put back by word alignment after it.

The translator never sees a mark, so none depends on a model copying strange tokens. `parse` splits a string into text
and marks; `translate_marked` translates the text alone and lets `reinsertion.py` put every mark back, once.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from regard.documents.reinsertion import Links, Slot, reinsert
from regard.errors import DataError

OBJECT = "\ufffc"  # stands for a mark while a segment is taken apart
# Symbols that are not punctuation, and what may follow them in an emoji; letters and numbers in circles
SYMBOLS = (
    "$¢-©¬®-±´¶¸×÷\u2020-\u2023\u2030\u20a0-\u20cf\u2100\u2101\u2103-\u2109\u2114\u2116-\u2118\u211e-\u2123"
    "\u2190-\u2bff\u3004\u3012\u3013\u3020\u3036\uffe0-\uffe6\U0001f000-\U0001fbff"
)
MODIFIERS = "\u200d\u20e3\ufe0e\ufe0f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f"
SIGNS = r"-+=<>|~^*\#/\\@"
PLACEHOLDER = re.compile(
    rf"""
      (?P<tag> </?[A-Za-z][^<>]*> )
    | (?:(?:https?|ftp|file)://|www\.(?=\w)|mailto:)[^\s<>"{OBJECT}]*[^\s<>".,;:!?)'\]{OBJECT}]   # a URL, less the
                                                                                # punctuation that follows it
    | (?<![\w/.~])(?:~|\.\.?)?(?:/[\w.+-]*[\w+-]){{2,}}      # a path of Unix
    | (?<![\w.+-])[\w.+-]+@\w[\w-]*(?:\.\w[\w-]*)+        # an e-mail address
    | [$\#@]?\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}                 # {{name}}, {{0}}, ${{VAR}}, ICU's {{n, plural, ..}}
    | %\([^()\s]*\)[\#0+-]*\d*(?:\.\d+)?[a-zA-Z]      # %(name)s
    | %\{{[^{{}}\s]*\}} | %% | %[A-Z_][A-Z0-9_]+%           # %{{name}}, %PATH%
    | (?<!\d)%(?:\d+\$)?[\#0+-]*\d*(?:\.\d+)?(?:hh?|ll?|[zjt])?[diouxXeEfFgGcrsa@]   # %s, %1$s, %5.2f
    | (?<![\w%])%(?:L?\d+|n)(?![\w%])                    # Qt's %1, %L1 and %n
    | &(?:\#\d+|\#x[0-9A-Fa-f]+|[A-Za-z]\w*); | &&      # &amp;, &#160;, an ampersand that is no mnemonic
    | \$[A-Za-z_]\w* | \\[nrt"'] | {OBJECT}
    | (?P<symbol> (?:[{SYMBOLS}][{MODIFIERS}]*)+ | [0-9\#*]\ufe0f?\u20e3
      | (?<![^\s("'\[])(?!-+(?![{SIGNS}]))[{SIGNS}]+(?![^\s)"'\],.:;!?]) )   # + and => only where they stand alone
    """,
    re.VERBOSE,
)
# The letter to press for a menu entry: &File, E&xit (Windows, Qt), _File (GTK), ~File (LibreOffice)
MNEMONIC = re.compile(r"(?<![\w&])[&_~](?=[^\W\d_])|(?<![\w&])[&_](?=\d)|(?<=[^\W\d_])[&_](?=[^\W\d_])")
LABEL = 6, 200  # words and characters at most that a text with mnemonics has
MNEMONICS = {0x13000: "&", 0x13001: "_", 0x13002: "~"}  # by what stands for each in a translation: a letter, so that no
# mark comes between it and its word
VOID = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"})
ENCLOSING = {"(": ")", "[": "]", '"': '"', "'": "'", "«": "»", "“": "”", "„": "“", "‘": "’", "`": "`"}
CODE = re.compile(r"[\w/@:.+=\\-]*")
CLOSING = tuple(",.;:!?…)]}»”’")
# "%s: not found": what leads to the sentence is not part of it
LEADER = re.compile(rf"(?:{OBJECT}\s*)+[:;,.!?|>–—-]+\s+")
# "Name: %s.": the full stop ends the placeholder, not the name
TRAILER = re.compile(rf"[:;,–—-]\s*(?:{OBJECT}\s*)+([.!?…]+)\Z")


class Translated(NamedTuple):
    """A translation and the links between the whitespace words of source and translation, counted from 0."""

    text: str
    links: Links = ()


Translate = Callable[[list[str]], Sequence[str | Translated]]


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """Something to keep: a placeholder, or one end of a pair of tags, whose two ends share a key.

    A firm pair is an XML element: no other pair may close across its ends. A light pair only shapes the words between
    its ends, and goes where all of them do."""

    content: Any
    role: Literal["single", "open", "close"] = "single"
    key: object = None
    firm: bool = False
    light: bool = False


Piece = str | Mark


# Strings to pieces


def parse(text: str) -> list[Piece]:
    """Split a string into its text and its placeholders, symbols and tags."""
    pieces: list[Piece] = []
    end = 0
    for start, stop, kind in _spans(text):
        pieces += [text[end:start], _tag(text[start:stop]) if kind == "tag" else Mark(text[start:stop])]
        end = stop
    return [piece for piece in [*pieces, text[end:]] if piece != ""]


def _spans(text: str) -> list[tuple[int, int, str | None]]:
    """Where marks stand and of which kind each is; placeholders joined by code (`%s/%s`) are one mark."""
    spans: list[tuple[int, int, str | None]] = []
    for match in PLACEHOLDER.finditer(text):
        free = spans[-1][1] if spans else 0
        start, stop = match.span()
        if start < free:  # the mark before has taken it in
            continue
        kind = match.lastgroup
        beside = text[max(free, start - 1) : start] + text[stop : stop + 1]
        if kind is None or (kind == "symbol" and any(map(str.isdigit, beside))):  # "20°C" is one, "go→on" is not
            start, stop = _widen(text, free, start, stop)
        before = spans[-1][2] if spans else "tag"
        if kind != "tag" and before != "tag" and _is_joint(text, free, start, kind, before):
            start, kind = spans.pop()[0], None if kind is None or before is None else "symbol"
        spans.append((start, stop, kind))
    return spans


def _is_joint(text: str, free: int, start: int, kind: str | None, before: str | None) -> bool:
    """Whether what stands between two marks is code, so that all is one mark; symbols need to be neighbours."""
    return free == start if kind or before else bool(CODE.fullmatch(text, free, start))


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
    mnemonics: list[_Mnemonic]

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
    trailer = TRAILER.search(body)
    end = trailer[1] if trailer else ""
    text, slots = _without_marks(body.removesuffix(end), marks[led:])
    text, mnemonics = _without_mnemonics(text, slots)
    tail = end + joined[len(joined.rstrip()) :]
    return _Parts(pieces, list(_with_marks(space, marks[:led])), text, slots, marks[led:], tail, mnemonics)


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
    target = _with_mnemonics(" ".join(translated.text.split()), parts, translated.links)
    body = _without_empty(reinsert(parts.text, parts.slots, target, translated.links), parts)
    pieces = [piece.translate(MNEMONICS) if isinstance(piece, str) else parts.marks[piece] for piece in body]
    return [piece for piece in [*parts.lead, *pieces, parts.tail] if piece != ""]


def _without_empty(body: Sequence[str | int], parts: _Parts) -> list[str | int]:
    """Leave out light pairs that have lost all that was between them."""
    kept: list[str | int] = []
    for item in body:
        if isinstance(item, int) and kept and isinstance(kept[-1], int):
            opening, closing = parts.marks[kept[-1]], parts.marks[item]
            wrapped = parts.slots[kept[-1]].wraps and opening.role == "open" and closing.role == "close"
            if wrapped and closing.light and opening.key == closing.key:
                kept.pop()
                continue
        kept.append(item)
    return kept


def letters_of(pieces: Sequence[Piece]) -> str:
    """The text of pieces without its white space."""
    return "".join("".join(piece for piece in pieces if isinstance(piece, str)).split())


# Mnemonics: taken out before translation, put back on a letter of the translation


class _Mnemonic(NamedTuple):
    """A mnemonic such as the & of E&xit: with its letter, the word it is in and its place there."""

    sign: str
    letter: str
    word: int
    offset: int


def _without_mnemonics(text: str, slots: Sequence[Slot]) -> tuple[str, list[_Mnemonic]]:
    """A text without its mnemonics, and these; the places of marks move with it. A long text has none."""
    if text.count(" ") >= LABEL[0] or len(text) > LABEL[1]:
        return text, []
    places = [match.start() for match in MNEMONIC.finditer(text) if _is_mnemonic(text, match.start())]
    found = []
    for before, place in enumerate(places):
        start = text.rfind(" ", 0, place) + 1
        offset = place - start - sum(start <= other for other in places[:before])
        found.append(_Mnemonic(text[place], text[place + 1], text.count(" ", 0, place), offset))
    for slot in slots:
        slot.offset -= bisect_left(places, slot.offset)
    return "".join(letter for place, letter in enumerate(text) if place not in places), found


def _is_mnemonic(text: str, place: int) -> bool:
    """E&xit and C_ut, but neither AT&T nor file_name."""
    sign, letter = text[place], text[place + 1]
    if _is_ideograph(letter):
        return False
    if place == 0 or not text[place - 1].isalnum():
        return sign == "&" or text.count(sign) == 1
    word = text[text.rfind(" ", 0, place) + 1 : place]
    return text.count(sign) == 1 and word[0].isupper() and letter.islower()


def _with_mnemonics(target: str, parts: _Parts, links: Links) -> str:
    """Put a stand-in for each mnemonic before its letter: at best in the word that translates its own, and first there.

    Without its letter it goes before another; where no word is written in letters that keyboards have, it follows in
    brackets, as in 文件(&F)."""
    words = target.split(" ") if target else []
    old = parts.text.split(" ")
    for sign, letter, word, offset in parts.mnemonics:
        aligned = {j for i, j in links if i == word} or {word * len(words) // len(old)}
        places = [
            (
                each.lower() != letter.lower(),
                number not in aligned,
                at != (offset if candidate == old[word] else 0),
                number,
                at,
            )
            for number, candidate in enumerate(words)
            for at, each in enumerate(candidate)
            if each.isalnum() and not _is_ideograph(each) and ord(each) not in MNEMONICS
            and ord(candidate[at - 1] if at else " ") not in MNEMONICS
        ]  # fmt: skip
        stand_in = chr(next(code for code, mark in MNEMONICS.items() if mark == sign))
        if places:
            *_, number, at = min(places)
            words[number] = words[number][:at] + stand_in + words[number][at:]
        else:
            words[-1:] = [f"{words[-1] if words else ''}({stand_in}{letter})"]
    return " ".join(words)


def _is_ideograph(letter: str) -> bool:
    return unicodedata.east_asian_width(letter) in "WF"
