"""BERT's training examples from plain documents: masked texts and pairs of segments (Devlin et al. 2019).

Every example is a function of (seed, epoch, its number): nothing is stored, and every epoch masks other words.
Deviation: a second segment that was replaced by a random one is used in another epoch, not in the next example.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.batch import TextBatch, pad_rows
from regard.data.loader import Place, Rows
from regard.data.text.token_blocks import TokenStore, document_ranges
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import CheckpointError

Row = NDArray[np.int64]
KEPT, RANDOM = 0.1, 0.1  # shares of the chosen tokens that stay or become random; the others become [MASK]


@dataclass(frozen=True)
class Masking:
    """Chooses a share of the tokens to be predicted: 80 % become [MASK], 10 % a random token, 10 % stay as they are."""

    tokenizer: TextTokenizer
    share: float = 0.15
    whole_words: bool = False

    @property
    def mask(self) -> int:
        if self.tokenizer.mask is None:
            raise CheckpointError("this tokenizer has no token for hidden words ([MASK]); use that of a BERT")
        return self.tokenizer.mask

    @cached_property
    def ordinary(self) -> Row:
        """The tokens that are not special."""
        return np.setdiff1d(np.arange(self.tokenizer.size), list(self.tokenizer.specials.values()))

    @cached_property
    def continues(self) -> NDArray[np.bool_]:
        """Which tokens of the vocabulary continue a word."""
        return np.array([self.tokenizer.spelled(token)[1] for token in range(self.tokenizer.size)])

    def __call__(self, ids: Row, rng: np.random.Generator) -> tuple[Row, NDArray[np.bool_]]:
        """The masked text, and which tokens are to be predicted."""
        candidates = np.flatnonzero(np.isin(ids, self.ordinary))
        words = self._words(ids, candidates)
        chosen = self._chosen(words, max(1, round(self.share * len(candidates))), rng)
        guessed = np.zeros(len(ids), dtype=bool)
        guessed[candidates[chosen]] = True
        places = np.flatnonzero(guessed)
        fate, hidden = rng.random(len(places)), ids.copy()
        hidden[places[fate >= KEPT + RANDOM]] = self.mask
        exchanged = places[(fate >= KEPT) & (fate < KEPT + RANDOM)]
        hidden[exchanged] = rng.choice(self.ordinary, len(exchanged))
        return hidden, guessed

    def _words(self, ids: Row, candidates: Row) -> Row:
        """The number of each candidate's word; every token counts as a word unless whole words are masked."""
        if not self.whole_words:
            return np.arange(len(candidates))
        apart = np.diff(candidates, prepend=-2) > 1  # a special token is in between
        return np.cumsum(apart | ~self.continues[ids[candidates]]) - 1

    @staticmethod
    def _chosen(words: Row, count: int, rng: np.random.Generator) -> NDArray[np.bool_]:
        """A mask of the tokens of words drawn at random, at least `count` tokens."""
        sizes = np.bincount(words)
        order = rng.permutation(len(sizes))
        drawn = order[: int(np.searchsorted(np.cumsum(sizes[order]), count)) + 1]
        return np.isin(words, drawn)


class Segment(NamedTuple):
    """Lines that follow each other in a document."""

    begin: int
    end: int


def segments(store: TokenStore, room: int) -> list[Segment]:
    """The lines of every document in order, in segments of at most `room` tokens; a longer line is its own segment."""
    found, lengths = [], store.lines.lengths()
    for first, last in document_ranges(store):
        begin, tokens = first, 0
        for line in range(first, last):
            if tokens and tokens + lengths[line] > room:
                found.append(Segment(begin, line))
                begin, tokens = line, 0
            tokens += int(lengths[line])
        if tokens:
            found.append(Segment(begin, last))
    return found


@dataclass(frozen=True)
class MaskedTexts:
    """Makes batches of masked texts, or of pairs of segments; half of the time the second follows the first."""

    store: TokenStore
    masking: Masking
    parts: list[Segment]
    room: int  # tokens of an example, special tokens not included
    pairs: bool
    seed: int

    def __call__(self, rows: Rows, place: Place) -> TextBatch:
        made = [self.example(row, np.random.default_rng([self.seed, place[0], row])) for row in rows.tolist()]
        pad = self.masking.tokenizer.pad
        inputs, mask = pad_rows([hidden for hidden, *_ in made], pad)
        labels, _ = pad_rows([ids for _, ids, *_ in made], pad)
        guessed, _ = pad_rows([chosen.astype(np.int64) for _, _, chosen, *_ in made], 0)
        kinds, _ = pad_rows([kind for *_, kind, _ in made], 0)
        follows = torch.tensor([exchanged for *_, exchanged in made]) if self.pairs else None
        return TextBatch(inputs, mask, labels, guessed.bool(), kinds, follows)

    def example(self, row: int, rng: np.random.Generator) -> tuple[Row, Row, NDArray[np.bool_], Row, int]:
        """The masked tokens, the true tokens, which of them to predict, the segment of each, and 1 if the second
        segment does not follow the first."""
        first, second, exchanged = self._drawn(self.parts[row], rng)
        tokenizer = self.masking.tokenizer
        start, end = [tokenizer.start], [tokenizer.separator]
        halves = [[*start, *first, *end], [*second, *end] if self.pairs else []]
        ids = np.array([token for half in halves for token in half], dtype=np.int64)
        hidden, guessed = self.masking(ids, rng)
        return hidden, ids, guessed, np.repeat([0, 1], [len(half) for half in halves]), int(exchanged)

    def _drawn(self, part: Segment, rng: np.random.Generator) -> tuple[Any, Any, bool]:
        if not self.pairs:
            return self._text(part)[: self.room], [], False
        alone = part.end - part.begin == 1
        cut = part.end if alone else int(rng.integers(part.begin + 1, part.end))
        first, exchanged = self._text(Segment(part.begin, cut)), alone or bool(rng.random() < 0.5)
        second = self._text(self._elsewhere(part, rng) if exchanged else Segment(cut, part.end))
        first = first[: max(self.room // 2, self.room - len(second))]
        return first, second[: self.room - len(first)], exchanged

    def _elsewhere(self, part: Segment, rng: np.random.Generator) -> Segment:
        """A segment of another document."""
        documents = self.store.documents
        here = int(np.searchsorted(documents, part.begin, side="right"))
        while True:
            other = self.parts[int(rng.integers(len(self.parts)))]
            if int(np.searchsorted(documents, other.begin, side="right")) != here:
                return Segment(int(rng.integers(other.begin, other.end)), other.end)

    def _text(self, part: Segment) -> NDArray[Any]:
        offsets = self.store.lines.offsets
        return self.store.tokens[offsets[part.begin] : offsets[part.end]].astype(np.int64)


def pieces_of(ids: list[int], longest: int) -> Iterator[list[int]]:
    """A line split into pieces of at most `longest` tokens."""
    for begin in range(0, len(ids), longest):
        yield ids[begin : begin + longest]
