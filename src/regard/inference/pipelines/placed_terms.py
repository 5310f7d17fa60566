"""The places of terms: the attention of a free answer shows which of its words a term replaces.

An answer is searched freely first. If it says all terms as often as asked for, it stays. Otherwise it becomes the
outline of a second search: a term that it lacks belongs where a word looks at the source of the term.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float

from regard.inference.decoding.constraints import Constraints, Outline, Progress
from regard.inference.decoding.search import Hypothesis

FREE = 2  # tokens before the first missing term that may still change, for its article


@dataclass(frozen=True)
class Draft:
    """A free answer to a sentence, with the terms that it should have."""

    sentence: int
    source: str
    constraints: Constraints
    answer: Hypothesis
    given: int  # the number of tokens that were given as the beginning of the answer

    @property
    def is_right(self) -> bool:
        """Whether each term is said as often as asked for."""
        return len(self.said) == len(self.constraints.each) and not self._read[1]

    @property
    def said(self) -> dict[int, tuple[int, int]]:
        """The tokens (first, last + 1) of the terms that are said, by the number of the constraint."""
        return self._read[0]

    @cached_property
    def _read(self) -> tuple[dict[int, tuple[int, int]], bool]:
        """The terms that are said, and whether one is said more often than asked for."""
        progress, said, again = Progress(self.constraints), dict[int, tuple[int, int]](), False
        for place, token in enumerate(self.answer.tokens):
            if token in self.constraints.relevant:
                again |= place >= self.given and token in progress.forbidden
            after = progress.after(token, 0.0)
            if after.met == progress.met:
                progress = after
                continue
            for number in range(len(self.constraints.each)):
                if after.met >> number & 1 and not progress.met >> number & 1:
                    said[number] = place - progress.longest_before(token), place + 1
                elif not after.met >> number & 1:
                    said.pop(number, None)
            progress = after
        return said, again

    def beginning(self, outline: Outline) -> list[int]:
        """The tokens that an answer with all terms has too: up to a little before the first that is missing."""
        said, again = self._read
        missing = [start for start, end in outline.places if (start, end) not in said.values()]
        first = 0 if again else min(missing) - FREE
        return self.answer.tokens[: max(self.given, first)]

    def with_tokens(self, tokens: list[int]) -> Draft:
        """Another answer to the same sentence."""
        return replace(self, answer=replace(self.answer, tokens=tokens))

    def outline(self, weights: Float[np.ndarray, "T S"], words_of: Sequence[int]) -> Outline:
        """This answer as the outline of another one, with the places of terms by the attention of its tokens;
        `words_of` has the word of each token."""
        each = self.constraints.each
        places = _said_places(self, weights)
        taken = {token for start, end in places.values() for token in range(start, end)}
        for number in sorted(set(range(len(each))) - places.keys()):
            places[number] = self._place(weights[:, list(each[number].source)].sum(axis=1), words_of, taken)
            taken |= set(range(*places[number]))
        return Outline(tuple(self.answer.tokens), tuple(places[number] for number in range(len(each))))

    def _place(self, looks: Float[np.ndarray, T], words_of: Sequence[int], taken: set[int]) -> tuple[int, int]:
        """The tokens of the word that looks most at the source of a term, without marks; the end if no word is left."""
        tokens, marks = self.answer.tokens, self.constraints.kinds.marks
        words: dict[int, list[int]] = {}
        for place, word in enumerate(words_of):
            if place >= self.given and place not in taken and word >= 0 and tokens[place] not in marks:
                words.setdefault(word, []).append(place)
        if not words:
            return len(tokens), len(tokens)
        best = max(words.values(), key=lambda places: float(looks[places].max()))
        return best[0], best[-1] + 1


def _said_places(draft: Draft, weights: Float[np.ndarray, "T S"]) -> dict[int, tuple[int, int]]:
    """The places of the terms that are said. Of constraints with the same forms, attention decides which are met."""
    each, found = draft.constraints.each, dict[int, tuple[int, int]]()
    for number, (start, end) in draft.said.items():
        alike = [n for n in range(len(each)) if each[n].forms == each[number].forms and n not in found]
        found[max(alike, key=lambda n: float(weights[start:end, list(each[n].source)].sum()))] = start, end
    return found
