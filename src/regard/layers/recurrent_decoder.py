"""Decoders of texts over a grid of vectors, such as the cells of an image or the frames of a recording: recurrent, and
a Transformer.

Both take the grid as `[B L D]`. `forward` is teacher forcing; `first_state` and `step` decode.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.dropout import Dropout
from regard.attention.multihead import MultiHeadAttention
from regard.attention.packing import packed, packing_for, unpacked
from regard.attention.places import Computed
from regard.attention.positions import Added, SinusoidalPositions
from regard.attention.scores import Attended, Estimator, ScoredAttention
from regard.layers.blocks import DecoderLayer, Factors, FeedForward, Output, xavier_weights
from regard.layers.encoder_decoder import EncoderDecoderState, MemoryDecoder, Position
from regard.layers.recurrent import CELLS, Kind, Recurrent


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


Looking = Literal["none", "soft", "hard"]
Taught = Float[Tensor, "N T V"] | Factors  # the logits of teacher forcing, or their factors
EMBEDDING_STD = 0.1


class RecurrentGridDecoder(nn.Module):
    """An LSTM or GRU that looks at the grid before every word (Xu et al. 2015).

    s_0 and c_0 come from the mean of the grid by a layer with a tanh. Additive attention gives a context, which the
    gate β = σ(w s_{t-1}) weighs. The next word is predicted from the state, the context and the previous word (deep
    output). Without attention (`none`) the context is the mean of the grid at every step.
    """

    PLACES: ClassVar = {"gate": Computed("gate", read=lambda module, args, options, output: torch.sigmoid(output))}

    def __init__(
        self,
        vocab: int,
        *,
        embedding: int,
        width: int,
        cell: Kind,
        depth: int,
        attention: Looking,
        estimator: Estimator,
        expected: float,
        dropout: float,
    ):
        super().__init__()
        self.width, self.depth, self.expected = width, depth, expected
        self.embedding, self.dropout = nn.Embedding(vocab, embedding), Dropout(dropout)
        self.first = nn.Linear(width, CELLS[cell].parts * depth * width)
        self.recurrent = Recurrent(cell, embedding + width, width, depth, dropout=dropout)
        self.cross: ScoredAttention | None = None
        if attention != "none":
            self.cross = ScoredAttention(width, width, reading=attention, estimator=estimator)
            self.gate = nn.Linear(width, 1)
        self.deep_output = nn.Linear(width + width + embedding, embedding)
        self.output_weight, self.output_bias = self.embedding.weight, nn.Parameter(torch.zeros(vocab))
        self.output = Output()
        xavier_weights(self, EMBEDDING_STD)

    def forward(
        self,
        grid: Float[Tensor, "B L D"],
        inputs: Int[Tensor, "B T"],
        inputs_mask: Bool[Tensor, "B T"] | None = None,
        *,
        factored: bool = False,
    ) -> tuple[Taught, Attended | None]:
        """The logits of every next word, and what every step looked at; None without attention."""
        memory, previous = self._memory(grid), self.dropout(self.embedding(inputs))
        hidden, seen = self._first_hidden(memory), None
        if self.cross is None:
            contexts = memory.summary[:, None].expand(-1, inputs.shape[1], -1)
            outputs, _ = self.recurrent(torch.cat([previous, contexts], dim=-1), hidden)
        else:
            drawn = None
            if self.cross.reading == "hard" and self.training:
                drawn = which_draw(len(inputs), self.expected, inputs.device)
            outputs, contexts, seen = attending_steps(
                self.recurrent, previous, hidden, lambda state, _: self._look(state, memory, drawn), self.dropout, drawn
            )
        packing = packing_for(outputs, inputs_mask)
        factors = self._factors(*(packed(each, packing) for each in (outputs, contexts, previous)))
        factors = factors._replace(hidden=unpacked(factors.hidden, packing))
        return factors if factored else self.output(*factors), seen

    def first_state(self, grid: Float[Tensor, "S L D"]) -> RecurrentDecoderState:
        """The state before the first word, with one hypothesis for each grid."""
        memory = self._memory(grid)
        return RecurrentDecoderState(memory, self._first_hidden(memory)[:, :, :, None])

    def step(self, tokens: Int[Tensor, "S W"], state: RecurrentDecoderState) -> Float[Tensor, "S W V"]:
        """Feed one word to W hypotheses of each of S grids; returns the logits of the next."""
        previous, memory = self.dropout(self.embedding(tokens)), state.source
        if self.cross is None:
            context = memory.summary[:, None].expand(-1, tokens.shape[1], -1)
        else:
            above = state.hidden[0, -1]
            context = self.cross(above, memory.memory, memory.keys)[0] * torch.sigmoid(self.gate(above))
        output, after = self.recurrent.step(
            torch.cat([previous, context], dim=-1).flatten(0, 1), state.hidden.flatten(2, 3)
        )
        state.hidden = after.view_as(state.hidden)
        return self.output(*self._factors(output.view(*tokens.shape, -1), context, previous))

    def _memory(self, grid: Float[Tensor, "S L D"]) -> DecoderMemory:
        summary = grid.mean(dim=1)
        if self.cross is None:
            return DecoderMemory(summary[:, None], summary[:, None], None, summary)
        return DecoderMemory(grid, self.cross.project(grid), None, summary)

    def _first_hidden(self, memory: DecoderMemory) -> Float[Tensor, "N L S D"]:
        flat = torch.tanh(self.first(memory.summary)).to(self.embedding.weight.dtype)  # so that cells add up in it
        return flat.view(len(flat), -1, self.depth, self.width).permute(1, 2, 0, 3)

    def _look(self, state: Float[Tensor, "B D"], memory: DecoderMemory, drawn: Bool[Tensor, "B"] | None) -> Glance:
        assert self.cross is not None
        read = self.cross(state[:, None], memory.memory, memory.keys, drawn=drawn)
        context, weights, probabilities = (each[:, 0] for each in read)
        gate = torch.sigmoid(self.gate(state))
        return Glance(context * gate, weights, probabilities, gate[:, 0])

    def _factors(
        self, output: Float[Tensor, "B T D"], context: Float[Tensor, "B T D"], previous: Float[Tensor, "B T E"]
    ) -> Factors:
        deep = torch.tanh(self.deep_output(torch.cat([self.dropout(output), context, previous], dim=-1)))
        return Factors(self.dropout(deep), self.output_weight, self.output_bias)


class TransformerGridDecoder(MemoryDecoder):
    """A Transformer decoder, pre-norm, whose cross-attention looks at the grid.

    Without attention (`none`) its only memory is the mean of the grid.
    """

    def __init__(
        self,
        vocab: int,
        *,
        width: int,
        heads: int,
        depth: int,
        ffn_width: int,
        attention: Looking,
        dropout: float,
    ):
        super().__init__()
        self.scale, self.looks = math.sqrt(width), attention != "none"
        self.embedding, self.place = nn.Embedding(vocab, width), Added(SinusoidalPositions(width))
        self.dropout = Dropout(dropout)
        self.decoder = nn.ModuleList(
            DecoderLayer(
                MultiHeadAttention(width, heads),
                MultiHeadAttention(width, heads),
                FeedForward(width, ffn_width, "gelu"),
                dropout,
                "pre",
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.output_weight, self.output_bias = self.embedding.weight, nn.Parameter(torch.zeros(vocab))
        self.output = Output()
        xavier_weights(self, width**-0.5)  # unit variance once scaled

    def forward(
        self,
        grid: Float[Tensor, "B L D"],
        inputs: Int[Tensor, "B T"],
        inputs_mask: Bool[Tensor, "B T"] | None = None,
        *,
        grid_mask: Bool[Tensor, "B 1 1 L"] | None = None,
        factored: bool = False,
    ) -> tuple[Taught, Attended | None]:
        """The logits of every next word. Its many heads are seen by `record` alone."""
        memories = (layer.cross.remember(self._memory(grid), grid_mask) for layer in self._decoder_layers())
        x = self._decode(inputs, memories, mask=inputs_mask)
        return self.factors(x) if factored else self.predict(x), None

    def first_state(
        self, memory: Float[Tensor, "S L D"], mask: Bool[Tensor, "S 1 1 L"] | None = None
    ) -> EncoderDecoderState:
        """The state before the first word."""
        return super().first_state(self._memory(memory), mask)

    def embed_target(self, tokens: Int[Tensor, "R T"], first: Position) -> Float[Tensor, "R T D"]:
        return self.dropout(self.place(self.embedding(tokens) * self.scale, first))

    def finish_decoder(self, x: Float[Tensor, "R T D"]) -> Float[Tensor, "R T D"]:
        return self.norm(x)

    def factors(self, x: Float[Tensor, "B T D"]) -> Factors:
        return Factors(x, self.output_weight, self.output_bias)

    def _memory(self, grid: Float[Tensor, "B L D"]) -> Float[Tensor, "B L2 D"]:
        return grid if self.looks else grid.mean(dim=1, keepdim=True)
