"""Speculative decoding: a draft model guesses the next tokens, and one pass of the model checks them all.

Leviathan et al. 2023 ("Fast Inference from Transformers via Speculative Decoding"), for one sentence at a time. The
draft is the model itself in int8: it reads a quarter of the bytes, and its guesses are nearly always right. The model
reads all guesses in one pass, which takes little longer than reading one token, because memory bandwidth limits both.
`step` always returns the model's own logits, so a search decides exactly as without a draft, greedily or by sampling.
"""

import sys
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.places import hook_tables
from regard.runtime import compiled
from regard.runtime.convert import fast_model, is_on_cpu
from regard.search.protocols import ExtendingModel, RollbackState, TokenSourceModel

FIRST_GUESSES = 5  # guesses at once, while nothing is known of their quality
WITHOUT_DRAFT = 64  # tokens that are decoded before a draft is made, which takes as long as some of them
MAX_GUESSES = 8  # guesses that the model can check in one pass at little more than the cost of one token


class SpeculativeModel:
    """A model and its draft, decoded as one model; several sentences or hypotheses are decoded without the draft."""

    def __init__(
        self,
        model: ExtendingModel,
        make_draft: Callable[[], ExtendingModel],
        end: int,
        longest: int | None = None,
        patience: int = 0,
    ):
        self.model, self.make_draft, self.end, self.longest = model, make_draft, end, longest
        self.patience = patience  # tokens still to be decoded before a draft is made
        self.hooks = hook_tables(getattr(model, "modules", list)())

    @cached_property
    def draft(self) -> ExtendingModel:
        """The draft model, made when it is first needed."""
        return self.make_draft()

    def start(self, source: Tensor, *others: Tensor) -> "SpeculativeState":
        """Start with whatever source the model takes, batch first. A recorded model must compute only what it says, so
        it is decoded without a draft; so is one that is changed by an intervention."""
        speculates = len(source) == 1 and self.patience <= 0 and not any(self.hooks)
        return SpeculativeState(self.model.start(source, *others), speculates=speculates)

    def step(self, tokens: Int[Tensor, "S W"], state: "SpeculativeState") -> Float[Tensor, "S W V"]:
        if not state.speculates:
            self.patience -= 1
            return self.model.step(tokens, state.model)
        token, state.steps_left = int(tokens), state.steps_left - 1
        if not state.accepts(token):
            self._guess_and_check(token, state)
        return state.logits[:, state.accepted : state.accepted + 1]

    def _guess_and_check(self, token: int, state: "SpeculativeState") -> None:
        """Let the draft guess the tokens after `token`, and the model read `token` and the guesses."""
        state.drop_rejected()
        unread, guesses = [*state.unread, token], list[int]()
        most = min(state.ahead, state.steps_left)
        if self.longest is not None:
            most = min(most, self.longest - int(state.model.length) - 1)
        while len(guesses) < most and self.end not in guesses:
            logits = self.draft.extend(_row(unread), state.draft)[0, -1]
            guesses.append(int(logits.numpy().argmax()))  # torch's argmax takes ten times as long
            unread = guesses[-1:]
        state.guesses, state.unread = guesses, unread if guesses else []
        state.logits, state.read = self.model.extend(_row([token, *guesses]), state.model), True


class SpeculativeState:
    """The states of the model and of its draft, and what was computed ahead of the search."""

    def __init__(self, model: RollbackState, *, speculates: bool):
        self.model, self.speculates = model, speculates
        self.guesses: list[int] = []  # all read by the model, and all but the last by the draft
        self.unread: list[int] = []  # tokens of the answer that the draft has not read
        self.logits: Tensor  # after the token before the guesses, and after each guess
        self.accepted = 0  # guesses that the search has confirmed
        self.ahead = 0  # guesses to make next
        self.read = False  # whether the model has read a token
        self.steps_left = sys.maxsize

    @cached_property
    def draft(self) -> RollbackState:
        return self.model.copy()

    def accepts(self, token: int) -> bool:
        """Whether a token is the next guess, and so has been read already."""
        if self.accepted == len(self.guesses) or self.guesses[self.accepted] != token:
            return False
        self.accepted += 1
        return True

    def expect(self, width: int, steps: int) -> None:
        """Guess from the first token on if there is only one hypothesis, and never beyond the last step."""
        self.ahead, self.steps_left = FIRST_GUESSES if width == 1 else 0, steps

    def drop_rejected(self) -> None:
        """Forget the guesses that were wrong. The next number of guesses follows from how many were right."""
        wrong = len(self.guesses) - self.accepted
        if wrong:
            self.model.rollback(wrong)
            self.draft.rollback(wrong - 1)  # the draft has not read its last guess
            self.unread = []
        if self.read:
            self.ahead = min(self.accepted + 2, MAX_GUESSES) if self.guesses else FIRST_GUESSES
        self.guesses, self.accepted = [], 0

    def reorder(self, origin: Int[Tensor, "S W2"]) -> None:
        self._stop_speculating()
        self.model.reorder(origin)

    def keep(self, sentences: Int[Tensor, "S2"]) -> None:
        if len(sentences) > 1:
            self._stop_speculating()
        self.model.keep(sentences)

    def copy(self) -> "SpeculativeState":
        """A state without guesses that has read the same."""
        state = SpeculativeState(self.model.copy(), speculates=self.speculates)
        if self.guesses:
            state.model.rollback(len(self.guesses) - self.accepted)
        return state

    def _stop_speculating(self) -> None:
        if self.speculates:
            self.drop_rejected()
        self.speculates = False


def decoding_model(model: nn.Module, precision: str, end: int) -> TokenSourceModel:
    """The model that a search runs: the fast version of a model, with speculative decoding where that is faster."""
    fast = fast_model(model, precision)
    if precision == "fp32" and isinstance(fast, ExtendingModel) and compiled.library() is not None and is_on_cpu(model):
        draft = partial(fast_model, model, "int8")
        return SpeculativeModel(fast, cast(Any, draft), end, learned_positions(model.config), WITHOUT_DRAFT)
    return cast(TokenSourceModel, fast)


def learned_positions(config: Any) -> int | None:
    """The number of learned positions of a model, which is the most tokens that it can read or write; None if its
    positions are not learned."""
    return config.max_length if getattr(config, "positions", "") == "learned" else None


def _row(tokens: list[int]) -> Int[Tensor, "1 T"]:
    return torch.tensor([tokens])
