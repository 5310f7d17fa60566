"""Word alignment read from cross-attention: merging subwords, links, symmetrisation and alignment error rate.

A link is `(source word, target word)`, both 0-based. Weights have target words as rows and source words as columns,
like the heat maps of Bahdanau et al. (2015, figure 3).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from jaxtyping import Float

from regard.errors import DataError, UsageError

Link = tuple[int, int]
Weights = Float[np.ndarray, "T S"]
Reading = TypeVar("Reading")  # the type of a candidate's name, usually (layer, shift)

LinkMethod = Literal["argmax", "threshold", "mutual"]
SymmetryMethod = Literal["intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and"]

NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))  # diagonals last


# From attention to word weights


def token_alignment(cross: Float[np.ndarray, "H T S"], *, shift: bool) -> Float[np.ndarray, "T-1 S"]:
    """One row of weights for each target token, from the T decoder steps fed with start, y_1, ..., y_{T-1}.

    Without `shift`, y_t is read at the step that predicts it. This suits RNN decoders, which attend before they
    predict. With `shift`, y_t is read one step later, where it is the decoder's *input*, so the layer's query already
    contains the word (SHIFT-ATT of Chen et al., 2020, "Accurate Word Alignment Induction from Neural Machine
    Translation"). Heads are averaged. The end token gets no row, so T steps give T - 1 rows in both cases.
    """
    steps = cross[:, 1:] if shift else cross[:, :-1]
    return steps.mean(axis=0)


def word_weights(
    weights: Float[np.ndarray, "Tq Tk"],
    target_words_of: Sequence[int],
    source_words_of: Sequence[int],
    *,
    renormalise: bool = True,
) -> Weights:
    """Weights between words: the sum over a source word's pieces, the mean over a target word's pieces.

    Pieces with word index -1 (special tokens) are dropped. With `renormalise` each row is scaled to sum to 1; a row
    whose whole weight lay on special tokens stays 0. Without it a row sums to the weight that lay on words.
    """
    expected = (len(target_words_of), len(source_words_of))
    if weights.shape != expected:
        raise UsageError(f"weights have shape {weights.shape}, but the word indices describe {expected} tokens")
    rows, columns = _membership(target_words_of), _membership(source_words_of)
    pieces = np.maximum(rows.sum(axis=0), 1)  # a word without pieces gets a row of zeros
    merged = (rows / pieces).T @ weights.astype(np.float64) @ columns
    totals = merged.sum(axis=1, keepdims=True)
    return np.divide(merged, totals, out=np.zeros_like(merged), where=totals > 0) if renormalise else merged


def _membership(words_of: Sequence[int]) -> Float[np.ndarray, "tokens words"]:
    words = np.arange(max(words_of, default=-1) + 1)
    return (np.asarray(words_of, dtype=int)[:, None] == words).astype(np.float64)


def share_columns(weights: Weights) -> Weights:
    """Scale each column whose sum exceeds 1, a source word claimed by several target words, to sum to 1."""
    return weights / np.maximum(weights.sum(axis=0, keepdims=True), 1.0)


def merge_weights(forward: Weights, backward: Float[np.ndarray, "rows columns"]) -> Weights:
    """Soft agreement of two directions: the cell-wise geometric mean of `forward` and the transposed `backward`.

    It is large only where both models agree; use it with `links(..., "mutual")` or a threshold.
    """
    other = backward.T
    if forward.shape != other.shape:
        raise UsageError(f"forward is {forward.shape} but backward {backward.shape}; backward must be its transpose")
    return np.sqrt(forward * other)


# Links


def links(weights: Weights, method: LinkMethod = "argmax", *, threshold: float = 0.0) -> list[Link]:
    """Hard links from word weights, sorted.

    `argmax` gives each target word its heaviest source word; `mutual` keeps the cells that are heaviest in both their
    row and their column; `threshold` keeps every cell of at least `threshold`. No method links a cell of weight 0 or of
    less than `threshold`.
    """
    if method == "threshold" and threshold <= 0:
        raise UsageError(f"links by threshold need a threshold above 0; it is {threshold}")
    chosen = (weights > 0) & (weights >= threshold)
    if weights.size and method in ("argmax", "mutual"):
        chosen &= _heaviest_in_row(weights)
    if weights.size and method == "mutual":
        chosen &= _heaviest_in_row(weights.T).T
    return sorted((int(source), int(target)) for target, source in np.argwhere(chosen))


def _heaviest_in_row(weights: Weights) -> np.ndarray:
    return np.arange(weights.shape[1]) == weights.argmax(axis=1)[:, None]


def token_links(
    weights: Float[np.ndarray, "Tq Tk"], target_words_of: Sequence[int], source_words_of: Sequence[int]
) -> list[Link]:
    """Links by argmax of every target *token*: two words are linked if any of their pieces are."""
    source_of = np.asarray(source_words_of, dtype=int)
    pieces = np.flatnonzero(source_of >= 0)
    if not len(pieces):
        return []
    best = source_of[pieces[weights[:, pieces].argmax(axis=1)]]
    return sorted({(int(source), target) for source, target in zip(best, target_words_of, strict=True) if target >= 0})


def flip(pairs: Iterable[Link]) -> list[Link]:
    """The links of the opposite translation direction, as (source, target) of this direction."""
    return sorted((target, source) for source, target in pairs)


def compose_links(first: Iterable[Link], second: Iterable[Link]) -> list[Link]:
    """Links through a pivot language: from a source word to the target words that its pivot words are linked to."""
    onward: dict[int, list[int]] = {}
    for pivot, target in second:
        onward.setdefault(pivot, []).append(target)
    return sorted({(source, target) for source, pivot in first for target in onward.get(pivot, ())})


def to_pharaoh(pairs: Iterable[Link]) -> str:
    """Links as text, `0-0 1-2` (source-target)."""
    return " ".join(f"{source}-{target}" for source, target in sorted(pairs))


# Two directions


def symmetrise(forward: Iterable[Link], backward: Iterable[Link], method: SymmetryMethod = "grow-diag") -> list[Link]:
    """Combine the links of two directions (Koehn et al., 2003); both as (source, target), see `flip`.

    `grow-diag` starts from the intersection and adds neighbouring links of the union, diagonals included, while one of
    their words has no link. `-final` then adds any link with an unlinked word, `-final-and` only if both are unlinked.
    """
    forward, backward = set(forward), set(backward)
    if method == "union":
        return sorted(forward | backward)
    grown = forward & backward
    if method != "intersection":
        _grow(grown, forward | backward)
    if method in ("grow-diag-final", "grow-diag-final-and"):
        for pair in [*sorted(forward), *sorted(backward)]:
            if _is_free(pair, grown, both=method == "grow-diag-final-and"):
                grown.add(pair)
    return sorted(grown)


def _grow(grown: set[Link], union: set[Link]) -> None:
    """Add neighbours of `grown` from `union`, in passes in reading order, until nothing changes."""
    size = -1
    while size != len(grown):
        size = len(grown)
        for source, target in sorted(union):
            if (source, target) not in grown:
                continue
            for right, down in NEIGHBOURS:
                neighbour = source + right, target + down
                if neighbour in union and _is_free(neighbour, grown, both=False):
                    grown.add(neighbour)


def _is_free(pair: Link, taken: set[Link], *, both: bool) -> bool:
    source_free = all(source != pair[0] for source, _ in taken)
    target_free = all(target != pair[1] for _, target in taken)
    return (source_free and target_free) if both else (source_free or target_free)


# Scores


@dataclass(frozen=True)
class AlignmentScore:
    """Alignment quality over a corpus (Och and Ney, 2003); a ratio whose denominator is 0 counts as perfect."""

    precision: float
    recall: float
    error_rate: float


def alignment_score(
    predicted: Sequence[Iterable[Link]],
    sure: Sequence[Iterable[Link]],
    possible: Sequence[Iterable[Link]] | None = None,
) -> AlignmentScore:
    """Precision |A&P|/|A|, recall |A&S|/|S| and AER 1 - (|A&S| + |A&P|) / (|A| + |S|), counted over all sentences.

    Sure links count as possible, whether or not `possible` contains them.
    """
    possible = sure if possible is None else possible
    if not len(predicted) == len(sure) == len(possible):
        raise DataError(
            f"{len(predicted)} predicted alignments, {len(sure)} sure and {len(possible)} possible ones: "
            "give one of each for every sentence"
        )
    answered = agreed_sure = agreed_possible = wanted = 0
    for a, s, p in zip(map(set, predicted), map(set, sure), map(set, possible), strict=True):
        answered += len(a)
        wanted += len(s)
        agreed_sure += len(a & s)
        agreed_possible += len(a & (p | s))
    return AlignmentScore(
        precision=_ratio(agreed_possible, answered),
        recall=_ratio(agreed_sure, wanted),
        error_rate=1.0 - _ratio(agreed_sure + agreed_possible, answered + wanted),
    )


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def alignment_error_rate(
    predicted: Sequence[Iterable[Link]],
    sure: Sequence[Iterable[Link]],
    possible: Sequence[Iterable[Link]] | None = None,
) -> float:
    """AER over a corpus: 0 is perfect, 1 means that no link is right."""
    return alignment_score(predicted, sure, possible).error_rate


# Which layer aligns


def choose_layer(
    candidates: Mapping[Reading, Sequence[Iterable[Link]]],
    sure: Sequence[Iterable[Link]],
    possible: Sequence[Iterable[Link]] | None = None,
) -> Reading:
    """The candidate, usually (layer, shift), with the lowest AER against gold links; the first if several are equal."""
    return min(candidates, key=lambda reading: alignment_error_rate(candidates[reading], sure, possible))


def choose_layer_by_words(
    candidates: Mapping[Reading, Sequence[Iterable[Link]]],
    source_words: Sequence[Sequence[str]],
    target_words: Sequence[Sequence[str]],
) -> Reading:
    """Without gold links: the candidate whose linked source words predict the target words best."""
    return max(candidates, key=lambda reading: lexical_likelihood(candidates[reading], source_words, target_words))


def lexical_likelihood(
    linked: Sequence[Iterable[Link]],
    source_words: Sequence[Sequence[str]],
    target_words: Sequence[Sequence[str]],
    smoothing: float = 0.5,
) -> float:
    """Mean log p(target word | linked source word); each half of the sentences is scored with counts from the other
    half.

    Wrong links, such as those that are off by one or follow positions, pair words that do not recur in the other half.
    """
    pairs = [
        [(sources[s], targets[t]) for s, t in each]
        for each, sources, targets in zip(linked, source_words, target_words, strict=True)
    ]
    halves = [[pair for each in pairs[first::2] for pair in each] for first in (0, 1)]
    judged = [_log_likelihood(halves[1 - i], Counter(halves[i]), smoothing) for i in (0, 1)]
    return sum(judged) / max(sum(map(len, halves)), 1)


def _log_likelihood(pairs: Sequence[tuple[str, str]], counts: Counter[tuple[str, str]], smoothing: float) -> float:
    """Σ log p(t|s), where p interpolates the counts of the pair with those of the target word alone."""
    of_source, of_target, total = Counter[str](), Counter[str](), counts.total() + 1
    for (source, target), count in counts.items():
        of_source[source] += count
        of_target[target] += count
    chances = ((counts[s, t] + smoothing * (of_target[t] + 1) / total) / (of_source[s] + smoothing) for s, t in pairs)
    return math.fsum(math.log(chance) for chance in chances)
