"""A recurrent language model (Mikolov et al. 2010): an LSTM, and by its options the AWD-LSTM (Merity et al. 2018).

Presets: tiny (for two cores), medium (Zaremba et al. 2014: 2 layers of 650), awd (33 M on WikiText-2, the paper's).
Options of an AWD-LSTM: five dropouts (of words, of the first layer's input, between layers, of the last layer's output,
of the recurrent weights), penalties on large outputs and on their change from step to step, and a last layer as wide
as the embedding, which is also the output matrix.
Deviations: block boundaries differ in every epoch instead of block lengths being random; any optimiser.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from regard.config import Config, Fraction
from regard.layers.blocks import Factors
from regard.layers.example import LANGUAGE
from regard.layers.recurrent import LockedDropout, Recurrent, WordDropout

State = list[Float[Tensor, "N 1 B _"]]  # hidden and cell of every layer
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"embedding": 128, "width": 256, "depth": 1},
    "medium": {"embedding": 650, "width": 650, "depth": 2, "input_dropout": 0.5, "layer_dropout": 0.5, "dropout": 0.5},
    "awd": {
        "embedding": 400, "width": 1150, "depth": 3, "word_dropout": 0.1, "input_dropout": 0.65, "layer_dropout": 0.2,
        "dropout": 0.4, "weight_drop": 0.5, "size_penalty": 2.0, "change_penalty": 1.0,
    },
}  # fmt: skip


class LstmConfig(Config):
    """Sizes and choices of a recurrent language model; without dropout and penalties it is a plain one."""

    text_order: ClassVar = "streams"  # how training presents a text; see modelling.py

    vocab: PositiveInt
    embedding: PositiveInt = 400  # also the width of the last layer if the embedding is the output matrix
    width: PositiveInt = 1150
    depth: PositiveInt = 3
    tie: bool = True  # the embedding is also the output matrix
    word_dropout: Fraction = 0.0  # the share of the vocabulary that is dropped for a batch
    input_dropout: Fraction = 0.0  # of the vectors of words
    layer_dropout: Fraction = 0.0  # between layers
    dropout: Fraction = 0.0  # of the last layer's outputs
    weight_drop: Fraction = 0.0  # of the matrices that multiply the state
    size_penalty: NonNegativeFloat = 0.0  # weight of the mean square of outputs in the loss ("AR")
    change_penalty: NonNegativeFloat = 0.0  # of the mean square of their change from step to step ("TAR")

    @property
    def widths(self) -> list[int]:
        """The input width of each layer, and the output width of the last."""
        return [self.embedding, *[self.width] * (self.depth - 1), self.embedding if self.tie else self.width]


class Reading(NamedTuple):
    """The last layer's outputs for a piece of text, before and after dropout, and the final state."""

    plain: Float[Tensor, "B T D"]
    outputs: Float[Tensor, "B T D"]
    state: State


@dataclass
class LstmState:
    """A decoding in progress: for every layer the state of each of W hypotheses of each of S prompts."""

    layers: list[Float[Tensor, "N 1 S W _"]]

    def reorder(self, origin: Int[Tensor, "S W2"]) -> None:
        prompts = torch.arange(len(origin), device=origin.device)[:, None]
        self.layers = [layer[:, :, prompts, origin] for layer in self.layers]

    def keep(self, sentences: Int[Tensor, "S2"]) -> None:
        self.layers = [layer[:, :, sentences] for layer in self.layers]

    def copy(self) -> "LstmState":
        """An independent state; the tensors are shared, because no method changes them in place."""
        return LstmState(list(self.layers))


class Lstm(nn.Module):
    """Predicts every next token of a text from a recurrent state."""

    def __init__(self, config: LstmConfig):
        super().__init__()
        self.config = c = config
        self.embedding = nn.Embedding(c.vocab, c.embedding)
        self.word_dropout, self.input_dropout = WordDropout(c.word_dropout), LockedDropout(c.input_dropout)
        self.layer_dropout, self.dropout = LockedDropout(c.layer_dropout), LockedDropout(c.dropout)
        self.decoder = nn.ModuleList(
            Recurrent("lstm", reads, says, weight_drop=c.weight_drop) for reads, says in pairwise(c.widths)
        )
        self.output_weight = self.embedding.weight if c.tie else nn.Parameter(torch.empty(c.vocab, c.widths[-1]))
        self.output_bias = nn.Parameter(torch.zeros(c.vocab))
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.output_weight, -0.1, 0.1)

    def forward(
        self, tokens: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | None = None, *, factored: bool = False
    ) -> Float[Tensor, "B T V"] | Factors:
        """Logits of every next token of texts read from their beginning; with `factored`, unmultiplied. `mask` is False
        at padding, which follows a text."""
        x = self.read(tokens, mask=mask).outputs
        return self.factors(x) if factored else self.predict(x)

    def read(
        self,
        tokens: Int[Tensor, "B T"],
        state: State | None = None,
        mask: Bool[Tensor, "B T"] | None = None,
    ) -> Reading:
        """Continue from a state, or read from the beginning; `mask` is False at padding, which follows a text."""
        x = self.input_dropout(self.word_dropout(self.embedding(tokens), tokens, self.config.vocab))
        plain, after = x, []
        for number, layer in enumerate(self.decoder):
            plain, final = layer(x, None if state is None else state[number], mask)
            x = (self.dropout if number == self.config.depth - 1 else self.layer_dropout)(plain)
            after.append(final)
        return Reading(plain, x, after)

    def penalty(self, reading: Reading) -> Float[Tensor, ""]:
        """The penalty on large outputs and on their change between steps, to be added to the mean loss of a token."""
        c, change = self.config, reading.plain[:, 1:] - reading.plain[:, :-1]
        large = c.size_penalty * reading.outputs.square().mean()
        return large + c.change_penalty * change.square().sum() / max(change.numel(), 1)

    def start(self, source: Int[Tensor, "S L"], source_mask: Bool[Tensor, "S L"]) -> LstmState:
        """Read S prompts except for their last tokens, which are fed to the first `step`."""
        before = source_mask & (source_mask.cumsum(1) < source_mask.sum(1, keepdim=True))
        return LstmState([layer[:, :, :, None] for layer in self.read(source, mask=before).state])

    def step(self, tokens: Int[Tensor, "S W"], state: LstmState) -> Float[Tensor, "S W V"]:
        """Feed one token to W hypotheses of each of S prompts; returns the logits of the next."""
        rows = self.read(tokens.reshape(-1, 1), [layer.flatten(2, 3) for layer in state.layers])
        state.layers = [layer.unflatten(2, tokens.shape) for layer in rows.state]
        return self.predict(rows.outputs).view(*tokens.shape, -1)

    def predict(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """The output layer: one linear layer, whose softmax is the distribution over the vocabulary."""
        return functional.linear(*self.factors(x))

    def factors(self, x: Float[Tensor, "B T D"]) -> Factors:
        """The unmultiplied logits: hidden states, output matrix, bias."""
        return Factors(x, self.output_weight, self.output_bias)


EXAMPLE = LANGUAGE
