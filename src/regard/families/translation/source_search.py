"""The search for translations: source sentences as token ids, in batches of similar length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from regard.data.batch import pad_rows
from regard.search.constraints import Constraints
from regard.search.pipeline import batches_by_length
from regard.search.protocols import TokenSourceModel
from regard.search.search import Hypothesis, search
from regard.search.settings import SearchSettings, Vocabulary
from regard.search.start import SearchStart, from_source

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class SourceSearch:
    """A model with what a search needs to know of its tokenizer: the padding of sources, and the target's specials."""

    model: TokenSourceModel
    vocabulary: Vocabulary
    pad: int
    device: torch.device

    def start(
        self,
        rows: Sequence[Sequence[int]],
        beginnings: Sequence[Sequence[int]],
        settings: SearchSettings,
        constraints: Sequence[Constraints] | None = None,
    ) -> SearchStart:
        """Let the model read source sentences; all are given as token ids, and so are the beginnings of answers."""
        source, mask = (part.to(self.device) for part in pad_rows(rows, self.pad))
        forced = beginnings if any(beginnings) else None
        return from_source(
            self.model, source, mask, settings, self.vocabulary.start, prefixes=forced, constraints=constraints
        )

    def search(
        self,
        rows: Sequence[Sequence[int]],
        beginnings: Sequence[Sequence[int]],
        settings: SearchSettings,
        constraints: Sequence[Constraints | None] | None = None,
    ) -> list[list[Hypothesis]]:
        """Search in batches of similar length; those without constraints apart from the others."""
        terms = constraints or [None] * len(rows)
        answers: list[list[Hypothesis]] = [[] for _ in rows]
        for some in ([i for i, each in enumerate(terms) if (each is None) == free] for free in (True, False)):
            for places in batches_by_length([len(rows[i]) for i in some], settings.width):
                chosen = [some[place] for place in places]
                asked = [each for i in chosen if (each := terms[i]) is not None] or None
                start = self.start([rows[i] for i in chosen], [beginnings[i] for i in chosen], settings, asked)
                found = search(self.model, start, settings, self.vocabulary)
                for i, hypotheses in zip(chosen, found, strict=True):
                    answers[i] = hypotheses
        return answers
