"""Scores of captions against several references each: BLEU, CIDEr-D and ROUGE-L, as COCO's evaluation computes them.

Texts are words separated by spaces (`data/captions/reading.py` makes them so). All scores are of the whole corpus, not
means of BLEU over sentences.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

ORDERS = 4  # n-grams of 1 to 4 words
CIDER_SIGMA, CIDER_SCALE = 6.0, 10.0  # Vedantam et al. 2015, CIDEr-D
ROUGE_BETA = 1.2

Words = Sequence[str]
Grams = Counter[tuple[str, ...]]


def caption_scores(captions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """BLEU-1 to 4 in percent, CIDEr-D and ROUGE-L."""
    written, known = [text.split() for text in captions], [[text.split() for text in some] for some in references]
    scores = {f"bleu{order}": 100 * score for order, score in enumerate(bleu(written, known), 1)}
    return scores | {"cider": cider_d(written, known), "rouge": rouge_l(written, known)}


def bleu(captions: Sequence[Words], references: Sequence[Sequence[Words]]) -> list[float]:
    """BLEU-1 to 4 of a corpus (Papineni et al. 2002): clipped matches and lengths are summed over all captions; the
    length of a caption is compared with the closest reference."""
    right, made = [0] * ORDERS, [0] * ORDERS
    length = expected = 0
    for words, known in zip(captions, references, strict=True):
        length += len(words)
        expected += min((abs(len(each) - len(words)), len(each)) for each in known)[1]
        for order in range(1, ORDERS + 1):
            found, most = _grams(words, order), Counter[tuple[str, ...]]()
            for each in known:
                most |= _grams(each, order)
            right[order - 1] += (found & most).total()
            made[order - 1] += found.total()
    penalty = math.exp(min(0.0, 1 - expected / length)) if length else 0.0
    scores, product = [], 1.0
    for order in range(ORDERS):
        product *= right[order] / made[order] if made[order] else 0.0
        scores.append(penalty * product ** (1 / (order + 1)))
    return scores


def cider_d(captions: Sequence[Words], references: Sequence[Sequence[Words]]) -> float:
    """CIDEr-D: the cosine of clipped TF-IDF vectors, less where lengths differ, times 10; the mean over references,
    orders and captions. A rare n-gram is one that few images have in their references."""
    frequency = Counter[tuple[str, ...]]()
    for known in references:
        frequency.update({gram for each in known for order in range(1, ORDERS + 1) for gram in _grams(each, order)})
    images = math.log(len(references))

    def vectors(words: Words) -> list[dict[tuple[str, ...], float]]:
        return [
            {gram: count * (images - math.log(max(1, frequency[gram]))) for gram, count in _grams(words, order).items()}
            for order in range(1, ORDERS + 1)
        ]

    total = 0.0
    for words, known in zip(captions, references, strict=True):
        mine = vectors(words)
        for each in known:
            penalty = math.exp(-((_bigrams(words) - _bigrams(each)) ** 2) / (2 * CIDER_SIGMA**2))
            alike = sum(_clipped_cosine(one, other) for one, other in zip(mine, vectors(each), strict=True))
            total += CIDER_SCALE * penalty * alike / ORDERS / len(known)
    return total / len(captions)


def rouge_l(captions: Sequence[Words], references: Sequence[Sequence[Words]]) -> float:
    """ROUGE-L: the F-measure of the longest common subsequence, with the best precision and recall among references."""
    total = 0.0
    for words, known in zip(captions, references, strict=True):
        common = [(_common_length(words, each), len(each)) for each in known]
        precision = max(same for same, _ in common) / max(1, len(words))
        recall = max(same / max(1, length) for same, length in common)
        if precision and recall:
            total += (1 + ROUGE_BETA**2) * precision * recall / (recall + ROUGE_BETA**2 * precision)
    return total / len(captions)


def _grams(words: Words, order: int) -> Grams:
    return Counter(tuple(words[at : at + order]) for at in range(len(words) - order + 1))


def _bigrams(words: Words) -> int:
    """The length by which CIDEr-D compares texts."""
    return max(0, len(words) - 1)


def _clipped_cosine(one: dict[tuple[str, ...], float], other: dict[tuple[str, ...], float]) -> float:
    product = sum(min(value, other[gram]) * other[gram] for gram, value in one.items() if gram in other)
    norms = math.sqrt(sum(v * v for v in one.values())) * math.sqrt(sum(v * v for v in other.values()))
    return product / norms if norms else 0.0


def _common_length(first: Words, second: Words) -> int:
    """The length of the longest common subsequence."""
    row = [0] * (len(second) + 1)
    for word in first:
        before = 0
        for at, other in enumerate(second, 1):
            before, row[at] = row[at], before + 1 if word == other else max(row[at], row[at - 1])
    return row[-1]
