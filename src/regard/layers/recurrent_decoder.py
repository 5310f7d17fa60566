"""Recurrent decoders that look at a memory before every token: what models with such a decoder share."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from regard.attention.scores import Attended
from regard.layers.recurrent import Recurrent


@dataclass(frozen=True)
class DecoderMemory:
    """S encoded sources: a vector for each place, its part of the attention scores, and one vector for the whole.

    Without a mask every place is real.
    """

    memory: Float[Tensor, "S L D"]
    keys: Float[Tensor, "S L P"]
    mask: Bool[Tensor, "S L"] | None
    summary: Float[Tensor, "S C"]

    def keep(self, sources: Int[Tensor, "S2"]) -> "DecoderMemory":
        return DecoderMemory(
            self.memory[sources],
            self.keys[sources],
            None if self.mask is None else self.mask[sources],
            self.summary[sources],
        )


@dataclass
class RecurrentDecoderState:
    """A decoding in progress: the sources, and the decoder state [parts, layers, S, W, D] of every hypothesis."""

    source: DecoderMemory
    hidden: Float[Tensor, "N L S W D"]

    def reorder(self, origin: Int[Tensor, "S W2"]) -> None:
        sentences = torch.arange(len(origin), device=origin.device)[:, None]
        self.hidden = self.hidden[:, :, sentences, origin]

    def keep(self, sentences: Int[Tensor, "S2"]) -> None:
        self.hidden = self.hidden[:, :, sentences]
        self.source = self.source.keep(sentences)

    def copy(self) -> "RecurrentDecoderState":
        """An independent state; the tensors are shared, because no method changes them in place."""
        return replace(self)


class Glance(NamedTuple):
    """What one query of each sequence read: the context, the weights that it read by, the soft weights, and the gate
    that the context was multiplied by, if there is one."""

    context: Float[Tensor, "B D"]
    weights: Float[Tensor, "B S"]
    probabilities: Float[Tensor, "B S"]
    gate: Float[Tensor, "B"] | None = None


class Steps(NamedTuple):
    """The outputs and contexts of all steps, and what they saw."""

    outputs: Float[Tensor, "B T D"]
    contexts: Float[Tensor, "B T M"]
    attended: Attended


def attending_steps(
    decoder: Recurrent,
    previous: Float[Tensor, "B T E"],
    hidden: Float[Tensor, "N L B D"],
    look: Callable[[Float[Tensor, "B D"], Float[Tensor, "B E"]], Glance],
    dropout: Callable[[Tensor], Tensor],
    drawn: Bool[Tensor, "B"] | None = None,
) -> Steps:
    """Look, then update, for all steps, each given the vector of the true previous token.

    `look` reads with the hidden state of the last layer and the vector of the previous token. Parts that do not depend
    on the state are computed once, before the loop. `dropout` is applied between layers; `drawn` is passed on to
    `Attended`.
    """
    bottom, *upper = (decoder.cell(layer) for layer in range(decoder.depth))
    embedding = previous.shape[-1]
    of_token, of_context = bottom.of_input.split([embedding, decoder.input_width - embedding], dim=1)
    states = [layer.unbind() for layer in hidden.unbind(1)]
    outputs, glances = [], []
    projected = functional.linear(previous, of_token, bottom.input_bias).unbind(1)
    for token, of_input in zip(previous.unbind(1), projected, strict=True):
        glance = look(states[-1][0], token)
        states[0] = bottom.update(of_input + functional.linear(glance.context, of_context), states[0])
        for layer, cell in enumerate(upper, start=1):
            states[layer] = cell(dropout(states[layer - 1][0]), states[layer])
        outputs.append(states[-1][0])
        glances.append(glance)
    contexts, weights, probabilities = (
        torch.stack(each, dim=1) for each in zip(*(g[:3] for g in glances), strict=True)
    )
    gates = [glance.gate for glance in glances if glance.gate is not None]
    seen = Attended(probabilities, weights, drawn, torch.stack(gates, dim=1) if gates else None)
    return Steps(torch.stack(outputs, dim=1), contexts, seen)


def which_draw(sequences: int, expected: float, device: torch.device) -> Bool[Tensor, "B"]:
    """The sequences that draw in this pass; a share of `expected` of them reads the expectation (Xu 2015, 4.2)."""
    return torch.rand(sequences, device=device) >= expected
