"""Find the words of a text that a tokenizer does not know, and their share of the text."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import NamedTuple

Reads = Callable[[Sequence[str]], Sequence[bool]]  # of each text, whether every part of it is known
MOSTLY = 0.5  # unknown share of a text from which on the model's answer is a guess
APOSTROPHES = "'’"
WHITE = re.compile(r"\s+")
TAGS = re.compile(r"<!--.*?-->|<(script|style)\b.*?</\1\s*>|<[^>]*>", re.DOTALL | re.IGNORECASE)
MAX_LISTED = 5  # unknown words listed in a message
MIN_REPORTED_SHARE = 0.001  # least share of unknown tokens in training data that is reported


class UnknownWord(NamedTuple):
    """An unknown word and its position: text[start:end]."""

    word: str
    start: int
    end: int

    def to_json(self) -> dict[str, str | int]:
        return self._asdict()


def unknown_words(text: str, reads: Reads) -> list[UnknownWord]:
    """The words that become unknown tokens; in scripts without spaces, runs of unknown characters.

    Each word is looked up alone. A word that is known alone but not in its context (`"house`) counts as unknown."""
    if not text.strip() or all(reads([text])):
        return []
    words = [match.span() for match in re.finditer(r"\S+", text)]
    found: list[tuple[int, int]] = []
    for start, end in _unknown_spans(text, words, reads):
        parts = [(start + first, start + last) for first, last in _parts(text[start:end])]
        found += _unknown_spans(text, parts, reads) or parts
    return [UnknownWord(text[start:end], start, end) for start, end in _merge(text, found)]


def unknown_share(text: str, unknown: Iterable[UnknownWord]) -> float:
    """The share of unknown words in a text, in characters without white space."""
    count = len(WHITE.sub("", text))
    return min(1.0, sum(len(each.word) for each in unknown) / count) if count else 0.0


def share_of_all(texts: Iterable[str], find: Callable[[str], list[UnknownWord]]) -> dict[str, float]:
    """The unknown share of several texts as a metric named `unknown`; empty if all is known."""
    counts = [(sum(len(each.word) for each in find(text)), len(WHITE.sub("", text))) for text in texts]
    unknown, count = (sum(each) for each in zip(*counts, strict=True))
    return {"unknown": unknown / count} if unknown else {}


def find_words(page: str, words: Iterable[str]) -> list[UnknownWord]:
    """The positions of words in HTML outside its tags; words written with entities are not found."""
    plain, choices = TAGS.sub(lambda tag: " " * len(tag[0]), page), "|".join(map(re.escape, dict.fromkeys(words)))
    found = re.finditer(rf"(?<!\w)(?:{choices})(?!\w)", plain) if choices else ()
    return [UnknownWord(each[0], *each.span()) for each in found]


def is_mostly_unknown(text: str, unknown: Sequence[UnknownWord]) -> bool:
    """Whether at least half of a text is unknown, so that the model's answer is a guess."""
    return bool(unknown) and unknown_share(text, unknown) >= MOSTLY


def named(unknown: Iterable[UnknownWord]) -> str:
    """The first few distinct unknown words, for a message."""
    words = list(dict.fromkeys(each.word for each in unknown))
    return ", ".join(words[:MAX_LISTED]) + (f" and {len(words) - MAX_LISTED} more" if len(words) > MAX_LISTED else "")


def unknown_tokens(shares: Mapping[str, float]) -> str:
    """A message with the share of unknown tokens of each side of training data; warns if it is most of a side."""
    shown = ", ".join(f"{share:.1%} of the {side}" for side, share in shares.items() if share >= MIN_REPORTED_SHARE)
    if any(share >= MOSTLY for share in shares.values()):
        warnings.warn(
            f"most of the training data is unknown to the tokenizer: {shown}; another tokenizer, larger vocabulary or "
            "other data is needed",
            UnknownTextWarning,
            stacklevel=3,
        )
    return f"; unknown tokens: {shown}" if shown else ""


class UnknownTextWarning(UserWarning):
    """A text is mostly unknown to the model that reads it."""


def warn_of_unknown(texts: Sequence[str], find: Callable[[str], list[UnknownWord]]) -> None:
    """Warn once of all texts that are mostly unknown."""
    found = [(text, words) for text in texts if is_mostly_unknown(text, words := find(text))]
    if found:
        text, words = found[0]
        which = "the text" if len(texts) == 1 else f"{len(found):,} of {len(texts):,} texts, the first of them"
        warnings.warn(
            f"{which} ({text[:40]!r}) is mostly unknown to this model: {unknown_share(text, words):.0%} of it "
            f"({named(words)})",
            UnknownTextWarning,
            stacklevel=3,
        )


def _unknown_spans(text: str, spans: Sequence[tuple[int, int]], reads: Reads) -> list[tuple[int, int]]:
    known = reads([text[start:end] for start, end in spans])
    return list(compress(spans, (not each for each in known)))


def _parts(word: str) -> Iterator[tuple[int, int]]:
    """Runs of letters and digits; symbols and characters of scripts without spaces are parts of their own."""
    start = 0
    for place in range(1, len(word) + 1):
        if place == len(word) or not _continues(word, place):
            yield start, place
            start = place


def _continues(word: str, place: int) -> bool:
    """Whether the character at a position continues the part before it."""
    before, here = word[place - 1], word[place]
    if unicodedata.category(here)[0] == "M":
        return True
    if here in APOSTROPHES:
        return _is_word_character(before) and _is_word_character(word[place + 1 : place + 2])
    return _is_word_character(here) and (
        _is_word_character(before) or (before in APOSTROPHES and place > 1 and _is_word_character(word[place - 2]))
    )


def _is_word_character(character: str) -> bool:
    """Whether a character is part of words in scripts that separate words by spaces."""
    return bool(character) and _is_letter(character) and unicodedata.east_asian_width(character) not in "WF"


def _is_letter(character: str) -> bool:
    return unicodedata.category(character)[0] in "LMN"


def _merge(text: str, spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Merge neighbouring symbols, and neighbouring characters of scripts without spaces."""
    last: tuple[int, int] | None = None
    for start, end in spans:
        if (
            last
            and last[1] == start
            and not _is_word_character(text[start])
            and _is_letter(text[start]) == _is_letter(text[last[0]])
        ):
            last = last[0], end
            continue
        if last:
            yield last
        last = start, end
    if last:
        yield last
