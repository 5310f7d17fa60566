"""Long texts cut into sentences and put together again, with every line break and space where it was."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import sentencex

from regard.documents.markup import Mark, Piece, Translate, letters_of, parse, translate_marked
from regard.errors import DataError

LINE_END = re.compile("(\\A\ufeff|\r\n|\r|\n)")  # a byte order mark at the very beginning belongs to no line either
WINDOW = 2000  # characters; sentencex takes time with the square of the sentences it sees at once
# sentencex stumbles over white space beyond ASCII and over lone surrogates; these stand in for them, one for one
STAND_INS = (re.compile(r"\s"), " "), (re.compile("[\ud800-\udfff]"), "\ufffd")


def cut_sentences(text: str, language: str) -> list[str]:
    """The sentences of a text, each with the white space that follows it: put together they are the text.

    Languages that sentencex does not know are cut like English. A stretch of 2000 characters without an end of a
    sentence is cut at a space."""
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
    """How long the sentences in a window are; one that may go on after it is left for the next."""
    found = [len(sentence) for sentence in sentencex.segment(language or "en", window)]
    if last:
        return found
    return found[:-1] or [window.rfind(" ") + 1 or len(window)]


# Plain text


@dataclass(frozen=True, slots=True)
class Passage:
    """A text taken apart: its sentences, and what stays as it is before, between and after them."""

    sentences: list[str]
    gaps: list[str]

    def join(self, translations: Sequence[str]) -> str:
        """The text with a translation in the place of each sentence; line breaks within a translation become spaces.

        Sentences that had no space between them, as in 「はい。いいえ。」 or after a slip, get the one that their
        translations need.
        """
        if len(translations) != len(self.sentences):
            raise DataError(f"{len(translations)} translations came for {len(self.sentences)} sentences")
        parts = self.gaps[:1]
        for place, sentence in enumerate(self.sentences, 1):
            line, gap = re.sub(r"[\r\n]+", " ", translations[place - 1]), self.gaps[place]
            glued = not gap and place < len(self.sentences) and line != sentence
            parts += [line, " " if glued and line and not _is_wide(line) else gap]
        return "".join(parts)


def split_passage(text: str, language: str) -> Passage:
    """Cut a text into lines and these into sentences; what has neither letter nor digit is not one."""
    sentences: list[str] = []
    gaps: list[list[str]] = [[]]
    for place, line in enumerate(LINE_END.split(text)):
        for sentence in [line] if place % 2 else cut_sentences(line, language):
            core = sentence.strip()
            if _has_words([core]):
                start = sentence.index(core)
                gaps[-1].append(sentence[:start])
                sentences.append(core)
                gaps.append([sentence[start + len(core) :]])
            else:
                gaps[-1].append(sentence)
    return Passage(sentences, ["".join(gap) for gap in gaps])


def translate_passages(
    texts: Sequence[str], translate: Callable[[list[str]], Sequence[str]], language: str
) -> list[str]:
    """Translate texts sentence by sentence, all in one call, with every line break and all white space kept."""
    passages = [split_passage(text, language) for text in texts]
    sentences = [sentence for passage in passages for sentence in passage.sentences]
    outputs = list(translate(sentences)) if sentences else []
    if len(outputs) != len(sentences):
        raise DataError(f"the translator returned {len(outputs)} translations for {len(sentences)} sentences")
    done = iter(outputs)
    return [passage.join([next(done) for _ in passage.sentences]) for passage in passages]


def _missing_space(sentence: str, translation: str) -> str:
    """The space that a sentence like 「はい。」 did not need before the next one, but its translation does."""
    return " " if translation and _is_wide(sentence) and not _is_wide(translation) else ""


def _is_wide(text: str) -> bool:
    return unicodedata.east_asian_width(text[-1:] or " ") in "WF"


# Text with marks


def translate_lines(text: str, translate: Translate, language: str) -> str:
    """Translate a text sentence by sentence, with its line breaks, placeholders and tags kept."""
    lines = LINE_END.split(text)
    done = translate_sentences([parse(line) for line in lines[::2]], translate, language)
    lines[::2] = ["".join(piece if isinstance(piece, str) else piece.content for piece in line) for line in done]
    return "".join(lines)


def translate_sentences(segments: Sequence[Sequence[Piece]], translate: Translate, language: str) -> list[list[Piece]]:
    """Like `translate_marked`, but sentence by sentence, all in one call."""
    cut = [cut_marked(pieces, language) for pieces in segments]
    done = iter(translate_marked([each for sentences in cut for each in sentences if _has_words(each)], translate))
    return [list(_rejoined(sentences, done)) for sentences in cut]


def _rejoined(sentences: Sequence[list[Piece]], done: Iterator[list[Piece]]) -> Iterator[Piece]:
    for place, sentence in enumerate(sentences, 1):
        pieces = next(done) if _has_words(sentence) else sentence
        if letters_of(pieces) == letters_of(sentence):  # the translation is the same, so nothing need move
            pieces = sentence
        yield from pieces
        if place < len(sentences) and (space := _missing_space(text_of(sentence), text_of(pieces))):
            yield space


def _has_words(pieces: Sequence[Piece]) -> bool:
    return any(map(str.isalnum, text_of(pieces)))


def text_of(pieces: Sequence[Piece]) -> str:
    """The text alone, without the marks."""
    return "".join(piece for piece in pieces if isinstance(piece, str))


def cut_marked(pieces: Sequence[Piece], language: str) -> list[list[Piece]]:
    """The sentences of a text with marks, in order: put together they are the pieces given.

    A pair of tags around the beginning of a sentence could not move with the words of one; its ends stay where they
    are, each by itself, and so does a tag without its partner."""
    starts = _starts(text_of(pieces), language)
    immovable, before = _immovable(pieces, starts), _before_the_cut(pieces)
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
            # what opens here belongs to the sentence that follows
            if offset in ahead and piece.role != "close" and number not in before:
                ahead.remove(offset)
                sentences.append([])
            sentences[-1].append(piece)
    return [kept for sentence in sentences if (kept := [piece for piece in sentence if piece != ""])]


def _starts(text: str, language: str) -> list[int]:
    """Where sentences begin, except the first."""
    starts, offset = [], 0
    for sentence in cut_sentences(text, language):
        starts.append(offset + len(sentence) - len(sentence.lstrip()))
        offset += len(sentence)
    return starts[1:]


def _immovable(pieces: Sequence[Piece], starts: Sequence[int]) -> set[Mark]:
    """Tags without a partner, and pairs that hold the beginning of a sentence or such a tag."""
    offsets = list(accumulate((len(piece) if isinstance(piece, str) else 0 for piece in pieces), initial=0))
    pairs, single = _pairs(pieces)
    alone = list(accumulate((number in single for number in range(len(pieces))), initial=0))
    for opening, closing in pairs:
        parted = bisect_right(starts, offsets[opening]) < bisect_left(starts, offsets[closing])
        if parted or alone[opening] < alone[closing]:
            single |= {opening, closing}
    return {piece for number in single if isinstance(piece := pieces[number], Mark)}


def _before_the_cut(pieces: Sequence[Piece]) -> set[int]:
    """Marks in a row, where a sentence may begin, that stand before the end of a pair opened earlier."""
    row, rows = 0, []  # where the row of marks that each piece is in begins
    for number, piece in enumerate(pieces):
        row = number if isinstance(piece, str) or (number and isinstance(pieces[number - 1], str)) else row
        rows.append(row)
    last = {rows[closing]: closing for opening, closing in _pairs(pieces)[0] if opening < rows[closing]}
    return {number for number, row in enumerate(rows) if number < last.get(row, 0)}


def _pairs(pieces: Sequence[Piece]) -> tuple[list[tuple[int, int]], set[int]]:
    """The numbers of the pieces that open and close a pair, and of those without a partner."""
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
