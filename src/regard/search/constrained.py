"""Constrained beam search: answers that contain given terms, at any width of the beam.

An answer cannot end before all its terms are in it. Where they go depends on what is known:

- With an outline (`Constraints.outline`), an answer that was found without constraints, the places of terms are known.
  Hypotheses follow the outline and keep count of how far they have come in it. Where a term belongs, only the term may
  follow. Any other token that is not in the outline, and any token of the outline that is left out, costs `DEVIATION`.
  So the words that a term replaces are not said beside it, and the words around it change only where the model sees a
  good reason, such as agreement.
- Without an outline, terms go where they are most probable. Hypotheses compete only with others that have met or begun
  as many terms (dynamic beam allocation, Post and Vilar 2018), and a sentence with C terms gets at least C + 1
  hypotheses.

What a hypothesis has paid only orders the search; it is not in the scores of answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, zip_longest
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.search.candidates import Candidates, StepDecision
from regard.search.constraints import Constraints, Progress

DEVIATION = 4.0  # the price of a token that differs from the outline, in units of log-probability
LOOKAHEAD = 3  # tokens of the outline that may be left out at once


class Lane(NamedTuple):
    """What is known of a hypothesis besides its tokens and its total."""

    progress: Progress
    place: int = 0  # how far it has come in the outline
    extra: int = 0  # tokens since then that are not in the outline
    paid: float = 0.0  # its total is its log-probability less this
    credit: float = 0.0  # what its terms cost where they had to come

    @property
    def due(self) -> int:
        """The constraints that must be met now, as a bit mask."""
        outline = self.progress.constraints.outline
        if outline is None or self.progress.complete:
            return 0
        return sum(
            1 << number
            for number, (start, _) in enumerate(outline.places)
            if start <= self.place and not self.progress.met >> number & 1
        )

    @property
    def order(self) -> float:
        """What is added to its total when hypotheses of one sentence are compared."""
        return self.credit if self.progress.constraints.outline else self.progress.credit

    def after(self, token: int, log_p: float, credit: float, end: int) -> Lane:
        """The hypothesis with one more token."""
        before, outline = self.progress, self.progress.constraints.outline
        progress = before if token == end else before.after(token, log_p)
        if outline is None:
            return Lane(progress)
        place, extra, price = self.place, self.extra, 0.0
        if new := progress.met & ~before.met:
            starts, ends = zip(*(span for number, span in enumerate(outline.places) if new >> number & 1), strict=True)
            place, extra, price = max(place, *ends), 0, DEVIATION * max(0, max(starts) - place - extra)
        elif not credit:
            place, extra, price = self._moved(outline.tokens, token, end)
        return Lane(progress, place, extra, self.paid + price, self.credit + credit)

    def _moved(self, tokens: Sequence[int], token: int, end: int) -> tuple[int, int, float]:
        """How far a hypothesis has come in the outline after a token, the tokens since then that are not in it, and
        what it pays: as many tokens as are not in the outline may be left out of it for nothing."""
        if token == end:
            skipped = len(tokens) - self.place
        else:
            window = tokens[self.place : self.place + self.extra + LOOKAHEAD]
            if token not in window:
                return self.place, self.extra + 1, DEVIATION
            skipped = window.index(token)
        return self.place + skipped + 1, 0, DEVIATION * max(0, skipped - self.extra)


class Continuation(NamedTuple):
    """A hypothesis and a token that may follow it."""

    total: float
    origin: int
    token: int
    lane: Lane
    ends: bool = False

    @property
    def order(self) -> float:
        return self.total + self.lane.order


class TermLanes:
    """The hypotheses of S sentences that must contain terms, and which of them are continued."""

    def __init__(self, constraints: Sequence[Constraints], limits: Sequence[int], width: int, end: int):
        self.constraints, self.limits, self.asked, self.end = list(constraints), list(limits), width, end
        self.lanes = [[Lane(Progress(each))] for each in constraints]
        self.next_lanes: list[list[Lane]] = []
        self.continuing: Bool[Tensor, V] | None = None
        self.prices: list[dict[tuple[int, int], float]] = []  # paid by each candidate of the last step

    @property
    def width(self) -> int:
        """The number of hypotheses of the sentence with the most."""
        return max(map(self._width, self.constraints), default=1)

    def paid(self, row: int, origin: int, token: int) -> float:
        """What a candidate of the last step has paid."""
        return self.prices[row][origin, token]

    def decide(self, totals: Float[Tensor, "S W"], log_p: Float[Tensor, "S W V"], length: int) -> StepDecision:
        """Choose the hypotheses of the next step from the log-probabilities of all tokens."""
        self._keep_words_whole(log_p)
        most = max(map(self._candidates, range(len(self.lanes))))
        best, tokens = log_p.topk(min(most, log_p.shape[2]), dim=-1)
        listed = [sorted(self._listed(row)) for row in range(len(self.lanes))]
        longest = max(map(len, listed))
        filled = [[*each, *[self.end] * (longest - len(each))] for each in listed]
        index = torch.tensor(filled, dtype=torch.long, device=log_p.device)
        special = log_p.gather(2, index[:, None].expand(-1, log_p.shape[1], -1)).tolist()
        rows = zip(totals.tolist(), best.tolist(), tokens.tolist(), special, listed, strict=True)
        chosen = [self._choose(row, length, *parts) for row, parts in enumerate(rows)]
        return self._decision(chosen, log_p)

    def advance(self) -> None:
        self.lanes = self.next_lanes

    def keep(self, rows: Sequence[int]) -> None:
        self.lanes = [self.lanes[row] for row in rows]
        self.constraints = [self.constraints[row] for row in rows]
        self.limits = [self.limits[row] for row in rows]

    def _width(self, constraints: Constraints) -> int:
        return self.asked if constraints.outline else max(self.asked, len(constraints.each) + 1)

    def _candidates(self, row: int) -> int:
        """How many tokens after a hypothesis are considered, those included that constraints forbid or list."""
        constraints = self.constraints[row]
        others = (
            max(len(lane.progress.forbidden) for lane in self.lanes[row])
            if constraints.outline
            else 2 * constraints.forms
        )
        return self._width(constraints) + 2 + others

    def _listed(self, row: int) -> set[int]:
        """Tokens that are considered however improbable: those of terms, and the next one of the outline."""
        outline, lanes = self.constraints[row].outline, self.lanes[row]
        found = {token for lane in lanes for token in lane.progress.steps}
        if outline is not None:
            following = (*outline.tokens, self.end)
            found |= {following[min(lane.place, len(outline.tokens))] for lane in lanes}
        return found

    def _keep_words_whole(self, log_p: Float[Tensor, "S W V"]) -> None:
        """Where a term in its place has just been said, forbid the tokens that would continue its word."""
        for row, lanes in enumerate(self.lanes):
            if self.constraints[row].outline is not None:
                for way, lane in enumerate(lanes):
                    if lane.progress.ended:
                        log_p[row, way].masked_fill_(self._continuing(log_p), -math.inf)

    def _continuing(self, log_p: Float[Tensor, "S W V"]) -> Bool[Tensor, V]:
        """The tokens that continue a word."""
        if self.continuing is None:
            self.continuing = torch.zeros(log_p.shape[2], dtype=torch.bool)
            self.continuing[list(self.constraints[0].kinds.continuing)] = True
            self.continuing = self.continuing.to(log_p.device)
        return self.continuing

    def _choose(
        self,
        row: int,
        length: int,
        totals: list[float],
        best: list[list[float]],
        tokens: list[list[int]],
        special: list[list[float]],
        listed: list[int],
    ) -> tuple[list[Continuation], list[Continuation]]:
        """The best continuations of one sentence, those of most terms first, and those that are continued."""
        constraints, groups, most = self.constraints[row], dict[int, list[Continuation]](), self._candidates(row)
        for strict in (True, False):  # not strict: a given beginning of the answer may say a term once more
            for way, (lane, total) in enumerate(zip(self.lanes[row], totals, strict=False)):
                if total > -math.inf:
                    known = islice(zip(tokens[way], best[way], strict=True), most)
                    either = dict(chain(known, zip(listed, special[way], strict=False)))
                    left = self.limits[row] - length
                    for each in self._continuations(lane, total, way, either, left, strict):
                        key = 0 if constraints.outline else each.lane.progress.rank
                        groups.setdefault(key, []).append(each)
            if groups:
                break
        for some in groups.values():
            some.sort(key=lambda each: -each.order)
        going = [[each for each in groups[key] if not each.ends] for key in sorted(groups, reverse=True)]
        turns = (each for each in chain.from_iterable(zip_longest(*going)) if each is not None)
        live = list(islice(turns, self._width(constraints)))  # the best of every group, then the second of every group
        first = [each for some in groups.values() for each in some if each.lane.progress.complete]
        first.sort(key=lambda each: -each.total)
        kept = {(each.origin, each.token) for each in first[: self.asked]}
        return [*first[: self.asked], *(each for each in live if (each.origin, each.token) not in kept)], live

    def _continuations(
        self, lane: Lane, total: float, way: int, tokens: dict[int, float], left: int, strict: bool
    ) -> Iterator[Continuation]:
        """A hypothesis with each of the tokens that may follow it."""
        progress, due = lane.progress, lane.due
        if strict and left <= progress.needed:
            due = progress.constraints.all & ~progress.met
        steps = progress.steps_of(due) if due else frozenset[int]()
        complete, forbidden = progress.complete, progress.forbidden if strict else ()
        allowed = {
            token: log_p
            for token, log_p in tokens.items()
            if log_p > -math.inf
            and (complete or token != self.end)
            and token not in forbidden
            and (not due or token in steps or not strict)
        }
        credit = -max(allowed.values(), default=0.0) if due else 0.0
        for token, log_p in allowed.items():
            after = lane.after(token, log_p, credit, self.end)
            paid = after.paid - lane.paid
            yield Continuation(total + log_p - paid, way, token, after, token == self.end)

    def _decision(self, chosen: Sequence[tuple[list[Continuation], list[Continuation]]], like: Tensor) -> StepDecision:
        self.next_lanes = [[each.lane for each in live] for _, live in chosen]
        self.prices = [{(each.origin, each.token): each.lane.paid for each in listed} for listed, _ in chosen]
        most = max(1, *(len(listed) for listed, _ in chosen))
        candidates = _table([listed for listed, _ in chosen], most, like)
        ends = [[each.ends for each in listed] + [False] * (most - len(listed)) for listed, _ in chosen]
        live = _table([live for _, live in chosen], max(1, *(len(live) for _, live in chosen)), like)
        return StepDecision(candidates, torch.tensor(ends, device=like.device), live)


def _table(rows: Iterable[Sequence[Continuation]], width: int, like: Tensor) -> Candidates:
    """Continuations as tensors; places without any have an infinite cost."""
    nothing = (-math.inf, 0, 0)
    filled = [[(each.total, each.origin, each.token) for each in row] + [nothing] * (width - len(row)) for row in rows]
    totals: Float[Tensor, "S C"] = torch.tensor([[e[0] for e in row] for row in filled], device=like.device)
    origin: Int[Tensor, "S C"] = torch.tensor([[e[1] for e in row] for row in filled], device=like.device)
    token: Int[Tensor, "S C"] = torch.tensor([[e[2] for e in row] for row in filled], device=like.device)
    return Candidates(totals, origin, token)
