"""Sequence to sequence with recurrent networks, through one fixed vector (Sutskever et al. 2014) or with attention
(Bahdanau et al. 2015, "RNNsearch"; also with the scores of Luong et al. 2015 and Vaswani et al. 2017).

Presets: tiny, small, base; bottleneck (no attention, one direction), stateonly (not even a context vector: the decoder
begins with the encoder's last state and has nothing else), sutskever and bahdanau (the sizes of the papers).
Deviations: the two directions of the encoder share `width`, so that the memory is as wide as the decoder and any score
fits; s_0 = tanh(W h) is made of the last encoder state for all decoder layers (`first_state = "last"`: s_0 = h_T); the
deep output has one tanh layer in place of maxout; the convolutional encoder (Gehring et al. 2017) has no position
vectors and is summarised by its mean.
"""

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.dropout import Dropout
from regard.attention.packing import packed, packing_for, unpacked
from regard.attention.scores import Attended, Estimator, Reading, ScoredAttention
from regard.config import Config, Fraction, refuse_even
from regard.errors import ConfigError
from regard.layers.blocks import Factors, xavier_weights
from regard.layers.convolution import ConvolutionEncoder
from regard.layers.example import PAIRS
from regard.layers.recurrent import CELLS, Kind, Recurrent, reverse
from regard.layers.recurrent_decoder import (
    DecoderMemory,
    Glance,
    RecurrentDecoderState,
    Steps,
    attending_steps,
    which_draw,
)

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"embedding": 64, "width": 128, "cell": "gru", "dropout": 0.1},
    "small": {"embedding": 256, "width": 256, "cell": "gru"},
    "base": {"embedding": 256, "width": 512, "cell": "lstm", "encoder_depth": 2},
    "bottleneck": {"embedding": 256, "width": 512, "attention": "none", "bidirectional": False, "reverse_source": True},
    "stateonly": {
        "embedding": 256, "width": 512, "attention": "none", "context": False, "first_state": "last",
        "bidirectional": False, "reverse_source": True,
    },
    "sutskever": {
        "embedding": 1000, "width": 1000, "encoder_depth": 4, "decoder_depth": 4, "cell": "lstm", "tie": "none",
        "attention": "none", "bidirectional": False, "reverse_source": True, "dropout": 0.0,
    },
    "bahdanau": {"embedding": 620, "width": 1000, "cell": "gru", "tie": "none", "dropout": 0.0},
}  # fmt: skip


class Seq2SeqConfig(Config):
    """Sizes and choices of a recurrent encoder-decoder; the defaults suit some ten thousand sentence pairs."""

    source_vocab: PositiveInt
    target_vocab: PositiveInt
    pad: NonNegativeInt = 0
    embedding: PositiveInt = 256  # width of the word vectors
    width: PositiveInt = 512  # of the decoder state and of the memory
    encoder_depth: PositiveInt = 1
    decoder_depth: PositiveInt = 1
    cell: Kind = "lstm"
    attention: Literal["none", "additive", "dot", "general", "scaled_dot"] = "additive"
    token_query: bool = False  # f_att(s_{t-1}, y_{t-1}, h_i): attention also sees the previous token (Cho's form)
    context: bool = True  # whether every step reads a context vector; without one, s_t = g(y_{t-1}, s_{t-1})
    first_state: Literal["projected", "last"] = "projected"  # s_0 = tanh(W h_T), or h_T itself
    reading: Reading = "soft"
    estimator: Estimator = "straight_through"  # of the gradient of a hard reading's draws
    expected: Fraction = 0.0  # share of sentences for which a hard reading reads the soft weights in training
    encoder: Literal["recurrent", "convolution"] = "recurrent"
    kernel: PositiveInt = 3  # of the convolutional encoder
    bidirectional: bool = True
    reverse_source: bool = False  # read the source from its end; attention is still reported in the written order
    dropout: Fraction = 0.3
    tie: Literal["none", "target", "all"] = "target"  # which embeddings share the output matrix

    @model_validator(mode="after")
    def _check_reading(self) -> "Seq2SeqConfig":
        if self.reading == "hard" and self.attention == "none":
            raise ConfigError("reading = 'hard': there is no attention to draw from; set attention")
        return self

    @model_validator(mode="after")
    def _check_attention(self) -> "Seq2SeqConfig":
        if self.token_query and self.attention not in ("additive", "general"):
            raise ConfigError(
                f"token_query = true: attention = {self.attention!r} cannot score a state together with a token; set "
                "attention to 'additive' or 'general'"
            )
        if not self.context and self.attention != "none":
            raise ConfigError(
                f"context = false: attention = {self.attention!r} gives every step a context vector; set attention to "
                "'none'"
            )
        return self

    @model_validator(mode="after")
    def _check_first_state(self) -> "Seq2SeqConfig":
        if self.first_state == "last" and self.encoder != "recurrent":
            raise ConfigError("first_state = 'last': a convolutional encoder has no last state; use 'projected'")
        if self.first_state == "last" and self.encoder_depth != self.decoder_depth:
            raise ConfigError(
                f"first_state = 'last': the {self.encoder_depth} layers of the encoder cannot be the first states of "
                f"{self.decoder_depth} in the decoder; make encoder_depth and decoder_depth equal or use 'projected'"
            )
        return self

    @model_validator(mode="after")
    def _check_encoder(self) -> "Seq2SeqConfig":
        if self.encoder == "convolution":
            refuse_even("kernel", self.kernel)
        elif self.bidirectional and self.width % 2:
            raise ConfigError(
                f"width = {self.width}: cannot be halved between the two directions of the encoder; make it even or "
                "set bidirectional = false"
            )
        return self

    @property
    def context_width(self) -> int:
        """Numbers of the context vector that every step reads."""
        return self.width if self.context else 0

    @property
    def query_width(self) -> int:
        """Numbers that attention scores a place of the source with: the state, perhaps with the previous token."""
        return self.width + self.embedding if self.token_query else self.width


class Seq2Seq(nn.Module):
    """Encodes a source sequence, then for every target token: attend, update, predict."""

    def __init__(self, config: Seq2SeqConfig):
        super().__init__()
        _check(config)
        self.config = c = config
        self.source_embedding = nn.Embedding(c.source_vocab, c.embedding)
        self.target_embedding = self.source_embedding if c.tie == "all" else nn.Embedding(c.target_vocab, c.embedding)
        self.dropout = Dropout(c.dropout)
        self.encoder: Recurrent | ConvolutionEncoder
        if c.encoder == "recurrent":
            width = c.width // 2 if c.bidirectional else c.width
            self.encoder = Recurrent(c.cell, c.embedding, width, c.encoder_depth, c.bidirectional, c.dropout)
        else:
            self.widen = nn.Linear(c.embedding, c.width)
            self.encoder = ConvolutionEncoder(c.width, c.encoder_depth, c.kernel, c.dropout)
        self.cross = (
            None
            if c.attention == "none"
            else ScoredAttention(c.query_width, c.width, score=c.attention, reading=c.reading, estimator=c.estimator)
        )
        states = CELLS[c.cell].parts * c.decoder_depth * c.width
        self.bridge = nn.Linear(c.width, states) if c.first_state == "projected" else None
        self.decoder = Recurrent(c.cell, c.embedding + c.context_width, c.width, c.decoder_depth, dropout=c.dropout)
        self.deep_output = nn.Linear(c.width + c.context_width + c.embedding, c.embedding)
        self.output_weight = (
            nn.Parameter(torch.empty(c.target_vocab, c.embedding)) if c.tie == "none" else self.target_embedding.weight
        )
        self.output_bias = nn.Parameter(torch.zeros(c.target_vocab))
        self._initialise()

    def forward(
        self,
        source: Int[Tensor, "B S"],
        source_mask: Bool[Tensor, "B S"],
        inputs: Int[Tensor, "B T"],
        inputs_mask: Bool[Tensor, "B T"] | None = None,
        *,
        factored: bool = False,
        attended: bool = False,
    ) -> Float[Tensor, "B T V"] | Factors | tuple[Float[Tensor, "B T V"] | Factors, Attended]:
        """Logits of every next target token, each step given the true previous token (teacher forcing); with
        `factored`, unmultiplied. `inputs_mask` is False at padding, where the result has no meaning. With `attended`,
        also what every step looked at."""
        encoded, hidden = self.encode(source, source_mask)
        previous = self.dropout(self.target_embedding(inputs))
        if self.cross is None:
            contexts = encoded.summary[:, None].expand(-1, inputs.shape[1], -1)
            outputs, _ = self.decoder(torch.cat([previous, contexts], dim=-1), hidden)
            seen = None
        else:
            outputs, contexts, seen = self._decode_attending(previous, hidden, encoded)
        packing = packing_for(outputs, inputs_mask)
        factors = self.factors(*(packed(each, packing) for each in (outputs, contexts, previous)))
        factors = factors._replace(hidden=unpacked(factors.hidden, packing))
        logits = factors if factored else functional.linear(*factors)
        if not attended:
            return logits
        assert seen is not None, "a model without attention has nothing to show"
        return logits, seen

    def start(self, source: Int[Tensor, "S L"], source_mask: Bool[Tensor, "S L"]) -> RecurrentDecoderState:
        """Encode S sentences, with one hypothesis each."""
        encoded, hidden = self.encode(source, source_mask)
        return RecurrentDecoderState(encoded, hidden[:, :, :, None])

    def step(self, tokens: Int[Tensor, "S W"], state: RecurrentDecoderState) -> Float[Tensor, "S W V"]:
        """Feed one token to W hypotheses of each of S sentences; returns the logits of the next."""
        previous = self.dropout(self.target_embedding(tokens))
        context = self.attend(state.hidden[0, -1], previous, state.source)
        output, state.hidden = self.update(previous, state.hidden, context)
        return self.predict(output, context, previous)

    def encode(
        self, source: Int[Tensor, "S T"], source_mask: Bool[Tensor, "S T"]
    ) -> tuple[DecoderMemory, Float[Tensor, "N L S D"]]:
        """h_i for every source token with the context vector c, and s_0 for every part and layer of the decoder.

        A model without a context vector has a c without numbers.
        """
        x, last = self.dropout(self.source_embedding(source)), None
        if self.config.reverse_source:
            x = reverse(x, source_mask)
        if isinstance(self.encoder, Recurrent):
            memory, final = self.encoder(x, mask=source_mask)
            last = final.unflatten(1, (-1, self.encoder.directions)).transpose(2, 3).flatten(3)  # [N L S D]
            summary = last[0, -1]
        else:
            memory = self.encoder(self.widen(x), source_mask)
            summary = memory.sum(dim=1) / source_mask.sum(dim=1, keepdim=True).clamp(min=1)
        if self.config.reverse_source:
            memory = reverse(memory, source_mask)
        memory, summary = self.dropout(memory), self.dropout(summary)
        keys = memory if self.cross is None else self.cross.project(memory)
        encoded = DecoderMemory(memory, keys, source_mask, summary[:, : self.config.context_width])
        return encoded, self._first_hidden(summary) if last is None or self.bridge is not None else last

    def _first_hidden(self, summary: Float[Tensor, "S D"]) -> Float[Tensor, "N L S D"]:
        """s_0 = tanh(W h_T)."""
        assert self.bridge is not None
        flat = torch.tanh(self.bridge(summary))
        return flat.view(len(flat), -1, self.config.decoder_depth, self.config.width).permute(1, 2, 0, 3)

    def attend(
        self, hidden: Float[Tensor, "S W D"], previous: Float[Tensor, "S W E"], encoded: DecoderMemory
    ) -> Float[Tensor, "S W C"]:
        """e_{t,i} = f_att(s_{t-1}, h_i), a_t = softmax(e_t), c_t = Σ_i a_{t,i} h_i; without attention c_t = c."""
        if self.cross is None:
            return encoded.summary[:, None].expand(-1, hidden.shape[1], -1)
        query = self._query(hidden, previous)
        context: Tensor = self.cross(query, encoded.memory, encoded.keys, encoded.mask)[0]
        return context

    def _query(self, hidden: Float[Tensor, "*B D"], previous: Float[Tensor, "*B E"]) -> Float[Tensor, "*B Q"]:
        """What attention looks with: s_{t-1}, in Cho's form together with y_{t-1}."""
        return torch.cat([hidden, previous], dim=-1) if self.config.token_query else hidden

    def update(
        self, previous: Float[Tensor, "S W E"], hidden: Float[Tensor, "N L S W D"], context: Float[Tensor, "S W C"]
    ) -> tuple[Float[Tensor, "S W D"], Float[Tensor, "N L S W D"]]:
        """s_t = g(y_{t-1}, s_{t-1}, c_t), or g(y_{t-1}, s_{t-1}) where c_t has no numbers."""
        x = torch.cat([previous, context], dim=-1).flatten(0, 1)
        output, after = self.decoder.step(x, hidden.flatten(2, 3))
        return output.view(*previous.shape[:2], -1), after.view_as(hidden)

    def predict(
        self,
        output: Float[Tensor, "B T D"],
        context: Float[Tensor, "B T C"],
        previous: Float[Tensor, "B T E"],
    ) -> Float[Tensor, "B T V"]:
        """Logits of y_t from s_t, c_t and y_{t-1} (Bahdanau's deep output)."""
        return functional.linear(*self.factors(output, context, previous))

    def factors(
        self,
        output: Float[Tensor, "B T D"],
        context: Float[Tensor, "B T C"],
        previous: Float[Tensor, "B T E"],
    ) -> Factors:
        """The unmultiplied logits: hidden states, output matrix, bias."""
        deep = torch.tanh(self.deep_output(torch.cat([self.dropout(output), context, previous], dim=-1)))
        return Factors(self.dropout(deep), self.output_weight, self.output_bias)

    def _decode_attending(
        self, previous: Float[Tensor, "B T E"], hidden: Float[Tensor, "N L B D"], encoded: DecoderMemory
    ) -> Steps:
        """Attend and update for all steps."""
        c, cross = self.config, self.cross
        assert cross is not None
        drawn = None
        if c.reading == "hard" and self.training:
            drawn = which_draw(len(previous), c.expected, previous.device)

        def look(state: Float[Tensor, "B D"], token: Float[Tensor, "B E"]) -> Glance:
            read = cross(self._query(state, token)[:, None], encoded.memory, encoded.keys, encoded.mask, drawn=drawn)
            return Glance(*(each[:, 0] for each in read))

        return attending_steps(self.decoder, previous, hidden, look, self.dropout, drawn)

    def _initialise(self) -> None:
        xavier_weights(self, 0.1)
        if self.config.tie == "none":
            nn.init.xavier_uniform_(self.output_weight)


def draws(config: Config) -> bool:
    """Whether a model draws what it looks at, without a derivative, so that its loss needs a term for the draws."""
    return getattr(config, "reading", "soft") == "hard" and getattr(config, "estimator", "") == "reinforce"


def _check(config: Seq2SeqConfig) -> None:
    if config.tie == "all" and config.source_vocab != config.target_vocab:
        raise ConfigError(
            f"tie = 'all' shares one embedding, but the vocabularies have {config.source_vocab} and "
            f"{config.target_vocab} entries; use a joint tokenizer or tie = 'target'"
        )


EXAMPLE = PAIRS
