"""Constrained beam search: answers that contain given terms, in one pass and at any width of the beam.

Hypotheses compete only with others that have met or begun as many terms (dynamic beam allocation, Post and Vilar 2018),
and a sentence with C terms gets at least C + 2 hypotheses, so that one can go on without a term until its place has
come. An answer cannot end before all terms are in it.

Attention shows the place of a term, and hypotheses pay for not following it (`GUIDANCE`):

- A term that begins pays for the weight that is missing on its source: in the look of the hypothesis that went on
  without the term at this place. Where that one looked at the source of the term, the term is in its place.
- A hypothesis that goes on after the model wanted to end pays for every token.
- Any other token pays for its weight on the source of a term: there the term is translated in other words, or again.

What a hypothesis has paid only orders the search; it is not in the scores of answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice, zip_longest
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.record import find_attention, record_modules
from regard.inference.decoding.candidates import Candidates, StepDecision
from regard.inference.decoding.constraints import Constraints, Progress

Step = Callable[[], Tensor]  # one step of a model: its logits [S W V]
GUIDANCE = 8.0  # the price of a weight of 1, in units of log-probability


class StepAttention:
    """Records one layer of attention to the source at every step of a search; one head of it, or the mean of all.

    With `shift` the weights of a step belong to the token that is fed, else to the one that is predicted.
    """

    def __init__(self, model: nn.Module, layer: str, head: int | None = None, *, shift: bool):
        self.modules, self.layer, self.head, self.shift = find_attention(model, layer), layer, head, shift

    def watch(self, step: Step) -> tuple[Float[Tensor, "S W V"], Float[Tensor, "S W L"]]:
        """Take the step; returns its logits and the attention to the source."""
        with record_modules(self.modules) as looks:
            logits = step()
        heads = looks[self.layer]
        return logits, heads.mean(dim=1) if self.head is None else heads[:, self.head]


class Deposit(NamedTuple):
    """What a hypothesis has paid for the place of a term; it gets it back if it does not go through with the term."""

    price: float
    met: int  # the number of terms that were met before


class Lane(NamedTuple):
    """What is known of a hypothesis besides its tokens and its score."""

    progress: Progress
    paid: float = 0.0  # its total is its log-probability less this
    overdue: bool = False  # whether the model wanted to end before all terms were said
    looks: Sequence[float] = ()  # the weights on the source of each term while the last token was predicted
    parent: int = 0  # the hypothesis of the step before that it continues
    natural: bool = False  # whether its last token is what the model would have said
    deposit: Deposit | None = None

    def pay(self, price: float, place: float) -> Lane:
        """Pay for what the last token looked at, and for the place where a term begins."""
        deposit = Deposit(place, self.progress.met_before) if place else self.deposit
        return self._replace(paid=self.paid + price + place, deposit=deposit)

    def after(self, token: int, log_p: float, *, overdue: bool) -> Lane:
        """The hypothesis with one more token."""
        progress, deposit, back = self.progress.after(token, log_p), self.deposit, 0.0
        if deposit is not None:
            said = progress.met.bit_count() > deposit.met
            if not said and not progress.open:
                back, deposit = deposit.price, None
            elif said and not progress.ended:
                deposit = None
        return Lane(progress, self.paid - back, overdue, self.looks, deposit=deposit)


class Continuation(NamedTuple):
    """A hypothesis and a token that may follow it."""

    total: float
    origin: int
    token: int
    lane: Lane
    ends: bool

    @property
    def order(self) -> float:
        return self.total + self.lane.progress.credit


class TermLanes:
    """The hypotheses of S sentences that must contain terms, and which of them are continued."""

    def __init__(
        self,
        constraints: Sequence[Constraints],
        limits: Sequence[int],
        width: int,
        end: int,
        attention: StepAttention | None = None,
    ):
        self.constraints, self.limits, self.asked, self.end = list(constraints), list(limits), width, end
        self.attention = attention
        self.lanes = [[Lane(Progress(each))] for each in constraints]
        self.next_lanes: list[list[Lane]] = []
        self.open: list[list[bool]] = []  # of the candidates of the last step: whether they may still lead to answers

    @property
    def width(self) -> int:
        """The number of hypotheses of the sentence with the most."""
        return max(map(self._width, self.constraints), default=1)

    def step(self, step: Step, totals: Float[Tensor, "S W"]) -> tuple[Float[Tensor, "S W V"], Float[Tensor, "S W"]]:
        """Take a step of the model; returns its logits, and the totals less what each hypothesis pays for its look."""
        if self.attention is None:
            return step(), totals
        logits, weights = self.attention.watch(step)
        looks, prices = self._looks(weights), torch.zeros_like(totals).tolist()
        for row, lanes in enumerate(self.lanes):
            seen = [looks[row][way] if self.attention.shift else lane.looks for way, lane in enumerate(lanes)]
            paying = [
                lane.pay(_price(lane, seen[way]), _place_price(lane, lanes, seen)) for way, lane in enumerate(lanes)
            ]
            for way, (lane, new) in enumerate(zip(lanes, paying, strict=True)):
                prices[row][way], lanes[way] = new.paid - lane.paid, new._replace(looks=looks[row][way])
        return logits, totals - totals.new_tensor(prices)

    def decide(self, totals: Float[Tensor, "S W"], log_p: Float[Tensor, "S W V"], length: int) -> StepDecision:
        """Choose the hypotheses of the next step from the log-probabilities of all tokens."""
        most = max(map(self._candidates, self.constraints))
        best, tokens = log_p.topk(min(most, log_p.shape[2]), dim=-1)
        listed = [sorted({token for lane in lanes for token in lane.progress.steps}) for lanes in self.lanes]
        longest = max(map(len, listed))
        filled = [[*each, *[self.end] * (longest - len(each))] for each in listed]
        index = torch.tensor(filled, dtype=torch.long, device=log_p.device)
        special = log_p.gather(2, index[:, None].expand(-1, log_p.shape[1], -1)).tolist()
        wants_end = (tokens[..., 0] == self.end).tolist()
        rows = zip(totals.tolist(), best.tolist(), tokens.tolist(), special, wants_end, listed, strict=True)
        chosen = [self._choose(row, length, *parts) for row, parts in enumerate(rows)]
        return self._decision(chosen, log_p)

    def advance(self) -> None:
        self.lanes = self.next_lanes

    def keep(self, rows: Sequence[int]) -> None:
        self.lanes = [self.lanes[row] for row in rows]
        self.constraints = [self.constraints[row] for row in rows]
        self.limits = [self.limits[row] for row in rows]

    def _width(self, constraints: Constraints) -> int:
        return max(self.asked, len(constraints.each) + (1 if self.attention is None else 2))

    def _candidates(self, constraints: Constraints) -> int:
        """How many tokens after a hypothesis are considered, those included that constraints forbid or list."""
        return self._width(constraints) + 2 + 2 * sum(len(each.forms) for each in constraints.each)

    def _group(self, each: Continuation) -> tuple[bool, int]:
        """Those with which a continuation competes: of as many terms, and as sure of their places. What a term pays for
        its place is known only after the next step."""
        progress = each.lane.progress
        return self.attention is None or not progress.began, progress.rank

    def _looks(self, weights: Float[Tensor, "S W L"]) -> list[list[list[float]]]:
        """The weight of every hypothesis on the source of each term."""
        most = max(len(each.each) for each in self.constraints)
        spans = weights.new_zeros(len(self.constraints), most, weights.shape[2])
        for row, each in enumerate(self.constraints):
            for number, constraint in enumerate(each.each):
                spans[row, number, list(constraint.source)] = 1.0
        return (weights @ spans.transpose(1, 2)).tolist()

    def _choose(
        self,
        row: int,
        length: int,
        totals: list[float],
        best: list[list[float]],
        tokens: list[list[int]],
        special: list[list[float]],
        wants_end: list[bool],
        listed: list[int],
    ) -> tuple[list[Continuation], list[Continuation]]:
        """The best continuations of one sentence, those of most terms first, and those that are continued."""
        groups: dict[tuple[bool, int], list[Continuation]] = {}
        for strict in (True, False):  # not strict: a given beginning of the answer may say a term once more
            for way, (lane, total) in enumerate(zip(self.lanes[row], totals, strict=False)):
                if total == -math.inf:
                    continue
                hurried = strict and self.limits[row] - length <= lane.progress.needed
                forbidden = lane.progress.forbidden if strict else frozenset[int]()
                known = islice(zip(tokens[way], best[way], strict=True), self._candidates(self.constraints[row]))
                others = ((token, log_p) for token, log_p in known if token not in forbidden)
                for each in self._continuations(lane, total, way, others, hurried, wants_end[way]):
                    groups.setdefault(self._group(each), []).append(each)
                for token, log_p in zip(listed, special[way], strict=False):
                    if token in lane.progress.steps and log_p > -math.inf and token not in forbidden:
                        new = _continued(lane, total, way, token, log_p, natural=token == tokens[way][0])
                        groups.setdefault(self._group(new), []).append(new)
            if groups:
                break
        for some in groups.values():
            some.sort(key=lambda each: -each.order)
        going = [[each for each in groups[key] if not each.ends] for key in sorted(groups, reverse=True)]
        live = _taken_in_turn(going, self._width(self.constraints[row]))
        first = [each for some in groups.values() for each in some if each.lane.progress.complete]
        first.sort(key=lambda each: -each.total)
        kept = {(each.origin, each.token) for each in first[: self.asked]}
        return [*first[: self.asked], *(each for each in live if (each.origin, each.token) not in kept)], live

    def _continuations(
        self, lane: Lane, total: float, way: int, others: Iterable[tuple[int, float]], hurried: bool, wants_end: bool
    ) -> list[Continuation]:
        """A hypothesis with tokens that say no term."""
        found, progress = list[Continuation](), lane.progress
        overdue = not progress.complete and (lane.overdue or wants_end)
        if overdue and self.attention is not None:
            lane, total = lane._replace(paid=lane.paid + GUIDANCE), total - GUIDANCE
        for token, log_p in others:
            if log_p == -math.inf or token in progress.steps:
                continue
            if token == self.end:
                if progress.complete:
                    found.append(Continuation(total + log_p, way, token, lane, True))
            elif progress.complete or not hurried:
                found.append(_continued(lane, total, way, token, log_p, overdue=overdue))
        return found

    def _decision(self, chosen: Sequence[tuple[list[Continuation], list[Continuation]]], like: Tensor) -> StepDecision:
        width, most = self.width, max(len(listed) for listed, _ in chosen)
        self.next_lanes = [[each.lane._replace(parent=each.origin) for each in live] for _, live in chosen]
        self.open = [[not each.lane.overdue for each in listed] for listed, _ in chosen]
        candidates = _table([listed for listed, _ in chosen], max(1, most), like)
        ends = [[each.ends for each in listed] + [False] * (max(1, most) - len(listed)) for listed, _ in chosen]
        live = _table([live for _, live in chosen], width, like)
        return StepDecision(candidates, torch.tensor(ends, device=like.device), live)


def _continued(
    lane: Lane, total: float, way: int, token: int, log_p: float, *, overdue: bool = False, natural: bool = False
) -> Continuation:
    after = lane.after(token, log_p, overdue=overdue)._replace(natural=natural)
    return Continuation(total + log_p + lane.paid - after.paid, way, token, after, False)


def _price(lane: Lane, looks: Sequence[float]) -> float:
    """What a hypothesis pays for its last token: nothing for terms of which the token is a part."""
    return GUIDANCE * sum(look for number, look in enumerate(looks) if not lane.progress.said >> number & 1)


def _place_price(lane: Lane, lanes: Sequence[Lane], looks: Sequence[Sequence[float]]) -> float:
    """What a hypothesis pays for the place of terms that began with its last token, by the looks of those that
    continue the same hypothesis without them."""
    price, began = 0.0, 0 if lane.natural else lane.progress.began
    for number in range(began.bit_length()):
        if began >> number & 1:
            others = [
                look[number]
                for other, look in zip(lanes, looks, strict=True)
                if look and other.parent == lane.parent and not other.progress.said >> number & 1
            ]
            price += GUIDANCE * (1.0 - max(others, default=0.0))
    return price


def _taken_in_turn(groups: Sequence[Sequence[Continuation]], width: int) -> list[Continuation]:
    """The best of every group, then the second of every group, and so on; those that wanted to end come last."""
    turns = [each for each in chain.from_iterable(zip_longest(*groups)) if each is not None]
    return list(islice(chain((e for e in turns if not e.lane.overdue), (e for e in turns if e.lane.overdue)), width))


def _table(rows: Sequence[Sequence[Continuation]], width: int, like: Tensor) -> Candidates:
    """Continuations as tensors; places without any have an infinite cost."""
    nothing = (-math.inf, 0, 0)
    filled = [[(each.total, each.origin, each.token) for each in row] + [nothing] * (width - len(row)) for row in rows]
    totals: Float[Tensor, "S C"] = torch.tensor([[e[0] for e in row] for row in filled], device=like.device)
    origin: Int[Tensor, "S C"] = torch.tensor([[e[1] for e in row] for row in filled], device=like.device)
    token: Int[Tensor, "S C"] = torch.tensor([[e[2] for e in row] for row in filled], device=like.device)
    return Candidates(totals, origin, token)
