"""How good a translator is on held-out pairs, and how well its attention aligns words."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import sacrebleu

from regard.data.phrasebook import phrases
from regard.data.text import GoldPair, Pair, read_gold, read_pairs
from regard.errors import DataError, UsageError
from regard.inference.alignment import (
    SymmetryMethod,
    alignment_score,
    flip,
    symmetrise,
)
from regard.inference.attending import AlignmentSettings, aligning_layers
from regard.inference.pipelines import Translator
from regard.training.recipe import PHRASEBOOK

Part = Literal["valid", "test"]


def held_out_pairs(
    translator: Translator,
    data: str,
    to: str = "",
    *,
    part: Part = "test",
    count: int = 500,
    min_words: int = 1,
    max_words: int = 60,
    seed: int = 1,
) -> list[Pair]:
    """The pairs to measure on: a file, or fresh held-out sentences of the built-in phrasebook."""
    targets = [to] if to else list(translator.tokenizer.target_languages)
    if data == PHRASEBOOK:
        drawn = [
            phrases(target, part=part, count=count, seed=seed, min_words=min_words, max_words=max_words)
            for target in targets
        ]
        return [pair for pairs in drawn for pair in pairs]
    if len(targets) > 1:
        raise UsageError(f"this model translates into {', '.join(targets)}; say which with --to")
    pairs = read_pairs(data, translator.tokenizer.source_language, targets[0])
    return [Pair(pair.source, pair.target, pair.links, to=targets[0], possible=pair.possible) for pair in pairs]


def evaluate_pairs(
    translator: Translator, pairs: Sequence[Pair], **changes: Any
) -> tuple[dict[str, object], list[str]]:
    """BLEU, chrF (sacrebleu's defaults), exact match and, where the pairs carry gold links, alignment error rate."""
    if not pairs:
        raise DataError("there is nothing to evaluate: no pair came")
    answers = [""] * len(pairs)
    for to in sorted({pair.to for pair in pairs}):
        rows = [row for row, pair in enumerate(pairs) if pair.to == to]
        for row, answer in zip(
            rows, translator.translate([pairs[row].source for row in rows], to=to, **changes), strict=True
        ):
            answers[row] = answer.text
    scores: dict[str, object] = {"sentences": len(pairs)} | text_scores(answers, [pair.target for pair in pairs])
    if translator.alignment is not None and all(pair.links is not None for pair in pairs):
        scores["alignment_error_rate"] = _gold_error_rate(translator, pairs)
    return scores, answers


def text_scores(answers: Sequence[str], references: Sequence[str]) -> dict[str, object]:
    """Corpus scores of detokenised text, with the signature that makes them comparable."""
    bleu, chrf = sacrebleu.BLEU(force=True), sacrebleu.CHRF()
    same = sum(answer == reference for answer, reference in zip(answers, references, strict=True))
    return {
        "bleu": bleu.corpus_score(answers, [references]).score,
        "chrf": chrf.corpus_score(answers, [references]).score,
        "exact": same / len(answers),
        "signature": str(bleu.get_signature()),
    }


def _gold_error_rate(translator: Translator, pairs: Sequence[Pair]) -> float:
    predicted: list[Any] = [()] * len(pairs)
    for to in sorted({pair.to for pair in pairs}):
        rows = [row for row, pair in enumerate(pairs) if pair.to == to]
        found = translator.align([pairs[row].source for row in rows], [pairs[row].target for row in rows], to=to)
        for row, links in zip(rows, found, strict=True):
            predicted[row] = links
    sure = [pair.links or () for pair in pairs]
    possible = [[*(pair.links or ()), *(pair.possible or ())] for pair in pairs]
    return alignment_score(predicted, sure, possible).error_rate


def evaluate_alignment(
    translator: Translator,
    gold: str,
    *,
    first: int = 1,
    backward: Translator | None = None,
    merge: str = "grow-diag",
    strip_accents: bool = False,
) -> dict[str, object]:
    """AER, precision and recall of the attention's links against hand-made ones, one way or merged with another."""
    if merge not in get_args(SymmetryMethod):
        raise UsageError(f"cannot merge by {merge!r}; known: {', '.join(get_args(SymmetryMethod))}")
    pairs = [_stripped(pair) if strip_accents else pair for pair in read_gold(gold, first)]
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    forward = translator.align(sources, targets)
    results = {"alignment_layer": _described(translator.aligning()), **_scored(forward, pairs, "")}
    if backward is not None:
        other = [flip(links) for links in backward.align(targets, sources)]
        merged = [symmetrise(one, two, merge) for one, two in zip(forward, other, strict=True)]  # type: ignore[arg-type]
        results |= _scored(other, pairs, "_backward") | _scored(merged, pairs, f"_{merge}")
    return results


def layer_error_rates(
    translator: Translator, gold: str, *, first: int = 1, strip_accents: bool = False
) -> dict[str, float]:
    """AER of every cross-attention layer, shifted and not: how the aligning layer of a model can be chosen."""
    pairs = [_stripped(pair) if strip_accents else pair for pair in read_gold(gold, first)]
    passes = translator.passes([pair.source for pair in pairs], [pair.target for pair in pairs])
    readings = [
        AlignmentSettings(layer=layer, shift=shift)
        for layer in aligning_layers(translator.models[0])
        for shift in (True, False)
    ]
    return {
        _described(reading): alignment_score(
            [each.links(reading) for each in passes], [p.sure for p in pairs], [p.possible for p in pairs]
        ).error_rate
        for reading in readings
    }


def _scored(
    predicted: Sequence[Iterable[tuple[int, int]]], pairs: Sequence[GoldPair], suffix: str
) -> dict[str, object]:
    score = alignment_score(predicted, [pair.sure for pair in pairs], [pair.possible for pair in pairs])
    return {
        f"alignment_error_rate{suffix}": score.error_rate,
        f"alignment_precision{suffix}": score.precision,
        f"alignment_recall{suffix}": score.recall,
    }


def _described(reading: AlignmentSettings) -> str:
    return f"{reading.layer}{' shifted' if reading.shift else ''}"


def _stripped(pair: GoldPair) -> GoldPair:
    return GoldPair(_without_accents(pair.source), _without_accents(pair.target), pair.sure, pair.possible)


def _without_accents(text: str) -> str:
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(c for c in decomposed if not unicodedata.combining(c))
