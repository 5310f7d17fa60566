"""T5, every task as text in and text out (Raffel et al. 2020, "Exploring the Limits of Transfer Learning").

Presets: tiny (for two cores); small, base, large (the paper's); v1.1-small, v1.1-base, v1.1-large (Shazeer 2020: a
gated feed-forward, and an output matrix of its own). Positions are biases of the attention scores by distance, one
table for all layers of a side; RMS norms before each branch; no attention scale; no biases.
Deviations: none known.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn

from regard.attention import masks
from regard.attention.cache import GrowingCache
from regard.attention.dropout import Dropout
from regard.attention.multihead import Memory, MultiHeadAttention
from regard.attention.packing import Packing, packed, packing_for, unpacked
from regard.attention.positions import RelativeBias
from regard.config import Config, Fraction
from regard.errors import ConfigError
from regard.layers.blocks import Activation, DecoderLayer, EncoderLayer, Factors, FeedForward, Output
from regard.models.transformer import TransformerState, fixed_state

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

    source_vocab: PositiveInt  # one embedding serves both sides, so the two are equal
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
    scale_output: bool = True  # divide what goes into the output matrix by √width
    dropout: Fraction = 0.1

    @model_validator(mode="after")
    def _check_distances(self) -> "T5Config":
        if self.max_distance <= self.buckets // 2:
            raise ConfigError(
                f"max_distance = {self.max_distance}: must be above half of buckets = {self.buckets}, which stand for "
                "single distances"
            )
        return self


class T5(nn.Module):
    """Reads a text and writes another one, token after token."""

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

    def forward(
        self,
        source: Int[Tensor, "B S"],
        source_mask: Bool[Tensor, "B S"],
        inputs: Int[Tensor, "B T"],
        inputs_mask: Bool[Tensor, "B T"] | None = None,
        *,
        factored: bool = False,
    ) -> Float[Tensor, "B T V"] | Factors:
        """Logits of every next target token, or their factors; all positions in parallel under the causal mask (teacher
        forcing). Nobody may ask for those of inputs that only fill up: `inputs_mask` is False there."""
        memory, mask, rows = self._read(source, source_mask)
        memories = (layer.cross.remember(memory, mask).laid_out(rows) for layer in self._decoder_layers())
        x = self._decode(inputs, memories, mask=inputs_mask)
        return self.factors(x) if factored else self.predict(x)

    def encode(
        self, source: Int[Tensor, "B S"], source_mask: Bool[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B S D"], Bool[Tensor, "B 1 1 S"]]:
        """The memory that every decoder layer looks at: the last encoder layer's output."""
        memory, mask, packing = self._read(source, source_mask)
        return unpacked(memory, packing), mask

    def start(self, source: Int[Tensor, "S L"], source_mask: Bool[Tensor, "S L"]) -> TransformerState:
        """Encode S texts and project their memory once for every decoder layer."""
        memory, mask = self.encode(source, source_mask)
        whole = None if bool(source_mask.all()) else mask  # without padding no mask is needed: the faster kernel
        memories = [layer.cross.remember(memory, whole) for layer in self._decoder_layers()]
        return TransformerState(memories, [GrowingCache(len(source)) for _ in memories])

    def step(self, tokens: Int[Tensor, "S W"], state: TransformerState) -> Float[Tensor, "S W V"]:
        """Feed one more token of W hypotheses of each of S texts; logits of the next."""
        return self.extend(tokens.reshape(-1, 1), state).view(*tokens.shape, -1)

    def extend(self, tokens: Int[Tensor, "R T"], state: TransformerState) -> Float[Tensor, "R T V"]:
        """Feed several tokens at once to each of R hypotheses; logits of the next after every one."""
        x = self._decode(tokens, state.memories, state)
        return self.predict(x)

    def fixed(self, state: TransformerState, width: int, room: tuple[int, int]) -> TransformerState:
        """An empty state of fixed shape for what `state` has read, with as much `room` as it asked for."""
        return fixed_state(self._decoder_layers(), state, width, room)

    def predict(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """One linear layer, whose softmax is the distribution over the vocabulary."""
        return self.output(*self.factors(x))

    def factors(self, x: Float[Tensor, "B T D"]) -> Factors:
        """What this layer multiplies."""
        return Factors(x * self.config.width**-0.5 if self.config.scale_output else x, self.output_weight)

    def _read(
        self, source: Int[Tensor, "B S"], source_mask: Bool[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "_ _ D"], Bool[Tensor, "B 1 1 S"], Packing | None]:
        """What `encode` yields, or its real tokens alone."""
        x, mask = self.dropout(self.embedding(source)), masks.padding(source_mask)
        bias, packing = self.encoder_position(source.shape[1], source.shape[1]), packing_for(x, source_mask)
        x = packed(x, packing)
        for layer in self.encoder:
            x = layer(x, mask, bias=bias, packing=packing)
        return self.dropout(self.encoder_norm(x)), mask, packing

    def _decode(
        self,
        tokens: Int[Tensor, "R T"],
        memories: Iterable[Memory],
        state: TransformerState | None = None,
        mask: Bool[Tensor, "R T"] | None = None,
    ) -> Float[Tensor, "R T D"]:
        x, seen = self.dropout(self.embedding(tokens)), 0 if state is None else state.open(tokens.shape[1])
        if state is not None and state.slots is not None:
            bias = self.decoder_position.at(seen - state.slots.position[None])
        else:
            assert isinstance(seen, int)
            bias = self.decoder_position(tokens.shape[1], seen + tokens.shape[1])
        packing = packing_for(x, mask)
        x = packed(x, packing)
        for number, (layer, memory) in enumerate(zip(self.decoder, memories, strict=True)):
            x = layer(x, memory, None if state is None else state.caches[number], bias, packing)
        return unpacked(self.dropout(self.decoder_norm(x)), packing)

    def _decoder_layers(self) -> Iterable[DecoderLayer]:
        return (layer for layer in self.decoder if isinstance(layer, DecoderLayer))

    def _attention(self) -> MultiHeadAttention:
        c = self.config
        return MultiHeadAttention(c.width, c.heads, head_width=c.head_width, bias=False, scale=1.0, dropout=c.dropout)

    def _feed_forward(self) -> FeedForward:
        c = self.config
        return FeedForward(c.width, c.ffn_width, c.activation, c.dropout, gated=c.gated, bias=False)

    def _initialise(self) -> None:
        """Each matrix by what goes into it; the queries also make up for the missing attention scale."""
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
