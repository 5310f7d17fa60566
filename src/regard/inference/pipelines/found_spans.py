"""What a model finds in a text: the tag of a word, and the part that answers a question."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

LONGEST_ANSWER = 30  # tokens, as SQuAD's own systems have it


class TaggedWord(NamedTuple):
    """A word of a text, its most probable tag, and the probability."""

    word: str
    tag: str
    probability: float


class FoundAnswer(NamedTuple):
    """A part of a text: `text[begin:end]`; empty if the text does not have the answer."""

    text: str
    probability: float
    begin: int
    end: int


def tagged_words(
    words: Sequence[str], words_of: Sequence[int], scores: Float[Tensor, "T L"], names: Sequence[str]
) -> list[TaggedWord]:
    """Every word with the tag of its first token; `words_of` has the word of each token.

    A word without a token, such as one that was cut off, gets the first tag with probability 0.
    """
    firsts: dict[int, int] = {}
    for place, word in enumerate(words_of):
        firsts.setdefault(word, place)
    best = scores.softmax(dim=-1).max(dim=-1)
    return [
        TaggedWord(word, names[int(best.indices[firsts[n]])], float(best.values[firsts[n]]))
        if n in firsts
        else TaggedWord(word, names[0], 0.0)
        for n, word in enumerate(words)
    ]


def best_spans(
    logits: Float[Tensor, "T 2"], spans: Sequence[tuple[int, int, int]], text: str, top: int
) -> list[FoundAnswer]:
    """The most probable answers: P(begins at i) · P(ends at j), i ≤ j < i + 30, both in the second text.

    The first token stands for "not in this text".
    """
    chances = logits.softmax(dim=0)
    begins, ends = chances.unbind(-1)
    product = begins[:, None] * ends[None]  # [T T]
    allowed = logits.new_zeros(product.shape).bool()
    places = [place for place, (side, _, _) in enumerate(spans) if side == 1]
    if places:
        first, last = places[0], places[-1] + 1
        allowed[first:last, first:last] = True
    allowed = allowed.triu().tril(LONGEST_ANSWER - 1)
    allowed[0, 0] = True
    best = product.where(allowed, -1.0).flatten().topk(min(top, int(allowed.sum())))
    found = []
    for probability, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        i, j = divmod(place, len(spans))
        begin, end = (spans[i][1], spans[j][2]) if place else (0, 0)
        found.append(FoundAnswer(text[begin:end], probability, begin, end))
    return found
