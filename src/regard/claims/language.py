"""A made-up language and its translation: a task that small networks learn in seconds, with gold links between words.

A sentence is a row of phrases. A phrase is up to two adjectives and a noun. Its translation has the noun first and its
adjectives after it, the last one first ("European Economic Area", "zone économique européenne"), and each adjective
agrees with the gender of its noun. So a translator needs the right word, its place, and another word at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import torch
from jaxtyping import Bool, Int
from torch import Tensor

PAD, BEGIN, END = 0, 1, 2
FIRST = 3  # the first word, after the special tokens
NOUNS, ADJECTIVES, LONGEST_PHRASE = 8, 8, 3
SOURCE_VOCAB = FIRST + NOUNS + ADJECTIVES
TARGET_VOCAB = FIRST + NOUNS + 2 * ADJECTIVES  # an adjective has a form for each gender
Links = tuple[int, ...]  # the source word of every target word


@dataclass(frozen=True)
class Sentences:
    """Sentences with their translations, padded; `links` has the source word of every target word, -1 for none."""

    source: Int[Tensor, "B S"]
    inputs: Int[Tensor, "B T"]  # begins with BEGIN
    targets: Int[Tensor, "B T"]  # ends with END
    links: Int[Tensor, "B T"]

    @property
    def source_mask(self) -> Bool[Tensor, "B S"]:
        return self.source != PAD

    @property
    def target_mask(self) -> Bool[Tensor, "B T"]:
        return self.targets != PAD

    @property
    def reversed(self) -> Sentences:
        """The same sentences from the second language to the first."""
        words = self.targets.masked_fill(self.targets == END, PAD)[:, :-1]
        back = torch.full_like(self.links, -1)
        rows, places = (self.links >= 0).nonzero(as_tuple=True)
        back[rows, self.links[rows, places]] = places
        inputs = torch.cat([torch.full_like(self.source[:, :1], BEGIN), self.source], dim=1)
        ends = torch.cat([self.source, torch.zeros_like(self.source[:, :1])], dim=1)
        ends[torch.arange(len(ends)), (self.source != PAD).sum(dim=1)] = END
        return Sentences(words, inputs, ends, back)


def draw_pair(random: Random, words: int) -> tuple[list[int], list[int], Links]:
    """A sentence of so many words, its translation, and the source word of every target word."""
    source, target, links = list[int](), list[int](), list[int]()
    while len(source) < words:
        size = min(random.randint(1, LONGEST_PHRASE), words - len(source))
        start, noun = len(source), random.randrange(NOUNS)
        adjectives = [random.randrange(ADJECTIVES) for _ in range(size - 1)]
        source += [FIRST + NOUNS + adjective for adjective in adjectives] + [FIRST + noun]
        target += [FIRST + noun] + [FIRST + NOUNS + 2 * each + noun % 2 for each in reversed(adjectives)]
        links += [start + size - 1, *range(start + size - 2, start - 1, -1)]
    return source, target, tuple(links)


def sentences(random: Random, count: int, words: tuple[int, int]) -> Sentences:
    """A batch of sentences, each of a number of words drawn from this range."""
    pairs = [draw_pair(random, random.randint(*words)) for _ in range(count)]
    longest = max(len(source) for source, _, _ in pairs)
    return Sentences(
        _padded([source for source, _, _ in pairs], longest, PAD),
        _padded([[BEGIN, *target] for _, target, _ in pairs], longest + 1, PAD),
        _padded([[*target, END] for _, target, _ in pairs], longest + 1, PAD),
        _padded([links for _, _, links in pairs], longest + 1, -1),
    )


def batches(seed: int, size: int, words: tuple[int, int]) -> Iterator[Sentences]:
    """Batches without end, all of them new."""
    random = Random(seed)
    while True:
        yield sentences(random, size, words)


def _padded(rows: Sequence[Sequence[int]], length: int, value: int) -> Int[Tensor, "B T"]:
    return torch.tensor([[*row, *[value] * (length - len(row))] for row in rows])
