"""Token predictions: the most probable tokens at each place of a text, beside the token that is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import UsageError
from regard.search.candidates import truncated_distribution
from regard.search.settings import SearchSettings, Vocabulary

TOP = 10  # tokens listed for each place
Pieces = Callable[[Sequence[int]], list[str]]


class TokenProbability(NamedTuple):
    """A token and its probability at a place; `drawn`: the probability that sampling draws it with given settings."""

    token: str
    probability: float
    drawn: float | None = None


@dataclass(frozen=True)
class TokenPrediction:
    """The most probable tokens at one place of a text, and the actual token if it is known.

    `place` counts the tokens of the text from 0: for a language model, the token after which the next is predicted; for
    a masked language model, the masked token. `rank` is 1 if the actual token was the most probable; `generated` is
    True if the model itself generated it.
    """

    place: int
    choices: list[TokenProbability]
    actual: TokenProbability | None = None
    rank: int | None = None
    generated: bool = False


def check_top(top: int) -> None:
    """Refuse to list less than one token for a place."""
    if top < 1:
        raise UsageError(f"top is {top}; expected at least 1")


def predict_tokens(
    log_p: Float[Tensor, "T V"],
    actual: Sequence[int],
    *,
    first: int,
    generated_from: int,
    top: int,
    settings: SearchSettings,
    vocabulary: Vocabulary,
    pieces: Pieces,
) -> list[TokenPrediction]:
    """The predictions of the next token at the places from `first` on.

    `actual` has the tokens that followed, one fewer than there are places if the last is not known; the model generated
    those from place `generated_from` on. Of `settings` only those that shape the distribution count: temperature,
    top_k, top_p, min_p, or none of them for greedy decoding.
    """
    drawn = _drawn(log_p, settings, vocabulary)
    count = min(top, log_p.shape[1])
    best = log_p.topk(count, dim=-1).indices
    found = []
    for row, tokens in enumerate(best.tolist()):
        known = actual[row] if row < len(actual) else None
        named = [*tokens, *([] if known is None else [known])]
        shares = zip(log_p[row, named].exp().tolist(), drawn[row, named].tolist(), strict=True)
        choices = [TokenProbability(piece, *share) for piece, share in zip(pieces(named), shares, strict=True)]
        rank = None if known is None else int((log_p[row] > log_p[row, known]).sum()) + 1
        place = first + row
        own = known is not None and place + 1 >= generated_from
        found.append(TokenPrediction(place, choices[:count], None if known is None else choices[-1], rank, own))
    return found


def _drawn(log_p: Float[Tensor, "T V"], settings: SearchSettings, vocabulary: Vocabulary) -> Float[Tensor, "T V"]:
    """The probability that each token is drawn; 0 or 1 for greedy decoding."""
    possible = log_p.index_fill(
        1, torch.tensor(vocabulary.forbidden, dtype=torch.long, device=log_p.device), -torch.inf
    )
    if not settings.sample:
        return torch.zeros_like(log_p).scatter_(1, possible.argmax(dim=-1, keepdim=True), 1.0)
    weight, order = truncated_distribution(possible, settings)
    return torch.zeros_like(log_p).scatter_(1, order, weight / weight.sum(dim=-1, keepdim=True))
