"""Several models that decide together."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.search.protocols import StepModel


class Ensemble:
    """The mean of the probabilities of several models at every step."""

    def __init__(self, members: Sequence[StepModel]):
        self.members = members

    def start(self, *source: Tensor) -> "EnsembleState":
        """Start every member with the same source."""
        members: Iterable[Any] = self.members
        return EnsembleState([member.start(*source) for member in members])

    def step(self, tokens: Int[Tensor, "S W"], state: "EnsembleState") -> Float[Tensor, "S W V"]:
        logits = [member.step(tokens, own) for member, own in zip(self.members, state.states, strict=True)]
        return torch.stack([each.log_softmax(dim=-1) for each in logits]).logsumexp(dim=0) - math.log(len(logits))

    def static_state(self, state: "EnsembleState", width: int, size: Sequence[Any]) -> "EnsembleState":
        """A state of fixed shape of every member."""
        members: Iterable[tuple[Any, Any, Any]] = zip(self.members, state.states, size, strict=True)
        return EnsembleState([member.static_state(own, width, each) for member, own, each in members])


class EnsembleState:
    """The states of an ensemble's members; every change is made to all of them."""

    def __init__(self, states: list[Any]):
        self.states = states

    def storage_size(self, width: int, steps: int) -> tuple[Any, ...]:
        return tuple(state.storage_size(width, steps) for state in self.states)

    def reset_from(self, state: "EnsembleState") -> None:
        for mine, other in zip(self.states, state.states, strict=True):
            mine.reset_from(other)

    def reorder(self, origin: Int[Tensor, "S W2"]) -> None:
        for state in self.states:
            state.reorder(origin)

    def keep(self, sentences: Int[Tensor, "S2"]) -> None:
        for state in self.states:
            state.keep(sentences)

    def copy(self) -> "EnsembleState":
        return EnsembleState([state.copy() for state in self.states])
