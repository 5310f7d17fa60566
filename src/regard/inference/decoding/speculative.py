"""Exact answers at the price of cheap ones: a draft guesses the next tokens, and one pass of the model checks them.

Leviathan et al. 2023 ("Fast Inference from Transformers via Speculative Decoding"), for one sentence at a time. The
draft is the model's own int8 form: it reads a quarter of the bytes, and is nearly always right. The model reads all
guesses in one pass, which takes little more time than reading one token: it waits for its weights, not for sums. What
`step` returns are always the model's own logits, so a search decides as without a draft, greedily or by chance.
"""

import sys
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention.core import Attend
from regard.inference.decoding.search import DecoderState, Steps
from regard.inference.fast import compiled
from regard.inference.fast.convert import inference_form, is_on_cpu

FIRST = 5  # guesses, where nothing is known of their quality
FURTHEST = 8  # guesses that the model reads in one pass with the token before them, at little more than its price


class Revocable(DecoderState, Protocol):
    """A decoding that can be copied, and go back."""

    length: int | Tensor  # tokens read

    def fork(self) -> "Revocable": ...

    def forget(self, tokens: int) -> None: ...


@runtime_checkable
class Extending(Protocol):
    """A model that reads several tokens at once; see `Steps`."""

    def start(self, source: Int[Tensor, "S L"], source_mask: Bool[Tensor, "S L"]) -> Revocable: ...

    def step(self, tokens: Int[Tensor, "S W"], state: Revocable) -> Float[Tensor, "S W V"]: ...

    def extend(self, tokens: Int[Tensor, "R T"], state: Revocable) -> Float[Tensor, "R T V"]: ...


class Drafted:
    """A model and its draft, decoded as one model; several sentences, or several hypotheses, go without the draft."""

    def __init__(self, model: Extending, make_draft: Callable[[], Extending], end: int, longest: int | None = None):
        self.model, self.make_draft, self.end, self.longest = model, make_draft, end, longest
        self.attends = [each for each in getattr(model, "modules", list)() if isinstance(each, Attend)]

    @cached_property
    def draft(self) -> Extending:
        """Made when it is first needed."""
        return self.make_draft()

    def start(self, source: Int[Tensor, "S L"], source_mask: Bool[Tensor, "S L"]) -> "DraftedState":
        recorded = any(each._forward_hooks for each in self.attends)  # then only what is said may be computed
        return DraftedState(self.model.start(source, source_mask), alone=len(source) == 1 and not recorded)

    def step(self, tokens: Int[Tensor, "S W"], state: "DraftedState") -> Float[Tensor, "S W V"]:
        if not state.alone:
            return self.model.step(tokens, state.model)
        token, state.steps_left = int(tokens), state.steps_left - 1
        if not state.foresaw(token):
            self._look_ahead(token, state)
        return state.logits[:, state.came : state.came + 1]

    def _look_ahead(self, token: int, state: "DraftedState") -> None:
        """Let the draft guess on from a token, and the model read the token and the guesses."""
        state.forget_wrong_guesses()
        unread, guesses = [*state.unread, token], list[int]()
        most = min(state.ahead, state.steps_left)
        if self.longest is not None:
            most = min(most, self.longest - int(state.model.length) - 1)
        while len(guesses) < most and self.end not in guesses:
            logits = self.draft.extend(_row(unread), state.draft)[0, -1]
            guesses.append(int(logits.numpy().argmax()))  # torch's own takes ten times as long
            unread = guesses[-1:]
        state.guesses, state.unread = guesses, unread if guesses else []
        state.logits, state.read = self.model.extend(_row([token, *guesses]), state.model), True


class DraftedState:
    """Two decodings in progress, and what was computed ahead of the search."""

    def __init__(self, model: Revocable, *, alone: bool):
        self.model, self.alone = model, alone
        self.guesses: list[int] = []  # read by the model, and all but the last by the draft
        self.unread: list[int] = []  # by the draft
        self.logits: Tensor  # after the token before the guesses, and after each of them
        self.came, self.ahead, self.read = 0, 0, False  # guesses that came true; those to make; whether it has begun
        self.steps_left = sys.maxsize

    @cached_property
    def draft(self) -> Revocable:
        return self.model.fork()

    def foresaw(self, token: int) -> bool:
        """Whether a token is the next guess, and so has been read already."""
        if self.came == len(self.guesses) or self.guesses[self.came] != token:
            return False
        self.came += 1
        return True

    def expect(self, width: int, steps: int) -> None:
        """Guess from the first token on if only one hypothesis will be followed, and never past the last step."""
        self.ahead, self.steps_left = FIRST if width == 1 else 0, steps

    def forget_wrong_guesses(self) -> None:
        """And look further ahead after many right ones; not at all at first, unless no beam is expected."""
        wrong = len(self.guesses) - self.came
        if wrong:
            self.model.forget(wrong)
            self.draft.forget(wrong - 1)  # it has not read the last one
            self.unread = []
        if self.read:
            self.ahead = min(self.came + 2, FURTHEST) if self.guesses else FIRST
        self.guesses, self.came = [], 0

    def reorder(self, origin: Int[Tensor, "S W2"]) -> None:
        self._go_on_without_draft()
        self.model.reorder(origin)

    def keep(self, sentences: Int[Tensor, "S2"]) -> None:
        if len(sentences) > 1:
            self._go_on_without_draft()
        self.model.keep(sentences)

    def _go_on_without_draft(self) -> None:
        if self.alone:
            self.forget_wrong_guesses()
        self.alone = False


def running_form(model: nn.Module, precision: str, end: int) -> Steps:
    """What a model is decoded by: its inference form, for single sentences with a draft where that pays."""
    form = inference_form(model, precision)
    if precision == "fp32" and isinstance(form, Extending) and compiled.library() is not None and is_on_cpu(model):
        draft = partial(inference_form, model, "int8")
        return cast(Steps, Drafted(form, cast(Any, draft), end, learned_positions(model.config)))
    return cast(Steps, form)


def learned_positions(config: Any) -> int | None:
    """How many tokens a model has learned positions for, if it learned them: it can neither read nor say more."""
    return config.max_length if getattr(config, "positions", "") == "learned" else None


def _row(tokens: list[int]) -> Int[Tensor, "1 T"]:
    return torch.tensor([tokens])
