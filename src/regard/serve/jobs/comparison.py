"""An improved model beside the model it began with, on held-out pairs of its run and on people's corrections."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Literal

from regard.config import Config
from regard.data.formats.pairs import Pair, read_pairs
from regard.errors import DataError
from regard.families.translation.evaluate import SIGNIFICANT, Comparison, Difference, compare_versions
from regard.families.translation.prepare import BASE, PairFile
from regard.families.translation.translator import Translator
from regard.training.run_folder import DATA

Kind = Literal["held_out", "corrections"]
SUGGESTIONS = "suggestions.jsonl"  # corrections that people sent, beside the runs
COMPARISON = "comparison.json"  # in the run folder, so that it is made once
MOST = 200  # sentences of each kind
SHOWN = 12  # of those that differ most
_comparing = threading.Lock()  # one at a time: it loads two models


class Scores(Config):
    """The scores of a model on one set of pairs."""

    bleu: float
    chrf: float
    exact: float


class ComparedPairs(Config):
    """Both models on the held-out pairs of the run, or on the corrections."""

    kind: Kind
    sentences: int
    old: Scores
    new: Scores
    p_value: float  # of the difference in chrF
    significant: bool
    better: int
    worse: int
    differences: list[Difference]


class RunComparison(Config):
    """What an improved model has gained and lost, before it replaces the one it began with."""

    sets: list[ComparedPairs]


def compare_run(run: Path, corrections: Path) -> RunComparison:
    """Compare the finished model of a run with its first model; the result is kept in the run folder.

    Corrections that came since are not in it.
    """
    kept = run / COMPARISON
    with _comparing:
        if not kept.is_file():
            kept.write_text(_compare(run, corrections).model_dump_json(), encoding="utf-8")
        return RunComparison.model_validate_json(kept.read_bytes())


def _compare(run: Path, corrections: Path) -> RunComparison:
    old, new = Translator.load(run / DATA / BASE), Translator.load(run)
    old.settings = new.settings  # the copy of the first model has its weights alone
    held_out = list(PairFile(run / DATA / "valid.jsonl"))
    languages = sorted({pair.to for pair in held_out})
    corrected = [
        pair
        for source in new.tokenizer.source_languages
        for to in languages
        for pair in _corrections(corrections, source, to)
    ]
    sets: dict[Kind, list[Pair]] = {"held_out": held_out, "corrections": corrected}
    some = {kind: random.Random(1).sample(pairs, MOST) if len(pairs) > MOST else pairs for kind, pairs in sets.items()}
    return RunComparison(
        sets=[_compared(kind, compare_versions(old, new, pairs, SHOWN)) for kind, pairs in some.items() if pairs]
    )


def _corrections(file: Path, source: str, target: str) -> list[Pair]:
    """The corrections between two languages; none if there is no file, or if it has others only."""
    try:
        return [Pair(pair.source, pair.target, to=target) for pair in read_pairs(file, source, target)]
    except DataError:
        return []


def _compared(kind: Kind, found: Comparison) -> ComparedPairs:
    old, new = (Scores.parse({name: scores[name] for name in Scores.model_fields}) for scores in (found.old, found.new))
    p_value = found.p_values["chrf"]
    return ComparedPairs(
        kind=kind,
        sentences=found.sentences,
        old=old,
        new=new,
        p_value=p_value,
        significant=p_value < SIGNIFICANT,
        better=found.better,
        worse=found.worse,
        differences=found.differences,
    )
