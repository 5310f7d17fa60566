"""An old and a new translator on the same pairs: what was gained and lost before one replaces the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regard.data.formats.pairs import Pair
from regard.inference.pipelines.translator import Translator
from regard.studies.evaluate.quality import sentence_chrf
from regard.studies.evaluate.translation import evaluate_pairs


@dataclass(frozen=True)
class Difference:
    """A sentence that two models translate differently, with the chrF of both translations."""

    source: str
    reference: str
    old: str
    new: str
    old_chrf: float
    new_chrf: float


@dataclass(frozen=True)
class Comparison:
    """The scores of both models, in how many sentences the new one is better or worse, and the greatest differences."""

    sentences: int
    old: dict[str, Any]
    new: dict[str, Any]
    better: int
    worse: int
    differences: list[Difference]


def compare_versions(old: Translator, new: Translator, pairs: Sequence[Pair], show: int = 10) -> Comparison:
    """Translate the same pairs with both models; `show` of the sentences whose chrF differs most are listed."""
    found = [evaluate_pairs(model, pairs) for model in (old, new)]
    chrf = [[100 * score for score in sentence_chrf(answers, pairs)] for _, answers in found]
    rows = [
        Difference(pair.source, pair.target, one.text, other.text, *scores)
        for pair, one, other, *scores in zip(pairs, found[0][1], found[1][1], *chrf, strict=True)
    ]
    changed = [row for row in rows if row.old != row.new]
    changed.sort(key=lambda row: -abs(row.new_chrf - row.old_chrf))
    return Comparison(
        sentences=len(rows),
        old=found[0][0],
        new=found[1][0],
        better=sum(row.new_chrf > row.old_chrf for row in rows),
        worse=sum(row.new_chrf < row.old_chrf for row in rows),
        differences=changed[:show],
    )
