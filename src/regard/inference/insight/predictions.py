"""What a model expects at the places of a text: the most probable tokens, beside the one that came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import UsageError
from regard.inference.decoding.candidates import SearchSettings, Vocabulary, drawable

TOP = 10  # tokens named for each place
Pieces = Callable[[Sequence[int]], list[str]]


class Choice(NamedTuple):
    """A token that may stand at a place, and how probable it is; `drawn`: how likely it is drawn by some settings."""

    token: str
    probability: float
    drawn: float | None = None


@dataclass(frozen=True)
class Foretold:
    """The most probable tokens for one place of a text, and, where it is known, the token that came.

    `place` counts the text's tokens from 0: for a language model the one after which the next is foretold, for a BERT
    the hidden one. `rank` is 1 if what came was the most probable; `written` if the model itself wrote it.
    """

    place: int
    choices: list[Choice]
    came: Choice | None = None
    rank: int | None = None
    written: bool = False


def check_top(top: int) -> None:
    """Refuse to name less than one token a place."""
    if top < 1:
        raise UsageError(f"top is {top}; expected at least 1")


def foretell(
    log_p: Float[Tensor, "T V"],
    came: Sequence[int],
    *,
    first: int,
    written: int,
    top: int,
    settings: SearchSettings,
    vocabulary: Vocabulary,
    pieces: Pieces,
) -> list[Foretold]:
    """The next token as it is foretold at the places from `first` on; the model wrote those from `written` on.

    `came` has the tokens that followed, one fewer than there are places where the last is not known. Of `settings`
    only what shapes the distribution counts: temperature, top_k, top_p, min_p, or none of them for the best token.
    """
    drawn = _drawn(log_p, settings, vocabulary)
    count = min(top, log_p.shape[1])
    best = log_p.topk(count, dim=-1).indices
    found = []
    for row, tokens in enumerate(best.tolist()):
        known = came[row] if row < len(came) else None
        named = [*tokens, *([] if known is None else [known])]
        shares = zip(log_p[row, named].exp().tolist(), drawn[row, named].tolist(), strict=True)
        choices = [Choice(piece, *share) for piece, share in zip(pieces(named), shares, strict=True)]
        rank = None if known is None else int((log_p[row] > log_p[row, known]).sum()) + 1
        place = first + row
        own = known is not None and place + 1 >= written
        found.append(Foretold(place, choices[:count], None if known is None else choices[-1], rank, own))
    return found


def _drawn(log_p: Float[Tensor, "T V"], settings: SearchSettings, vocabulary: Vocabulary) -> Float[Tensor, "T V"]:
    """How likely each token is drawn; all or nothing where the best is always taken."""
    possible = log_p.index_fill(
        1, torch.tensor(vocabulary.forbidden, dtype=torch.long, device=log_p.device), -torch.inf
    )
    if not settings.sample:
        return torch.zeros_like(log_p).scatter_(1, possible.argmax(dim=-1, keepdim=True), 1.0)
    weight, order = drawable(possible, settings)
    return torch.zeros_like(log_p).scatter_(1, order, weight / weight.sum(dim=-1, keepdim=True))
