"""The Transformer, encoder and decoder (Vaswani et al. 2017, "Attention Is All You Need").

Presets: tiny, small, base and big (the last two as in the paper). Deviations offered as options: pre-norm (with a final
norm), GELU or swish, learned or rotary positions, a convolutional encoder (Gehring 2017) in place of self-attention.
"""

import math
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn

from regard.attention import core as masks
from regard.attention.dropout import Dropout
from regard.attention.multihead import MultiHeadAttention
from regard.attention.packing import Packing
from regard.attention.positions import (
    Added,
    Concatenated,
    LearnedPositions,
    LinearPositions,
    Rotary,
    SinusoidalPositions,
)
from regard.config import Config, Fraction, refuse_even, refuse_odd_heads, refuse_uneven
from regard.errors import ConfigError
from regard.layers.blocks import (
    Activation,
    DecoderLayer,
    EncoderLayer,
    Factors,
    FeedForward,
    NormOrder,
    Output,
    xavier_weights,
)
from regard.layers.convolution import ConvolutionEncoder
from regard.layers.encoder_decoder import EncoderDecoder, EncoderDecoderState, Position
from regard.layers.example import PAIRS

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 4, "encoder_depth": 2, "decoder_depth": 2, "ffn_width": 512},
    "small": {"width": 256, "heads": 4, "encoder_depth": 3, "decoder_depth": 3, "ffn_width": 1024},
    "base": {"width": 512, "heads": 8, "encoder_depth": 6, "decoder_depth": 6, "ffn_width": 2048},
    "big": {"width": 1024, "heads": 16, "encoder_depth": 6, "decoder_depth": 6, "ffn_width": 4096, "dropout": 0.3},
}


class TransformerConfig(Config):
    """Sizes and choices of a Transformer; the defaults are the paper's base model."""

    source_vocab: PositiveInt
    target_vocab: PositiveInt
    pad: NonNegativeInt = 0
    width: PositiveInt = 512
    heads: PositiveInt = 8
    encoder_depth: PositiveInt = 6
    decoder_depth: PositiveInt = 6
    ffn_width: PositiveInt = 2048
    dropout: Fraction = 0.1
    attention_dropout: Fraction = 0.0
    activation_dropout: Fraction = 0.0
    activation: Activation = "relu"
    norm: NormOrder = "post"
    positions: Literal["sinusoidal", "sinusoidal_halves", "learned", "linear", "rotary"] = "sinusoidal"
    join_positions: Literal["add", "concatenate"] = "add"  # to the embeddings; rotary positions are never joined
    max_length: PositiveInt = 1024  # of learned positions; the others have no limit
    tie: Literal["none", "target", "all"] = "target"  # which embeddings share the output matrix
    output_bias: bool = False
    scale_embedding: bool = True  # multiply embeddings by √width
    encoder: Literal["attention", "convolution"] = "attention"
    kernel: PositiveInt = 3  # of the convolutional encoder

    @model_validator(mode="after")
    def _check_shape(self) -> "TransformerConfig":
        refuse_uneven("width", self.width, "heads", self.heads)
        if self.positions == "rotary":
            refuse_odd_heads(self.heads, self.width // self.heads)
        if self.encoder == "convolution":
            refuse_even("kernel", self.kernel)
        return self


class Transformer(EncoderDecoder):
    """Reads a source sequence and predicts a target sequence token by token."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        if config.tie == "all" and config.source_vocab != config.target_vocab:
            raise ConfigError(
                f"tie = 'all' shares one embedding, but the vocabularies have {config.source_vocab} and "
                f"{config.target_vocab} entries; use a joint tokenizer or tie = 'target'"
            )
        self.config = c = config
        self.source_embedding = nn.Embedding(c.source_vocab, c.width)
        self.target_embedding = self.source_embedding if c.tie == "all" else nn.Embedding(c.target_vocab, c.width)
        self.output_weight = (
            nn.Parameter(torch.empty(c.target_vocab, c.width)) if c.tie == "none" else self.target_embedding.weight
        )
        self.output_bias = nn.Parameter(torch.zeros(c.target_vocab)) if c.output_bias else None
        self.output = Output()
        self.source_place, self.target_place = self._place(), self._place()
        self.dropout = Dropout(c.dropout)
        self.encoder: nn.ModuleList | ConvolutionEncoder
        if c.encoder == "attention":
            self.encoder = nn.ModuleList(self._encoder_layer() for _ in range(c.encoder_depth))
        else:
            self.encoder = ConvolutionEncoder(c.width, c.encoder_depth, c.kernel, c.dropout)
        self.decoder = nn.ModuleList(self._decoder_layer() for _ in range(c.decoder_depth))
        self.encoder_norm = nn.LayerNorm(c.width) if c.norm == "pre" else nn.Identity()
        self.decoder_norm = nn.LayerNorm(c.width) if c.norm == "pre" else nn.Identity()
        self._initialise()

    def static_state(self, state: EncoderDecoderState, width: int, size: tuple[int, int]) -> EncoderDecoderState:
        for module in self.modules():
            if isinstance(module, SinusoidalPositions):
                module.reserve(size[1] // width)  # a captured step cannot enlarge the table
        return super().static_state(state, width, size)

    def embed_source(self, tokens: Int[Tensor, "B S"]) -> Float[Tensor, "B S D"]:
        return self._embed(tokens, self.source_embedding, self.source_place, 0)

    def embed_target(self, tokens: Int[Tensor, "R T"], first: Position) -> Float[Tensor, "R T D"]:
        return self._embed(tokens, self.target_embedding, self.target_place, first)

    def finish_encoder(self, x: Float[Tensor, "R S D"]) -> Float[Tensor, "R S D"]:
        return self.encoder_norm(x)

    def finish_decoder(self, x: Float[Tensor, "R T D"]) -> Float[Tensor, "R T D"]:
        return self.decoder_norm(x)

    def factors(self, x: Float[Tensor, "B T D"]) -> Factors:
        return Factors(x, self.output_weight, self.output_bias)

    def _embed(
        self, tokens: Int[Tensor, "B T"], embedding: nn.Embedding, place: nn.Module | None, first: Position
    ) -> Float[Tensor, "B T D"]:
        """Embeddings with positions, the first of them at position `first`."""
        x = embedding(tokens)
        if self.config.scale_embedding:
            x = x * math.sqrt(self.config.width)
        return self.dropout(x if place is None else place(x, first))

    def _read(
        self, source: Int[Tensor, "B S"], source_mask: Bool[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "_ _ D"], Bool[Tensor, "B 1 1 S"], Packing | None]:
        if not isinstance(self.encoder, ConvolutionEncoder):
            return super()._read(source, source_mask)
        x = self.encoder(self.embed_source(source), source_mask)
        return self.finish_encoder(x), masks.padding(source_mask), None

    def _place(self) -> nn.Module | None:
        """The module that adds positions to embeddings; None for rotary positions, which attention applies."""
        width, positions = self.config.width, self._positions()
        if positions is None:
            return None
        return Added(positions) if self.config.join_positions == "add" else Concatenated(positions, width)

    def _positions(self) -> nn.Module | None:
        match self.config.positions:
            case "sinusoidal":
                return SinusoidalPositions(self.config.width)
            case "sinusoidal_halves":
                return SinusoidalPositions(self.config.width, layout="halves")
            case "learned":
                return LearnedPositions(self.config.width, self.config.max_length)
            case "linear":
                return LinearPositions(self.config.width)
            case "rotary":
                return None

    def _attention(self, *, rotates: bool) -> MultiHeadAttention:
        c = self.config
        rotary = Rotary(c.width // c.heads) if rotates and c.positions == "rotary" else None
        return MultiHeadAttention(c.width, c.heads, dropout=c.attention_dropout, prepare=rotary)

    def _feed_forward(self) -> FeedForward:
        c = self.config
        return FeedForward(c.width, c.ffn_width, c.activation, c.activation_dropout)

    def _encoder_layer(self) -> EncoderLayer:
        c = self.config
        return EncoderLayer(self._attention(rotates=True), self._feed_forward(), c.dropout, c.norm)

    def _decoder_layer(self) -> DecoderLayer:
        c = self.config
        own, cross = self._attention(rotates=True), self._attention(rotates=False)
        return DecoderLayer(own, cross, self._feed_forward(), c.dropout, c.norm)

    def _initialise(self) -> None:
        xavier_weights(self, self.config.width**-0.5)  # unit variance once scaled
        if self.config.tie == "none":
            nn.init.xavier_uniform_(self.output_weight)


EXAMPLE = PAIRS
