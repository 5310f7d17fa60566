"""Several models that decide together."""

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@runtime_checkable
class DecoderState(Protocol):
    """What a model has read so far: the source, and the tokens of every hypothesis."""

    def reorder(self, origin: Int[Tensor, "S W2"]) -> None:
        """Let hypothesis w of sentence s continue its previous hypothesis origin[s, w]; the width may change."""

    def keep(self, sentences: Int[Tensor, "S2"]) -> None:
        """Keep these sentences only, in this order; a sentence may be named several times."""

    def copy(self) -> Any:
        """An independent state that has read the same."""


@runtime_checkable
class StepModel(Protocol):
    """A model that can be decoded token by token."""

    def step(self, tokens: Int[Tensor, "S W"], state: Any) -> Float[Tensor, "S W V"]:
        """Feed one token to every hypothesis and advance the state; returns the logits of the next token."""


@runtime_checkable
class TokenSourceModel(StepModel, Protocol):
    """A model whose source is a batch of token ids: an encoder-decoder, or a language model with its prompts."""

    def start(self, source: Int[Tensor, "S L"], source_mask: Bool[Tensor, "S L"]) -> Any:
        """The `DecoderState` after reading the source."""


@runtime_checkable
class ImageSourceModel(StepModel, Protocol):
    """A model whose source is a batch of images, as they come out of its preprocessing."""

    def start(self, images: Float[Tensor, "S C H W"]) -> Any:
        """The `DecoderState` after looking at the images."""


@runtime_checkable
class SearchAwareState(Protocol):
    """A state that prepares for the width and the length of the search."""

    def expect(self, width: int, steps: int) -> None:
        """Called before the first step: the number of hypotheses per sentence, and the largest number of steps."""


@runtime_checkable
class RollbackState(DecoderState, Protocol):
    """A state that can go back by some tokens."""

    length: int | Tensor  # number of tokens read

    def rollback(self, tokens: int) -> None:
        """Forget the last tokens."""


@runtime_checkable
class ExtendingModel(TokenSourceModel, Protocol):
    """A model that reads several tokens at once while decoding."""

    def extend(self, tokens: Int[Tensor, "R T"], state: Any) -> Float[Tensor, "R T V"]:
        """Feed T tokens to each of R hypotheses; returns the logits after every one of them."""


@runtime_checkable
class StaticState(DecoderState, Protocol):
    """A state whose storage can have a fixed shape, so that a step can be captured as a CUDA graph."""

    def storage_size(self, width: int, steps: int) -> Hashable:
        """The size of the storage for this many hypotheses and steps."""

    def reset_from(self, state: Any) -> None:
        """In a state of fixed shape: start over with what `state` has read."""


@runtime_checkable
class StaticModel(StepModel, Protocol):
    """A model that can be decoded without any shape changing from step to step."""

    def static_state(self, state: Any, width: int, size: Any) -> StaticState:
        """An empty state of fixed shape, large enough for what `state` has read and for `size`."""


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
