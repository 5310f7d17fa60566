"""Which words of a text a tokenizer does not know, whatever its kind, and what share of the text they are."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import NamedTuple

Reads = Callable[[Sequence[str]], Sequence[bool]]  # of each text, whether every part of it is known
MOSTLY = 0.5  # share of a text from which on its answer has little to do with it
APOSTROPHES = "'’"
WHITE = re.compile(r"\s+")
TAGS = re.compile(r"<!--.*?-->|<(script|style)\b.*?</\1\s*>|<[^>]*>", re.DOTALL | re.IGNORECASE)
NAMED = 5  # unknown words in a message
WORTH_TELLING = 0.001  # share of unknown tokens in training data


class UnknownWord(NamedTuple):
    """A word that is not known, and where it stands in its text: text[start:end]."""

    word: str
    start: int
    end: int

    def to_json(self) -> dict[str, str | int]:
        return self._asdict()


def unknown_words(text: str, reads: Reads) -> list[UnknownWord]:
    """The words that become unknown tokens; where words are not separated, the unknown characters in a row.

    A word is looked up by itself. One that is known alone, but not as it stands here (`"house`), counts as unknown."""
    if not text.strip() or all(reads([text])):
        return []
    words = [match.span() for match in re.finditer(r"\S+", text)]
    found: list[tuple[int, int]] = []
    for start, end in _unread(text, words, reads):
        parts = [(start + first, start + last) for first, last in _parts(text[start:end])]
        found += _unread(text, parts, reads) or parts
    return [UnknownWord(text[start:end], start, end) for start, end in _joined(text, found)]


def unknown_share(text: str, unknown: Iterable[UnknownWord]) -> float:
    """How much of a text its unknown words are, counted in characters, white space aside."""
    count = len(WHITE.sub("", text))
    return min(1.0, sum(len(each.word) for each in unknown) / count) if count else 0.0


def share_of_all(texts: Iterable[str], find: Callable[[str], list[UnknownWord]]) -> dict[str, float]:
    """The share of several texts that is unknown, as a result beside others; nothing where all is known."""
    counts = [(sum(len(each.word) for each in find(text)), len(WHITE.sub("", text))) for text in texts]
    unknown, count = (sum(each) for each in zip(*counts, strict=True))
    return {"unknown": unknown / count} if unknown else {}


def find_words(page: str, words: Iterable[str]) -> list[UnknownWord]:
    """Where words stand in HTML, outside its tags; what is written with entities is not found."""
    plain, choices = TAGS.sub(lambda tag: " " * len(tag[0]), page), "|".join(map(re.escape, dict.fromkeys(words)))
    found = re.finditer(rf"(?<!\w)(?:{choices})(?!\w)", plain) if choices else ()
    return [UnknownWord(each[0], *each.span()) for each in found]


def is_mostly_unknown(text: str, unknown: Sequence[UnknownWord]) -> bool:
    """Whether so little of a text is known that its answer is a guess."""
    return bool(unknown) and unknown_share(text, unknown) >= MOSTLY


def named(unknown: Iterable[UnknownWord]) -> str:
    """Different unknown words for a message, a few of them."""
    words = list(dict.fromkeys(each.word for each in unknown))
    return ", ".join(words[:NAMED]) + (f" and {len(words) - NAMED} more" if len(words) > NAMED else "")


def unknown_tokens(shares: Mapping[str, float]) -> str:
    """What is told of training data: the share of unknown tokens of each side. Warns where it is most of a side."""
    told = ", ".join(f"{share:.1%} of the {side}" for side, share in shares.items() if share >= WORTH_TELLING)
    if any(share >= MOSTLY for share in shares.values()):
        warnings.warn(
            f"most of the training data is unknown to the tokenizer: {told}; another tokenizer, a larger vocabulary or "
            "other data is needed",
            UnknownTextWarning,
            stacklevel=3,
        )
    return f"; unknown tokens: {told}" if told else ""


class UnknownTextWarning(UserWarning):
    """A text is mostly unknown to the model that reads it."""


def warn_of_unknown(texts: Sequence[str], find: Callable[[str], list[UnknownWord]]) -> None:
    """Warn, once for all texts, of those that are mostly unknown."""
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


def _unread(text: str, spans: Sequence[tuple[int, int]], reads: Reads) -> list[tuple[int, int]]:
    known = reads([text[start:end] for start, end in spans])
    return list(compress(spans, (not each for each in known)))


def _parts(word: str) -> Iterator[tuple[int, int]]:
    """Letters and digits in a row; characters of scripts without spaces, and symbols, each by itself."""
    start = 0
    for place in range(1, len(word) + 1):
        if place == len(word) or not _together(word, place):
            yield start, place
            start = place


def _together(word: str, place: int) -> bool:
    """Whether the character at a place goes on with what is before it."""
    before, here = word[place - 1], word[place]
    if unicodedata.category(here)[0] == "M":
        return True
    if here in APOSTROPHES:
        return _runs(before) and _runs(word[place + 1 : place + 2])
    return _runs(here) and (_runs(before) or (before in APOSTROPHES and place > 1 and _runs(word[place - 2])))


def _runs(character: str) -> bool:
    """Whether a character is one of those that words are made of, in scripts that separate words."""
    return bool(character) and _is_letter(character) and unicodedata.east_asian_width(character) not in "WF"


def _is_letter(character: str) -> bool:
    return unicodedata.category(character)[0] in "LMN"


def _joined(text: str, spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Neighbouring characters of a script without spaces, and neighbouring symbols, as one."""
    last: tuple[int, int] | None = None
    for start, end in spans:
        if (
            last
            and last[1] == start
            and not _runs(text[start])
            and _is_letter(text[start]) == _is_letter(text[last[0]])
        ):
            last = last[0], end
            continue
        if last:
            yield last
        last = start, end
    if last:
        yield last
