"""Scores of a translator on pairs, and of an old and a new one on the same pairs: what was gained and lost."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import sacrebleu
from sacrebleu.significance import PairedTest, Result

from regard.data.formats.pairs import GoldPair, Pair, read_gold, read_pairs
from regard.data.synthetic.phrasebook.morphology import LANGUAGES
from regard.data.tokenizers.unknown_words import share_of_all
from regard.errors import DataError, UsageError
from regard.families.translation.metrics import bleu_metric, corpus_scores
from regard.families.translation.prepare import spoken
from regard.families.translation.quality import (
    Calibration,
    Evidence,
    estimates,
    fingerprint,
    fit_calibration,
    pearson,
    spearman,
)
from regard.families.translation.translation import Translation
from regard.families.translation.translator import Translator
from regard.look.forced_pass import CROSS, AlignmentSettings, Pass, readings
from regard.look.word_alignment import (
    SymmetryMethod,
    alignment_error_rate,
    alignment_score,
    flip,
    links,
    merge_weights,
    symmetrise,
)
from regard.training.recipe.files import PHRASEBOOK

Part = Literal["valid", "test"]
Merge = Literal["mutual"] | SymmetryMethod
MERGES: tuple[Merge, ...] = ("mutual", *get_args(SymmetryMethod))


def held_out_pairs(
    translator: Translator,
    data: str,
    to: str = "",
    *,
    source: str = "",
    part: Part = "test",
    count: int = 500,
    min_words: int = 1,
    max_words: int = 60,
    seed: int = 1,
) -> list[Pair]:
    """The pairs to evaluate: a file, or new held-out sentences of the built-in phrasebook."""
    targets = [to] if to else list(translator.tokenizer.target_languages)
    sources = [source] if source else list(translator.tokenizer.source_languages)
    if data == PHRASEBOOK:
        directions = [(one, other) for one in sources for other in targets]
        known = [each for each in directions if not {*each}.isdisjoint(LANGUAGES)] or directions
        return [
            replace(pair, source_language=one if len(sources) > 1 else "", to=other)
            for one, other in known
            for pair in spoken(one, other, part=part, count=count, seed=seed, min_words=min_words, max_words=max_words)
        ]
    if len(targets) > 1:
        raise UsageError(f"this model translates into {', '.join(targets)}; say which with --to")
    if len(sources) > 1:
        raise UsageError(f"this model translates from {', '.join(sources)}; say which with --from")
    pairs = read_pairs(data, sources[0], targets[0])
    return [replace(pair, to=targets[0]) for pair in pairs]


AT_ONCE = 256  # sentences that are translated between two reports of progress
Measured = Callable[[int, int], object] | None  # how many more are translated, of how many


def evaluate_pairs(
    translator: Translator, pairs: Sequence[Pair], measured: Measured = None, **changes: Any
) -> tuple[dict[str, object], list[Translation]]:
    """BLEU, chrF (as sacrebleu measures the target languages), exact match, and the alignment error rate if the pairs
    have gold links. `measured` is told how many more sentences are translated, and of how many."""
    if not pairs:
        raise DataError("there is nothing to evaluate: no pair came")
    answers = translate_pairs(translator, pairs, measured, **changes)
    texts, references = [answer.text for answer in answers], [pair.target for pair in pairs]
    scores: dict[str, object] = {"sentences": len(pairs)} | text_scores(
        texts, references, targets_of(translator, pairs)
    )
    scores |= share_of_all((pair.source for pair in pairs), translator.unknown_words)
    if translator.alignment is not None and all(pair.links is not None for pair in pairs):
        scores["alignment_error_rate"] = _gold_error_rate(translator, pairs)
    return scores, answers


def translate_pairs(
    translator: Translator, pairs: Sequence[Pair], measured: Measured = None, **changes: Any
) -> list[Translation]:
    """The translation of every pair's source into the language of its target."""
    found: dict[int, Translation] = {}
    for to in sorted({pair.to for pair in pairs}):
        rows = [row for row, pair in enumerate(pairs) if pair.to == to]
        for begin in range(0, len(rows), AT_ONCE):
            some = rows[begin : begin + AT_ONCE]
            answers = translator.translate([pairs[row].source for row in some], to=to, **changes)
            found |= zip(some, answers, strict=True)
            if measured:
                measured(len(some), len(pairs))
    return [found[row] for row in range(len(pairs))]


def targets_of(translator: Translator, pairs: Sequence[Pair]) -> set[str]:
    """The languages that the pairs are translated into."""
    return {pair.to or translator.target_language() for pair in pairs}


def text_scores(answers: Sequence[str], references: Sequence[str], targets: Iterable[str]) -> dict[str, object]:
    """Corpus scores of detokenised text in the target languages, with sacrebleu's signature."""
    languages = set(targets)
    signature = bleu_metric(languages, references).get_signature()
    return {**corpus_scores(answers, references, languages), "signature": str(signature)}


def _gold_error_rate(translator: Translator, pairs: Sequence[Pair]) -> float:
    predicted: list[Any] = [()] * len(pairs)
    for to in sorted({pair.to for pair in pairs}):
        rows = [row for row, pair in enumerate(pairs) if pair.to == to]
        found = translator.align([pairs[row].source for row in rows], [pairs[row].target for row in rows], to=to)
        for row, each in zip(rows, found, strict=True):
            predicted[row] = each
    sure = [pair.links or () for pair in pairs]
    possible = [[*(pair.links or ()), *(pair.possible or ())] for pair in pairs]
    return alignment_score(predicted, sure, possible).error_rate


def gold_pairs(path: str, *, first: int = 1, strip_accents: bool = False) -> list[GoldPair]:
    """The hand-aligned pairs of a file, whose words are numbered from `first`."""
    pairs = [_stripped(pair) if strip_accents else pair for pair in read_gold(path, first)]
    if not pairs:
        raise DataError(f"{path}: no hand-aligned pair in it; a line holds source TAB target TAB links")
    return pairs


def evaluate_alignment(
    translator: Translator,
    gold: Sequence[GoldPair],
    to: str = "",
    *,
    backward: Translator | None = None,
    merge: Merge = "mutual",
) -> dict[str, object]:
    """AER, precision and recall of the attention's links against gold links, in one direction or merged with the other.

    `mutual` merges the weights of both directions by their geometric mean and keeps the cells that are heaviest both in
    their row and in their column; the other methods combine the links that each direction finds alone.
    """
    reading, forward = translator.aligning(), _gold_passes(translator, gold, to)
    found = [each.links(reading) for each in forward]
    results: dict[str, object] = {"alignment_layer": described(reading), **_scored(found, gold, "")}
    if backward is None:
        return results
    back_reading, back = backward.aligning(), _gold_passes(backward, gold, flipped=True)
    back_found = [flip(each.links(back_reading)) for each in back]
    if merge == "mutual":
        both = [(a.words(reading), b.words(back_reading)) for a, b in zip(forward, back, strict=True)]
        merged = [links(merge_weights(one, other), "mutual") for one, other in both]
    else:
        merged = [symmetrise(one, other, merge) for one, other in zip(found, back_found, strict=True)]
    return results | _scored(back_found, gold, "_backward") | _scored(merged, gold, f"_{merge}")


def error_rates_by_reading(translator: Translator, gold: Sequence[GoldPair], to: str = "") -> dict[str, float]:
    """AER of every reading of the cross-attention, best first; used to choose the aligning layer of a model."""
    translator.aligning()
    passes = _gold_passes(translator, gold, to, layers=CROSS)
    sure, possible = [pair.sure for pair in gold], [pair.possible for pair in gold]
    rates = {
        described(reading): alignment_error_rate([each.links(reading) for each in passes], sure, possible)
        for reading in readings(passes)
    }
    return dict(sorted(rates.items(), key=lambda item: item[1]))


def _gold_passes(
    translator: Translator, gold: Sequence[GoldPair], to: str = "", *, flipped: bool = False, layers: str = ""
) -> list[Pass]:
    """Forced passes over these pairs, recording the aligning layer or others; `flipped` translates target to source."""
    texts = [pair.source for pair in gold], [pair.target for pair in gold]
    sources, targets = reversed(texts) if flipped else texts
    return translator.passes(sources, targets, to=to, layers=layers or translator.aligning().layer)


def _scored(
    predicted: Sequence[Iterable[tuple[int, int]]], pairs: Sequence[GoldPair], suffix: str
) -> dict[str, object]:
    score = alignment_score(predicted, [pair.sure for pair in pairs], [pair.possible for pair in pairs])
    return {
        f"alignment_error_rate{suffix}": score.error_rate,
        f"alignment_precision{suffix}": score.precision,
        f"alignment_recall{suffix}": score.recall,
    }


def described(reading: AlignmentSettings) -> str:
    """A reading as text: the layer, the head if it is a single one, and whether it is shifted."""
    head = "" if reading.head is None else f" head {reading.head}"
    return f"{reading.layer}{head}{' shifted' if reading.shift else ''}"


def _stripped(pair: GoldPair) -> GoldPair:
    return GoldPair(_without_accents(pair.source), _without_accents(pair.target), pair.sure, pair.possible)


def _without_accents(text: str) -> str:
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(c for c in decomposed if not unicodedata.combining(c))


def sentence_chrf(answers: Sequence[Translation], pairs: Sequence[Pair]) -> list[float]:
    """The chrF of every answer, from 0 to 1, by sacrebleu's defaults."""
    chrf = sacrebleu.CHRF()
    return [
        chrf.sentence_score(answer.text, [pair.target]).score / 100 for answer, pair in zip(answers, pairs, strict=True)
    ]


def calibrate(translator: Translator, answers: Sequence[Translation], scores: Sequence[float]) -> Calibration:
    """Fit the quality that this translator estimates to true scores from 0 to 1, and let the translator use it."""
    known = {row: each for row, each in enumerate(_evidence(translator, answers)) if each is not None}
    true, weights = [scores[row] for row in known], fingerprint(translator.models[0])
    translator.quality.calibration = fit_calibration(list(known.values()), true, weights)
    return translator.quality.calibration


def quality_correlations(
    translator: Translator, answers: Sequence[Translation], scores: Sequence[float]
) -> dict[str, object]:
    """Pearson's and Spearman's correlation of every estimate with true scores, and of the calibrated quality."""
    known = {row: each for row, each in enumerate(_evidence(translator, answers)) if each is not None}
    true = [scores[row] for row in known]
    quality = [translator.quality.calibration.quality(each) for each in known.values()]
    picked = sorted({translator.quality.calibration.picked(each) for each in known.values()})
    error = sum(abs(a - b) for a, b in zip(quality, true, strict=True)) / max(len(true), 1)
    return {
        f"chrf_by_{name}": {"pearson": pearson(values, true), "spearman": spearman(values, true)}
        for name, values in (estimates(list(known.values())) | {"quality": quality}).items()
    } | {"quality_by": ", ".join(picked), "quality_error": error}


def _evidence(translator: Translator, answers: Sequence[Translation]) -> list[Evidence | None]:
    """The evidence of every answer of one sentence; None for texts of several sentences or none."""
    found: dict[int, Evidence] = {}
    for to in sorted({answer.to for answer in answers}):
        rows = [row for row, answer in enumerate(answers) if answer.to == to and len(answer.parts) == 1]
        parts = [answers[row].parts[0] for row in rows]
        said = translator.quality.evidence([source for source, _ in parts], [ids for _, ids in parts], to=to)
        found |= zip(rows, said, strict=True)
    return [found.get(row) for row in range(len(answers))]


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
