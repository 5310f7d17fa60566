"""BPE dropout with a seed (Provilkov 2020): words are segmented at random, and the same seed repeats the same draws."""

from __future__ import annotations

import hashlib
import json
import random
from itertools import pairwise

import numpy as np
from tokenizers import models

from regard.data.tokenizers.base import SPACE, Tokenizer, well_formed
from regard.data.tokenizers.pair import PairTokenizer, SubwordTokenizer
from regard.errors import ConfigError

VARIANTS = 16  # different segmentations per word
REMEMBERED = 500_000  # segmentations cached in memory; an evicted one is sampled again
LONGEST_WORD = 200  # characters; longer words are never dropped out, because sampling is quadratic in the length


class SubwordSampler:
    """Segments text with the merges of a trained BPE, dropping each possible merge with a probability at each step.

    Variant k of a word depends on (seed, word, k) alone: encoding draws a k per word and looks the variant up.
    """

    def __init__(self, tokenizer: Tokenizer, dropout: float, seed: int) -> None:
        if not isinstance(tokenizer, SubwordTokenizer) or not isinstance(tokenizer.backend.model, models.BPE):
            raise ConfigError("subword dropout needs a tokenizer of kind 'bpe'; this one is not: set its dropout to 0.")
        model = json.loads(tokenizer.backend.to_str())["model"]
        ids: dict[str, int] = model["vocab"]
        self._tokenizer, self._dropout, self._seed = tokenizer, dropout, seed
        self._characters = {piece: i for piece, i in ids.items() if len(piece) == 1}
        self._merges = {
            (ids[left], ids[right]): (rank, ids[left + right]) for rank, (left, right) in enumerate(model["merges"])
        }
        self._known: dict[tuple[str, int], list[int]] = {}

    def encode(self, text: str, rng: np.random.Generator) -> list[int]:
        """One random segmentation of `text`, without special tokens; the same for the same state of `rng`."""
        words = text.replace(SPACE, " ").split()
        variants = rng.integers(VARIANTS, size=len(words)).tolist()
        return [i for key in zip(words, variants, strict=True) for i in self._known.get(key) or self._cut(*key)]

    def _cut(self, word: str, variant: int) -> list[int]:
        library = self._tokenizer.backend
        chance = random.Random(_hash(self._seed, word, variant))
        parts = library.pre_tokenizer.pre_tokenize_str(library.normalizer.normalize_str(well_formed(word)))
        ids = [i for part, _ in parts for i in self._merge(part, chance)]
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[word, variant] = ids
        return ids

    def _merge(self, part: str, chance: random.Random) -> list[int]:
        """Provilkov's algorithm 1: merge the best pair that is not dropped, until none is left."""
        if len(part) > LONGEST_WORD:
            return [piece.id for piece in self._tokenizer.backend.model.tokenize(part)]
        symbols = [self._characters.get(character, self._tokenizer.unknown) for character in part]
        while True:
            possible = [
                (*merge, place)
                for place, pair in enumerate(pairwise(symbols))
                if (merge := self._merges.get(pair)) and chance.random() >= self._dropout
            ]
            if not possible:
                return symbols
            _, merged, place = min(possible)
            symbols[place : place + 2] = [merged]


class PairSampler:
    """Random segmentations of both sides of a pair, with language tag and end tokens as in `PairTokenizer`."""

    def __init__(self, tokenizer: PairTokenizer, dropout: float, seed: int) -> None:
        self._tokenizer = tokenizer
        self._source = SubwordSampler(tokenizer.source, dropout, seed)
        shared = tokenizer.source is tokenizer.target
        self._target = self._source if shared else SubwordSampler(tokenizer.target, dropout, seed)

    def source_ids(self, text: str, to: str, rng: np.random.Generator) -> list[int]:
        return [*self._tokenizer.tag(to), *self._source.encode(text, rng), self._tokenizer.source.end]

    def target_ids(self, text: str, rng: np.random.Generator) -> list[int]:
        return [*self._target.encode(text, rng), self._tokenizer.target.end]


def _hash(seed: int, word: str, variant: int) -> int:
    text = f"{seed} {variant} {well_formed(word)}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")
