"""Quality estimation measured: how well each estimate follows the sentences' chrF, and its calibration."""

from __future__ import annotations

from collections.abc import Sequence

import sacrebleu

from regard.data.formats.pairs import Pair
from regard.inference.insight.quality import (
    Calibration,
    Evidence,
    estimates,
    fingerprint,
    fit_calibration,
    pearson,
    spearman,
)
from regard.inference.pipelines.translation import Translation
from regard.inference.pipelines.translator import Translator


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
