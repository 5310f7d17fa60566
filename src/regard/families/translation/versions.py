"""An old and a new translator on the same pairs: what was gained and lost before one replaces the other."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sacrebleu
from sacrebleu.significance import PairedTest, Result

from regard.data.formats.pairs import Pair
from regard.families.translation.evaluate import evaluate_pairs, sentence_chrf, targets_of
from regard.families.translation.metrics import bleu_metric
from regard.families.translation.translator import Translator

logging.getLogger("sacrebleu").setLevel(logging.WARNING)  # it would report every test
SHUFFLES = 1000  # of the two models' answers, by which a difference is tested
SIGNIFICANT = 0.05  # a p-value below it


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
    """The scores of both models, in how many sentences the new one is better or worse, and the greatest differences.

    `p_values` has for bleu and chrf the probability of a greater difference if both models were equally good.
    """

    sentences: int
    old: dict[str, Any]
    new: dict[str, Any]
    p_values: dict[str, float]
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
        p_values=p_values(
            [row.old for row in rows],
            [row.new for row in rows],
            [row.reference for row in rows],
            targets_of(new, pairs),
        ),
        better=sum(row.new_chrf > row.old_chrf for row in rows),
        worse=sum(row.new_chrf < row.old_chrf for row in rows),
        differences=changed[:show],
    )


def p_values(
    old: Sequence[str], new: Sequence[str], references: Sequence[str], targets: Iterable[str]
) -> dict[str, float]:
    """Paired approximate randomisation (Riezler & Maxwell 2005) by sacrebleu: how often a difference in the corpus
    score is greater when the two answers of each sentence are exchanged at random."""
    if list(old) == list(new):  # no exchange is greater than no difference at all, which sacrebleu takes for certainty
        return {"bleu": 1.0, "chrf": 1.0}
    metrics = {"bleu": bleu_metric(targets, references), "chrf": sacrebleu.CHRF(references=[references])}
    test = PairedTest([("old", old), ("new", new)], metrics, references=None, test_type="ar", n_samples=SHUFFLES)
    _, columns = test()
    found = [of_new.p_value for _, of_new in columns.values() if isinstance(of_new, Result)]
    return {name: 1.0 if p_value is None else p_value for name, p_value in zip(metrics, found, strict=True)}


def verdict(p_value: float) -> str:
    """A p-value in words."""
    return f"{'significant' if p_value < SIGNIFICANT else 'not significant'} (p = {p_value:.3f})"
