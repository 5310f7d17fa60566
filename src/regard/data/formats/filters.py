"""Filters for training corpora, and the split of sentences into parts."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from pydantic import Field

from regard.config import Config
from regard.data.formats.pairs import Pair
from regard.errors import UsageError


class FilterConfig(Config):
    """Which pairs are kept; None switches a limit off."""

    max_words: int | None = Field(250, ge=1)  # on either side
    max_characters: int | None = Field(5000, ge=1)  # on either side
    max_ratio: float | None = Field(9.0, ge=1)  # longer to shorter side in characters, so that it holds for any script
    duplicates: bool = False  # keep exact repetitions of a pair
    copies: bool = True  # keep pairs whose target is their source


DROPPED = ("empty", "too_long", "ratio", "copy", "duplicate")  # why a pair is left out
OTHER = "in other languages"  # lines of a file with several languages


def dropped_pairs(report: Mapping[str, int]) -> str:
    """How many pairs a report says were dropped, and why; empty if none was."""
    return ", ".join(f"{report[reason]:,} {reason}" for reason in (*DROPPED, OTHER) if report.get(reason))


class PairFilter:
    """Yields the pairs that pass the filter and counts the others by reason; call it once per corpus."""

    def __init__(self, config: FilterConfig) -> None:
        self.config = config
        self._counts = Counter[str]()
        self._seen = HashSet()

    @property
    def report(self) -> dict[str, int]:
        """How many pairs were kept, and how many dropped for each reason."""
        return {reason: self._counts[reason] for reason in ("kept", *DROPPED)}

    def __call__(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        for pair in pairs:
            verdict = self._verdict(pair)
            self._counts[verdict] += 1
            if verdict == "kept":
                yield pair

    def _verdict(self, pair: Pair) -> str:
        sides = pair.source.strip(), pair.target.strip()
        if not all(sides):
            return "empty"
        shorter, longer = sorted(map(len, sides))
        if self._too_long(sides, longer):
            return "too_long"
        if self.config.max_ratio is not None and longer > self.config.max_ratio * shorter:
            return "ratio"
        if not self.config.copies and sides[0] == sides[1]:
            return "copy"
        if not self.config.duplicates and not self._seen.add(stable_hash("\0".join((*sides, pair.to)))):
            return "duplicate"
        return "kept"

    def _too_long(self, sides: tuple[str, str], characters: int) -> bool:
        config = self.config
        if config.max_characters is not None and characters > config.max_characters:
            return True
        if config.max_words is None or characters < 2 * config.max_words:  # too short for so many words
            return False
        return max(len(side.split()) for side in sides) > config.max_words


class HashSet:
    """A set of 64-bit hashes in 11 to 16 bytes each, where Python's own takes 60 or more."""

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * 1024))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, value: int) -> bool:
        """Add a value; False if it was there already."""
        if 4 * self._count >= 3 * len(self._slots):
            self._grow()
        value = value or 1  # 0 marks a free slot
        slot = _find(self._slots, value)
        if self._slots[slot]:
            return False
        self._slots[slot] = value
        self._count += 1
        return True

    def _grow(self) -> None:
        larger = array("Q", bytes(8 * (len(self._slots) * 3 // 2)))
        for value in self._slots:
            if value:
                larger[_find(larger, value)] = value
        self._slots = larger


def _find(slots: array, value: int) -> int:
    slot = value % len(slots)
    while slots[slot] not in (0, value):
        slot = (slot + 1) % len(slots)
    return slot


def stable_hash(text: str) -> int:
    """A 64-bit hash that is the same in every process and on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def split_by_hash(source: str, parts: Mapping[str, float]) -> str:
    """The part of a source sentence, for shares such as {"train": 98, "valid": 1, "test": 1}.

    It does not depend on case and spacing, so that no source is in two parts."""
    if not parts or min(parts.values()) < 0 or not sum(parts.values()) > 0:
        raise UsageError(f"parts are names with shares of 0 or more, such as {{'train': 99, 'valid': 1}}; got {parts}")
    place = stable_hash(" ".join(source.casefold().split())) / 2**64 * sum(parts.values())
    named = [name for name, share in parts.items() if share > 0]
    for name in named:
        place -= parts[name]
        if place < 0:
            return name
    return named[-1]
