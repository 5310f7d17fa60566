"""Whisper, speech to text in many languages (Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak
Supervision").

Presets: tiny, base, small, medium, large (the paper's), large-v3 (128 mel bands), turbo (large-v3 with 4 decoder
layers). An encoder-decoder Transformer, pre-norm, whose encoder reads a log-mel spectrogram through two convolutions;
the keys of attention have no bias. What language and task are asked for, and times, are tokens of the text.
Deviations: none known. The encoder's positions are a fixed table that is stored with the weights, as published.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.dropout import Dropout
from regard.attention.multihead import MultiHeadAttention
from regard.attention.positions import LearnedPositions, sinusoidal
from regard.config import Config, Fraction, refuse_uneven
from regard.errors import ConfigError
from regard.layers.blocks import Activation, DecoderLayer, EncoderLayer, Factors, FeedForward, Output
from regard.layers.encoder_decoder import EncoderDecoderState, MemoryDecoder, Position

HALVED = 2  # frames of the spectrogram for one vector of the encoder

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"width": 384, "heads": 6, "encoder_depth": 4, "decoder_depth": 4, "ffn_width": 1536},
    "base": {"width": 512, "heads": 8, "encoder_depth": 6, "decoder_depth": 6, "ffn_width": 2048},
    "small": {"width": 768, "heads": 12, "encoder_depth": 12, "decoder_depth": 12, "ffn_width": 3072},
    "medium": {"width": 1024, "heads": 16, "encoder_depth": 24, "decoder_depth": 24, "ffn_width": 4096},
    "large": {"width": 1280, "heads": 20, "encoder_depth": 32, "decoder_depth": 32, "ffn_width": 5120},
    "large-v3": {
        "bands": 128, "width": 1280, "heads": 20, "encoder_depth": 32, "decoder_depth": 32, "ffn_width": 5120,
    },
    "turbo": {"bands": 128, "width": 1280, "heads": 20, "encoder_depth": 32, "decoder_depth": 4, "ffn_width": 5120},
}  # fmt: skip


class WhisperConfig(Config):
    """Sizes of a Whisper; the defaults are the tiny one of the paper."""

    vocab: PositiveInt
    pad: NonNegativeInt = 0
    bands: PositiveInt = 80  # of the spectrogram
    width: PositiveInt = 384
    heads: PositiveInt = 6
    encoder_depth: PositiveInt = 4
    decoder_depth: PositiveInt = 4
    ffn_width: PositiveInt = 1536
    activation: Activation = "gelu"
    max_frames: PositiveInt = 1500  # vectors of the encoder, of 20 ms each
    max_length: PositiveInt = 448  # tokens of a text, with those that say what is asked for
    dropout: Fraction = 0.0
    attention_dropout: Fraction = 0.0
    activation_dropout: Fraction = 0.0

    @model_validator(mode="after")
    def _check(self) -> "WhisperConfig":
        refuse_uneven("width", self.width, "heads", self.heads)
        if self.width % 2 or self.width < 4:
            raise ConfigError(f"width = {self.width}: sinusoidal positions need an even width of 4 or more")
        return self

    @property
    def usual_source(self) -> int:
        """The frames of the spectrogram that the encoder reads; shorter audio is padded."""
        return HALVED * self.max_frames


class Whisper(MemoryDecoder):
    """Reads a log-mel spectrogram and writes what is said, token by token."""

    def __init__(self, config: WhisperConfig):
        super().__init__()
        self.config = c = config
        self.first_convolution = nn.Conv1d(c.bands, c.width, kernel_size=3, padding=1)
        self.second_convolution = nn.Conv1d(c.width, c.width, kernel_size=3, stride=HALVED, padding=1)
        self.encoder_positions: Tensor
        self.register_buffer("encoder_positions", sinusoidal(c.max_frames, c.width, "halves", to_end=True))
        self.embedding = nn.Embedding(c.vocab, c.width)
        self.positions = LearnedPositions(c.width, c.max_length)
        self.dropout = Dropout(c.dropout)
        self.encoder = nn.ModuleList(
            EncoderLayer(self._attention(), self._feed_forward(), c.dropout, "pre") for _ in range(c.encoder_depth)
        )
        self.decoder = nn.ModuleList(
            DecoderLayer(self._attention(), self._attention(), self._feed_forward(), c.dropout, "pre")
            for _ in range(c.decoder_depth)
        )
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(c.width), nn.LayerNorm(c.width)
        self.output_weight = self.embedding.weight
        self.output = Output()
        self._initialise()

    def forward(
        self,
        features: Float[Tensor, "B F M"],
        inputs: Int[Tensor, "B T"],
        inputs_mask: Bool[Tensor, "B T"] | None = None,
        *,
        factored: bool = False,
    ) -> Float[Tensor, "B T V"] | Factors:
        """Logits of every next token, given the true token before it; with `factored`, unmultiplied."""
        memory = self.encode(features)
        memories = (layer.cross.remember(memory) for layer in self._decoder_layers())
        x = self._decode(inputs, memories, mask=inputs_mask)
        return self.factors(x) if factored else self.predict(x)

    def encode(self, features: Float[Tensor, "B F M"]) -> Float[Tensor, "B L D"]:
        """One vector for every two frames."""
        x = functional.gelu(self.first_convolution(features.transpose(1, 2)))
        x = functional.gelu(self.second_convolution(x)).transpose(1, 2)
        if x.shape[1] > len(self.encoder_positions):
            raise ValueError(f"{features.shape[1]} frames came; the encoder reads at most {self.config.usual_source}")
        x = self.dropout(x + self.encoder_positions[: x.shape[1]].to(x.dtype))
        for layer in self.encoder:
            x = layer(x)
        return self.encoder_norm(x)

    def start(self, features: Float[Tensor, "S F M"]) -> EncoderDecoderState:
        """Listen to S spectrograms, with one hypothesis each."""
        return self.first_state(self.encode(features))

    def embed_target(self, tokens: Int[Tensor, "R T"], first: Position) -> Float[Tensor, "R T D"]:
        return self.dropout(self.embedding(tokens) + self.positions(tokens.shape[1], first))

    def finish_decoder(self, x: Float[Tensor, "R T D"]) -> Float[Tensor, "R T D"]:
        return self.decoder_norm(x)

    def factors(self, x: Float[Tensor, "B T D"]) -> Factors:
        return Factors(x, self.output_weight)

    def _attention(self) -> MultiHeadAttention:
        c = self.config
        return MultiHeadAttention(c.width, c.heads, key_bias=False, dropout=c.attention_dropout)

    def _feed_forward(self) -> FeedForward:
        c = self.config
        return FeedForward(c.width, c.ffn_width, c.activation, c.activation_dropout)

    @torch.no_grad()
    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding | nn.Conv1d):
                nn.init.normal_(module.weight, std=0.02)
                bias = getattr(module, "bias", None)
                if bias is not None:
                    nn.init.zeros_(bias)
