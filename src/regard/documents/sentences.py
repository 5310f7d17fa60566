"""Split texts into sentences and join their translations, keeping every line break and space."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import sentencex

from regard.documents.markup import Mark, Piece, Translate, text_without_spaces, translate_marked
from regard.errors import DataError

LINE_END = re.compile("(\\A\ufeff|\r\n|\r|\n)")  # a byte order mark at the very beginning belongs to no line either
WINDOW = 2000  # characters; sentencex takes time with the square of the sentences it sees at once
# sentencex fails on white space beyond ASCII and on lone surrogates; each is replaced by one other character
STAND_INS = (re.compile(r"\s"), " "), (re.compile("[\ud800-\udfff]"), "\ufffd")


def split_sentences(text: str, language: str) -> list[str]:
    """The sentences of a text, each with its trailing white space; joined they are the text.

    Languages that sentencex does not know are split like English. A sentence longer than 2000 characters is split at a
    space."""
    plain = text
    for odd, stand_in in STAND_INS:
        plain = odd.sub(stand_in, plain)
    sentences, start = [], 0
    while start < len(text):
        for length in _lengths(plain[start : start + WINDOW], language, last=start + WINDOW >= len(text)):
            sentences.append(text[start : start + length])
            start += length
    return sentences


def _lengths(window: str, language: str, *, last: bool) -> list[int]:
    """The lengths of the sentences in a window, without the last one, which may continue after it."""
    found = [len(sentence) for sentence in sentencex.segment(language or "en", window)]
    if last:
        return found
    return found[:-1] or [window.rfind(" ") + 1 or len(window)]


# Plain text


@dataclass(frozen=True, slots=True)
class SplitText:
    """A text split into its sentences and the unchanged text before, between and after them."""

    sentences: list[str]
    gaps: list[str]

    def join(self, translations: Sequence[str]) -> str:
        """The text with each sentence replaced by its translation; line breaks in a translation become spaces.

        Where two sentences had no space between them, as in 「はい。いいえ。」 or by a typing error, one is added if
        the translation needs it.
        """
        if len(translations) != len(self.sentences):
            raise DataError(f"there are {len(translations)} translations for {len(self.sentences)} sentences")
        parts = self.gaps[:1]
        for place, sentence in enumerate(self.sentences, 1):
            line, gap = re.sub(r"[\r\n]+", " ", translations[place - 1]), self.gaps[place]
            glued = not gap and place < len(self.sentences) and line != sentence
            parts += [line, " " if glued and line and not _is_wide(line) else gap]
        return "".join(parts)


def split_text(text: str, language: str) -> SplitText:
    """Split a text into lines and these into sentences; a sentence has at least one letter or digit."""
    sentences: list[str] = []
    gaps: list[list[str]] = [[]]
    for place, line in enumerate(LINE_END.split(text)):
        for sentence in [line] if place % 2 else split_sentences(line, language):
            core = sentence.strip()
            if _has_words([core]):
                start = sentence.index(core)
                gaps[-1].append(sentence[:start])
                sentences.append(core)
                gaps.append([sentence[start + len(core) :]])
            else:
                gaps[-1].append(sentence)
    return SplitText(sentences, ["".join(gap) for gap in gaps])


def _is_wide(text: str) -> bool:
    return unicodedata.east_asian_width(text[-1:] or " ") in "WF"


# Text with marks


def translate_sentences(segments: Sequence[Sequence[Piece]], translate: Translate, language: str) -> list[list[Piece]]:
    """Like `translate_marked`, but sentence by sentence, in one call."""
    split = [split_marked(pieces, language) for pieces in segments]
    done = iter(translate_marked([each for sentences in split for each in sentences if _has_words(each)], translate))
    return [list(_join_sentences(sentences, done)) for sentences in split]


def _join_sentences(sentences: Sequence[list[Piece]], done: Iterator[list[Piece]]) -> Iterator[Piece]:
    for place, sentence in enumerate(sentences, 1):
        pieces = next(done) if _has_words(sentence) else sentence
        if text_without_spaces(pieces) == text_without_spaces(sentence):
            pieces = sentence  # all marks keep their places
        yield from pieces
        written = text_of(pieces)
        if place < len(sentences) and written and _is_wide(text_of(sentence)) and not _is_wide(written):
            yield " "  # a source like 「はい。」 needs none before the next sentence


def _has_words(pieces: Sequence[Piece]) -> bool:
    return any(map(str.isalnum, text_of(pieces)))


def text_of(pieces: Sequence[Piece]) -> str:
    """The text without the marks."""
    return "".join(piece for piece in pieces if isinstance(piece, str))


def split_marked(pieces: Sequence[Piece], language: str) -> list[list[Piece]]:
    """The sentences of a text with marks, in order; joined they are the given pieces.

    A pair of tags that contains the beginning of a sentence belongs to several sentences. Its ends keep their places,
    each as a sentence of its own, and so does a tag without its partner."""
    starts = _sentence_starts(text_of(pieces), language)
    immovable, before = _immovable(pieces, starts), _marks_before_start(pieces)
    ahead = set(starts)
    sentences: list[list[Piece]] = [[]]
    offset = 0
    for number, piece in enumerate(pieces):
        if isinstance(piece, str):
            first, last = bisect_left(starts, offset), bisect_left(starts, offset + len(piece))
            cuts = [start - offset for start in starts[first:last] if start in ahead]
            sentences[-1].append(piece[: cuts[0] if cuts else None])
            sentences += [[piece[begin:end]] for begin, end in pairwise([*cuts, len(piece)])]
            offset += len(piece)
        elif piece in immovable:
            sentences += [[piece], []]
        else:
            # a mark that opens here belongs to the next sentence
            if offset in ahead and piece.role != "close" and number not in before:
                ahead.remove(offset)
                sentences.append([])
            sentences[-1].append(piece)
    return [kept for sentence in sentences if (kept := [piece for piece in sentence if piece != ""])]


def _sentence_starts(text: str, language: str) -> list[int]:
    """The offsets at which sentences begin, except the first."""
    starts, offset = [], 0
    for sentence in split_sentences(text, language):
        starts.append(offset + len(sentence) - len(sentence.lstrip()))
        offset += len(sentence)
    return starts[1:]


def _immovable(pieces: Sequence[Piece], starts: Sequence[int]) -> set[Mark]:
    """Tags without a partner, and pairs that contain the beginning of a sentence or such a tag."""
    offsets = list(accumulate((len(piece) if isinstance(piece, str) else 0 for piece in pieces), initial=0))
    pairs, single = _pairs(pieces)
    alone = list(accumulate((number in single for number in range(len(pieces))), initial=0))
    for opening, closing in pairs:
        parted = bisect_right(starts, offsets[opening]) < bisect_left(starts, offsets[closing])
        if parted or alone[opening] < alone[closing]:
            single |= {opening, closing}
    return {piece for number in single if isinstance(piece := pieces[number], Mark)}


def _marks_before_start(pieces: Sequence[Piece]) -> set[int]:
    """Marks of an uninterrupted row that come before the end of a pair opened before the row.

    They belong to the sentence before the row."""
    row, rows = 0, []  # for each piece, the index at which its row of marks begins
    for number, piece in enumerate(pieces):
        row = number if isinstance(piece, str) or (number and isinstance(pieces[number - 1], str)) else row
        rows.append(row)
    last = {rows[closing]: closing for opening, closing in _pairs(pieces)[0] if opening < rows[closing]}
    return {number for number, row in enumerate(rows) if number < last.get(row, 0)}


def _pairs(pieces: Sequence[Piece]) -> tuple[list[tuple[int, int]], set[int]]:
    """The indices of the pieces that open and close each pair, and of those without a partner."""
    waiting: dict[object, list[int]] = defaultdict(list)
    pairs, alone = [], set()
    for number, piece in enumerate(pieces):
        if isinstance(piece, str) or piece.role == "single":
            continue
        if piece.role == "open":
            waiting[piece.key].append(number)
        elif waiting[piece.key]:
            pairs.append((waiting[piece.key].pop(), number))
        else:
            alone.add(number)
    return pairs, alone.union(*waiting.values())
