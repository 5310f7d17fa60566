"""Placeholders and tags in translation: removed before it, and put back by word alignment after it.

The translator never sees a mark, so no model needs to copy unknown tokens. `parse` splits a string into text and marks;
`translate_marked` translates the text alone, and `reinsertion.py` puts every mark back exactly once.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from regard.documents.reinsertion import Links, Slot, reinsert
from regard.errors import DataError

MARK_CHAR = "\ufffc"  # OBJECT REPLACEMENT CHARACTER: replaces a mark while a segment is split
# Symbols that are not punctuation, with emoji modifiers, and enclosed letters and numbers
SYMBOLS = (
    "$¢-©¬®-±´¶¸×÷\u2020-\u2023\u2030\u20a0-\u20cf\u2100\u2101\u2103-\u2109\u2114\u2116-\u2118\u211e-\u2123"
    "\u2190-\u2bff\u3004\u3012\u3013\u3020\u3036\uffe0-\uffe6\U0001f000-\U0001fbff"
)
MODIFIERS = "\u200d\u20e3\ufe0e\ufe0f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f"
SIGNS = r"-+=<>|~^*\#/\\@"
PLACEHOLDER = re.compile(
    rf"""
      (?P<tag> </?[A-Za-z][^<>]*> )
    | (?:(?:https?|ftp|file)://|www\.(?=\w)|mailto:)[^\s<>"{MARK_CHAR}]*[^\s<>".,;:!?)'\]{MARK_CHAR}]   # a URL
    | (?<![\w/.~])(?:~|\.\.?)?(?:/[\w.+-]*[\w+-]){{2,}}      # a path of Unix
    | (?<![\w.+-])[\w.+-]+@\w[\w-]*(?:\.\w[\w-]*)+        # an e-mail address
    | [$\#@]?\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}                 # {{name}}, {{0}}, ${{VAR}}, ICU's {{n, plural, ..}}
    | %\([^()\s]*\)[\#0+-]*\d*(?:\.\d+)?[a-zA-Z]      # %(name)s
    | %\{{[^{{}}\s]*\}} | %% | %[A-Z_][A-Z0-9_]+%           # %{{name}}, %PATH%
    | %\#@\w+@ | %arg\b                                # Xcode's substitutions
    | (?<!\d)%(?:\d+\$)?[\#0+-]*\d*(?:\.\d+)?(?:hh?|ll?|[zjt])?[diouxXeEfFgGcrsa@]   # %s, %1$s, %5.2f
    | (?<![\w%])%[-_0^\#]?[A-Za-z](?![^\W_])            # strftime's %Y-%m-%d
    | (?<![\w%])%(?:L?\d+|n)(?![\w%])                    # Qt's %1, %L1 and %n
    | &(?:\#\d+|\#x[0-9A-Fa-f]+|[A-Za-z]\w*); | &&      # &amp;, &#160;, an ampersand that is no mnemonic
    | \$t\([^()]*\)                                     # i18next's reference to another message
    | (?<![\w@])@(?:\.\w+)?:(?:\([\w.-]+\)|[\w-]+(?:\.[\w-]+)*)   # that of Vue: @:key, @.lower:key, @:(key)
    | \$[A-Za-z_]\w* | \\[nrt"'] | {MARK_CHAR}
    | (?P<symbol> (?:[{SYMBOLS}][{MODIFIERS}]*)+ | [0-9\#*]\ufe0f?\u20e3
      | (?<![^\s("'\[])(?!-+(?![{SIGNS}]))[{SIGNS}]+(?![^\s)"'\],.:;!?]) )   # + and => only where they stand alone
    """,
    re.VERBOSE,
)
# The letter to press for a menu entry: &File, E&xit (Windows, Qt), _File (GTK), ~File (LibreOffice)
MNEMONIC = re.compile(r"(?<![\w&])[&_~](?=[^\W\d_])|(?<![\w&])[&_](?=\d)|(?<=[^\W\d_])[&_](?=[^\W\d_])")
MAX_LABEL = 6, 200  # the most words and characters of a text with mnemonics
# Each sign by its stand-in in a translation. Stand-ins are letters, so that no mark is put between one and its word.
MNEMONICS = {0x13000: "&", 0x13001: "_", 0x13002: "~"}
VOID = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"})
ENCLOSING = {"(": ")", "[": "]", '"': '"', "'": "'", "«": "»", "“": "”", "„": "“", "‘": "’", "`": "`"}
CODE = re.compile(r"[\w/@:.+=\\-]*")
CLOSING = tuple(",.;:!?…)]}»”’")
# "%s: not found": the placeholder and its punctuation are not part of the sentence
LEADER = re.compile(rf"(?:{MARK_CHAR}\s*)+[:;,.!?|>–—-]+\s+")
# "Name: %s.": the full stop belongs to the placeholder, not to the translated text
TRAILER = re.compile(rf"[:;,–—-]\s*(?:{MARK_CHAR}\s*)+([.!?…]+)\Z")


class LaterLinks(NamedTuple):
    """Links that are computed only where there are marks to put back: by one call for many answers."""

    answer: Any
    compute: Callable[[list[Any]], Sequence[Links]]


class Translated(NamedTuple):
    """A translation and the links between the whitespace words of source and translation, counted from 0; if it was
    estimated, also its quality from 0 to 1, and what is wrong with it in a word each; if it was said for a similar
    segment of a translation memory, the similarity of that."""

    text: str
    links: Links | LaterLinks = ()
    quality: float | None = None
    flags: Sequence[str] = ()
    similarity: float | None = None

    @property
    def is_similar(self) -> bool:
        """Whether it is the translation of another segment, which is only similar to this one."""
        return self.similarity is not None and self.similarity < 1.0


Translate = Callable[[list[str]], Sequence[str | Translated]]


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """A placeholder, or one end of a pair of tags; the two ends share a key.

    A `firm` pair is an XML element: no other pair may close across its ends. A `light` pair only formats the words
    between its ends, and is dropped if there are none in the translation."""

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
    """Start, end and kind of every mark; placeholders joined by code (`%s/%s`) are one mark."""
    spans: list[tuple[int, int, str | None]] = []
    for match in PLACEHOLDER.finditer(text):
        free = spans[-1][1] if spans else 0
        start, stop = match.span()
        if start < free:  # part of the widened mark before
            continue
        kind = match.lastgroup
        beside = text[max(free, start - 1) : start] + text[stop : stop + 1]
        if kind is None or (kind == "symbol" and any(map(str.isdigit, beside))):  # "20°C" is one mark, "go→on" is not
            start, stop = _widen(text, free, start, stop)
        before = spans[-1][2] if spans else "tag"
        if kind != "tag" and before != "tag" and _is_one_mark(text, free, start, kind, before):
            start, kind = spans.pop()[0], None if kind is None or before is None else "symbol"
        spans.append((start, stop, kind))
    return spans


def _is_one_mark(text: str, free: int, start: int, kind: str | None, before: str | None) -> bool:
    """Whether two marks are one: the text between them is code, or, of symbols, empty."""
    return free == start if kind or before else bool(CODE.fullmatch(text, free, start))


def _widen(text: str, free: int, start: int, stop: int) -> tuple[int, int]:
    """Extend a placeholder by the brackets or quotes around it, or by the code word that contains it."""
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
    """Translate strings line by line, keeping white space at the ends, placeholders and tags."""
    split = [re.split(r"(\r?\n)", text) for text in texts]
    lines = [line for parts in split for line in parts[::2]]
    done = iter(translate_marked([parse(line) for line in lines], translate))
    for parts in split:
        parts[::2] = [joined(next(done)) for _ in parts[::2]]
    return ["".join(parts) for parts in split]


def sent_texts(text: str) -> list[str]:
    """What `translate_texts` sends to the translator for a string."""
    lines = re.split(r"\r?\n", text)
    return [sent for line in lines if (sent := sent_text(parse(line)))]


def sent_text(pieces: Sequence[Piece]) -> str:
    """What `translate_marked` sends to the translator for a segment; nothing if it has no words."""
    parts = _split_segment(pieces)
    return parts.text if parts.has_words else ""


def translate_marked(segments: Sequence[Sequence[Piece]], translate: Translate) -> list[list[Piece]]:
    """Translate the text of each segment and put its marks back; a segment without words is copied."""
    split = [_split_segment(pieces) for pieces in segments]
    texts = [parts.text for parts in split if parts.has_words]
    outputs = list(translate(texts)) if texts else []
    if len(outputs) != len(texts):
        raise DataError(f"the translator returned {len(outputs)} translations for {len(texts)} segments")
    done = iter(_linked([parts for parts in split if parts.has_words], outputs))
    return [_join_segment(parts, *next(done)) if parts.has_words else list(parts.pieces) for parts in split]


def _linked(segments: Sequence[_SplitSegment], outputs: Sequence[str | Translated]) -> list[tuple[str, Links]]:
    """Each translation with its links, if its segment has marks to put back by them."""
    done, waiting = list[tuple[str, Links]](), defaultdict[Any, list[int]](list)
    for place, (parts, output) in enumerate(zip(segments, outputs, strict=True)):
        text, links = (output, ()) if isinstance(output, str) else output[:2]
        if isinstance(links, LaterLinks):
            if parts.slots or parts.mnemonics:
                waiting[links.compute].append(place)
            links = ()
        done.append((text, links))
    for compute, places in waiting.items():
        answers = [outputs[place].links.answer for place in places]  # type: ignore[union-attr]  # these have links
        for place, links in zip(places, compute(answers), strict=True):
            done[place] = done[place][0], links
    return done


@dataclass(frozen=True, slots=True)
class _SplitSegment:
    """A split segment: leading pieces to copy, the text to translate, the marks to put back, trailing text."""

    pieces: Sequence[Piece]
    lead: list[Piece]
    text: str
    slots: list[Slot]
    marks: list[Mark]
    tail: str
    mnemonics: list[_Mnemonic]

    @property
    def has_words(self) -> bool:
        """Whether there are letters: a price or a date alone, such as a cell of a table, is copied."""
        return any(map(str.isalpha, self.text))


def _split_segment(pieces: Sequence[Piece]) -> _SplitSegment:
    marks = marks_of(pieces)
    whole = "".join(piece if isinstance(piece, str) else MARK_CHAR for piece in pieces)
    body = whole.strip()
    space = whole[: len(whole) - len(whole.lstrip())]
    leader = LEADER.match(body)
    led = leader[0].count(MARK_CHAR) if leader else 0
    if leader and all(mark.role == "single" for mark in marks[:led]):
        space, body = space + leader[0], body[leader.end() :]
    else:
        led = 0
    trailer = TRAILER.search(body)
    end = trailer[1] if trailer else ""
    text, slots = _without_marks(body.removesuffix(end), marks[led:])
    text, mnemonics = _without_mnemonics(text, slots)
    tail = end + whole[len(whole.rstrip()) :]
    return _SplitSegment(pieces, list(_with_marks(space, marks[:led])), text, slots, marks[led:], tail, mnemonics)


def _with_marks(text: str, marks: Sequence[Mark]) -> Iterator[Piece]:
    strings = text.split(MARK_CHAR)
    for string, mark in zip(strings, marks, strict=False):
        yield from (string, mark)
    yield strings[-1]


def _without_marks(body: str, marks: Sequence[Mark]) -> tuple[str, list[Slot]]:
    """The text with single spaces and without marks, and the position of each mark in it."""
    if not marks:
        return " ".join(body.split()), []
    text = ""
    slots: list[Slot] = []
    for gap, word in re.findall(rf"([\s{MARK_CHAR}]*)([^\s{MARK_CHAR}]*)", body):
        first = len(slots)
        for place, character in enumerate(gap):
            if character == MARK_CHAR:
                mark = marks[len(slots)]
                before = gap[place - 1].isspace() if place else not text
                after = gap[place + 1].isspace() if place + 1 < len(gap) else not word
                slots.append(Slot(len(text), before, after, len(slots), mark.role, mark.key, mark.firm))
        if text and word:
            text += _separator(text, gap, word, any(slot.role == "single" for slot in slots[first:]))
        text += word
    return text, slots


def _separator(text: str, gap: str, word: str, parted: bool) -> str:
    """The separator of two texts after the marks between them are removed."""
    if gap.endswith(MARK_CHAR) and word.startswith(CLOSING):
        return ""  # "Hello %s, you": the comma follows the word before the placeholder
    if not gap.replace(MARK_CHAR, ""):
        return " " if parted and text[-1].isalnum() and word[0].isalnum() else ""
    return " "


def _join_segment(parts: _SplitSegment, text: str, links: Links) -> list[Piece]:
    target = _with_mnemonics(" ".join(text.split()), parts, links)
    body = _without_empty(reinsert(parts.text, parts.slots, target, links), parts)
    pieces = [piece.translate(MNEMONICS) if isinstance(piece, str) else parts.marks[piece] for piece in body]
    return [piece for piece in [*parts.lead, *pieces, parts.tail] if piece != ""]


def _without_empty(body: Sequence[str | int], parts: _SplitSegment) -> list[str | int]:
    """Remove light pairs that had text inside and have none in the translation."""
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


def joined(pieces: Sequence[Piece]) -> str:
    """Pieces as a string, if the contents of their marks are strings."""
    return "".join(piece if isinstance(piece, str) else piece.content for piece in pieces)


def marks_of(pieces: Sequence[Piece]) -> list[Mark]:
    return [piece for piece in pieces if isinstance(piece, Mark)]


def same_text(before: Sequence[Piece], after: Sequence[Piece]) -> bool:
    """Whether nothing but white space has changed."""
    return text_without_spaces(before) == text_without_spaces(after) and marks_of(before) == marks_of(after)


def text_without_spaces(pieces: Sequence[Piece]) -> str:
    """The text of pieces without white space."""
    return "".join("".join(piece for piece in pieces if isinstance(piece, str)).split())


# Mnemonics: removed before translation, and put back before a letter of the translation


class _Mnemonic(NamedTuple):
    """A mnemonic such as the & of E&xit: its sign, letter, word number and offset in the word."""

    sign: str
    letter: str
    word: int
    offset: int


def _without_mnemonics(text: str, slots: Sequence[Slot]) -> tuple[str, list[_Mnemonic]]:
    """The text without its mnemonics, and the mnemonics; the offsets of `slots` are adjusted. Long texts have none."""
    if text.count(" ") >= MAX_LABEL[0] or len(text) > MAX_LABEL[1]:
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


def _with_mnemonics(target: str, parts: _SplitSegment, links: Links) -> str:
    """Put a stand-in for each mnemonic before its letter, preferably at the start of the aligned word.

    If its letter does not occur, another letter is used. If no word has letters that keyboards have, the mnemonic
    follows in brackets, as in 文件(&F)."""
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
