"""T5, every task as text in and text out (Raffel et al. 2020, "Exploring the Limits of Transfer Learning").

Presets: tiny (for two cores); small, base, large (the paper's); v1.1-small, v1.1-base, v1.1-large (Shazeer 2020: a
gated feed-forward, and a separate output matrix). Positions are biases of the attention scores by distance, one
table for all layers of a side; RMS norms before each branch; no attention scale; no biases.
Deviations: none known.
"""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn

from regard.attention.dropout import Dropout
from regard.attention.multihead import MultiHeadAttention
from regard.attention.positions import RelativeBias
from regard.config import Config, Fraction
from regard.errors import ConfigError
from regard.layers.blocks import Activation, DecoderLayer, EncoderLayer, Factors, FeedForward, Output
from regard.layers.encoder_decoder import EncoderDecoder, EncoderDecoderState, Position
from regard.layers.example import PAIRS

V1_1: dict[str, Any] = {"activation": "gelu_new", "gated": True, "tie": False, "scale_output": False}
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 4, "head_width": 32, "encoder_depth": 2, "decoder_depth": 2, "ffn_width": 512},
    "small": {"width": 512, "heads": 8, "encoder_depth": 6, "decoder_depth": 6, "ffn_width": 2048},
    "base": {"width": 768, "heads": 12, "encoder_depth": 12, "decoder_depth": 12, "ffn_width": 3072},
    "large": {"width": 1024, "heads": 16, "encoder_depth": 24, "decoder_depth": 24, "ffn_width": 4096},
    "v1.1-small": {**V1_1, "width": 512, "heads": 6, "encoder_depth": 8, "decoder_depth": 8, "ffn_width": 1024},
    "v1.1-base": {**V1_1, "width": 768, "heads": 12, "encoder_depth": 12, "decoder_depth": 12, "ffn_width": 2048},
    "v1.1-large": {**V1_1, "width": 1024, "heads": 16, "encoder_depth": 24, "decoder_depth": 24, "ffn_width": 2816},
}


class T5Config(Config):
    """Sizes and choices of a T5; the defaults are the small one of the paper."""

    source_vocab: PositiveInt  # equals target_vocab, since both sides share one embedding
    target_vocab: PositiveInt
    pad: NonNegativeInt = 0
    width: PositiveInt = 512
    heads: PositiveInt = 8
    head_width: PositiveInt = 64  # heads times this need not be the width
    encoder_depth: PositiveInt = 6
    decoder_depth: PositiveInt = 6
    ffn_width: PositiveInt = 2048
    activation: Activation = "relu"
    gated: bool = False
    buckets: int = Field(32, ge=4)  # of relative positions
    max_distance: PositiveInt = 128  # beyond which all distances share a bucket
    norm_eps: PositiveFloat = 1e-6
    tie: bool = True  # the embedding is also the output matrix
    scale_output: bool = True  # divide the input of the output matrix by √width
    dropout: Fraction = 0.1

    @model_validator(mode="after")
    def _check_distances(self) -> "T5Config":
        if self.max_distance <= self.buckets // 2:
            raise ConfigError(
                f"max_distance = {self.max_distance}: must be above half of buckets = {self.buckets}, which stand for "
                "single distances"
            )
        return self


class T5(EncoderDecoder):
    """Reads a text and writes another one, token by token."""

    def __init__(self, config: T5Config):
        super().__init__()
        if config.source_vocab != config.target_vocab:
            raise ConfigError(
                f"T5 has one embedding for both sides, but the vocabularies have {config.source_vocab} and "
                f"{config.target_vocab} entries; use a joint tokenizer"
            )
        self.config = c = config
        self.embedding = nn.Embedding(c.source_vocab, c.width)
        self.dropout = Dropout(c.dropout)
        self.encoder_position = RelativeBias(c.heads, c.buckets, c.max_distance, both_sides=True)
        self.decoder_position = RelativeBias(c.heads, c.buckets, c.max_distance, both_sides=False)
        norm = partial(nn.RMSNorm, eps=c.norm_eps)
        self.encoder = nn.ModuleList(
            EncoderLayer(self._attention(), self._feed_forward(), c.dropout, "pre", norm)
            for _ in range(c.encoder_depth)
        )
        self.decoder = nn.ModuleList(
            DecoderLayer(self._attention(), self._attention(), self._feed_forward(), c.dropout, "pre", norm)
            for _ in range(c.decoder_depth)
        )
        self.encoder_norm, self.decoder_norm = norm(c.width), norm(c.width)
        self.output_weight = self.embedding.weight if c.tie else nn.Parameter(torch.empty(c.target_vocab, c.width))
        self.output = Output()
        self._initialise()

    def embed_source(self, tokens: Int[Tensor, "B S"]) -> Float[Tensor, "B S D"]:
        return self.dropout(self.embedding(tokens))

    def embed_target(self, tokens: Int[Tensor, "R T"], first: Position) -> Float[Tensor, "R T D"]:
        return self.dropout(self.embedding(tokens))

    def source_bias(self, length: int) -> Float[Tensor, "1 H S S"]:
        return self.encoder_position(length, length)

    def target_bias(self, tokens: int, first: Position, state: EncoderDecoderState | None) -> Float[Tensor, "1 H T Tk"]:
        if state is not None and state.slots is not None:
            return self.decoder_position.at(first - state.slots.position[:1])
        assert isinstance(first, int)
        return self.decoder_position(tokens, first + tokens)

    def finish_encoder(self, x: Float[Tensor, "R S D"]) -> Float[Tensor, "R S D"]:
        return self.dropout(self.encoder_norm(x))

    def finish_decoder(self, x: Float[Tensor, "R T D"]) -> Float[Tensor, "R T D"]:
        return self.dropout(self.decoder_norm(x))

    def factors(self, x: Float[Tensor, "B T D"]) -> Factors:
        return Factors(x * self.config.width**-0.5 if self.config.scale_output else x, self.output_weight)

    def _attention(self) -> MultiHeadAttention:
        c = self.config
        return MultiHeadAttention(c.width, c.heads, head_width=c.head_width, bias=False, scale=1.0, dropout=c.dropout)

    def _feed_forward(self) -> FeedForward:
        c = self.config
        return FeedForward(c.width, c.ffn_width, c.activation, c.dropout, gated=c.gated, bias=False)

    def _initialise(self) -> None:
        """Each matrix is scaled by its input width; the queries also replace the missing attention scale."""
        c = self.config
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
        for module in self.modules():
            if isinstance(module, MultiHeadAttention):
                nn.init.normal_(module.query.weight, std=(c.width * c.head_width) ** -0.5)
        nn.init.normal_(self.embedding.weight)
        for position in (self.encoder_position, self.decoder_position):
            nn.init.normal_(position.table, std=c.width**-0.5)
        if not c.tie:
            nn.init.normal_(self.output_weight, std=c.width**-0.5)


EXAMPLE = PAIRS
