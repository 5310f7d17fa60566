"""The Transformer, encoder and decoder (Vaswani et al. 2017, "Attention Is All You Need").

Presets: tiny, small, base and big (the last two as in the paper). Deviations offered as options: pre-norm (with a final
norm), GELU or swish, learned or rotary positions, a convolutional encoder (Gehring 2017) in place of self-attention.
"""

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn

from regard.attention import masks
from regard.attention.cache import GrowingCache, LayerCache, Slots, growing, rounded
from regard.attention.dropout import Dropout
from regard.attention.multihead import Memory, MultiHeadAttention
from regard.attention.packing import Packing, packed, packing_for, unpacked
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
from regard.layers.blocks import Activation, DecoderLayer, EncoderLayer, Factors, FeedForward, NormOrder, Output
from regard.layers.convolution import ConvolutionEncoder

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


class TransformerState:
    """A decoding in progress: per layer, the projected source and the keys and values of the tokens so far.

    With `slots` it is one of fixed shape: all caches are static, and the length is the slots'.
    """

    def __init__(self, memories: list[Memory], caches: list[LayerCache], length: int = 0, slots: Slots | None = None):
        self.memories, self.caches, self.length, self.slots = memories, caches, length, slots

    def room(self, width: int, steps: int) -> tuple[int, int]:
        """How long a source and how many slots a state of fixed shape needs, rounded up so that few shapes occur."""
        return rounded(self.memories[0].k.shape[2]), rounded(width * steps)

    def restart(self, state: "TransformerState") -> None:
        """Begin anew, in a state of fixed shape, with what `state` has read."""
        assert self.slots is not None
        self.slots.restart(0)
        for mine, memory in zip(self.memories, state.memories, strict=True):
            length = memory.k.shape[2]
            mine.k[:, :, :length], mine.v[:, :, :length] = memory.k, memory.v
            assert mine.mask is not None
            mine.mask.zero_()
            mine.mask[..., :length] = True if memory.mask is None else memory.mask

    def open(self, tokens: int) -> int | Int[Tensor, ""]:
        """Make room for the next tokens of every hypothesis, which with slots is one; the position of the first."""
        if self.slots is not None:
            self.slots.open()
            return self.slots.length
        self.length += tokens
        return self.length - tokens

    def reorder(self, origin: Int[Tensor, "S W2"]) -> None:
        for cache in self.caches if self.slots is None else [self.slots]:
            cache.reorder(origin)

    def fork(self) -> "TransformerState":
        """A copy that goes on by itself; the source is shared."""
        return TransformerState(self.memories, [cache.fork() for cache in growing(self.caches)], self.length)

    def forget(self, tokens: int) -> None:
        """Go back to before the last tokens."""
        self.length -= tokens
        for cache in growing(self.caches):
            cache.forget(tokens)

    def keep(self, sentences: Int[Tensor, "S2"]) -> None:
        lazily = all(isinstance(cache, GrowingCache) and cache.lazily for cache in self.caches)
        # Whoever reads the caches in any order reads the memories so, too.
        self.memories = [memory.keep(sentences, lazily=lazily) for memory in self.memories]
        for cache in self.caches:
            cache.keep(sentences)


def fixed_state(
    layers: Iterable[DecoderLayer], state: TransformerState, width: int, room: tuple[int, int]
) -> TransformerState:
    """An empty state of fixed shape for what `state` has read: the layers' memories and caches, and their slots."""
    memory, (longest, capacity) = state.memories[0].k, room
    sentences, device = len(memory), memory.device
    slots = Slots(sentences, width, capacity, device)
    memories = [
        Memory(
            each.k.new_zeros(*each.k.shape[:2], longest, each.k.shape[3]),
            each.v.new_zeros(*each.v.shape[:2], longest, each.v.shape[3]),
            torch.zeros(sentences, 1, 1, longest, dtype=torch.bool, device=device),
        )
        for each in state.memories
    ]
    caches: list[LayerCache] = [layer.attention.static_cache(slots, memory.dtype) for layer in layers]
    return TransformerState(memories, caches, slots=slots)


class Transformer(nn.Module):
    """Reads a source sequence and predicts a target sequence one token after another."""

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
        x = self.embed(inputs, self.target_embedding, self.target_place)
        packing = packing_for(x, inputs_mask)
        x = unpacked(self._decode(packed(x, packing), memories, packing=packing), packing)
        return self.factors(x) if factored else self.predict(x)

    def encode(
        self, source: Int[Tensor, "B S"], source_mask: Bool[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B S D"], Bool[Tensor, "B 1 1 S"]]:
        """The memory that every decoder layer looks at: the last encoder layer's output."""
        memory, mask, packing = self._read(source, source_mask)
        return unpacked(memory, packing), mask

    def start(self, source: Int[Tensor, "S L"], source_mask: Bool[Tensor, "S L"]) -> TransformerState:
        """Encode S sentences and project their memory once for every decoder layer."""
        memory, mask = self.encode(source, source_mask)
        whole = None if bool(source_mask.all()) else mask  # without padding no mask is needed: the faster kernel
        memories = [layer.cross.remember(memory, whole) for layer in self._decoder_layers()]
        return TransformerState(memories, [GrowingCache(len(source)) for _ in memories])

    def step(self, tokens: Int[Tensor, "S W"], state: TransformerState) -> Float[Tensor, "S W V"]:
        """Feed one more token of W hypotheses of each of S sentences; logits of the next."""
        return self.extend(tokens.reshape(-1, 1), state).view(*tokens.shape, -1)

    def extend(self, tokens: Int[Tensor, "R T"], state: TransformerState) -> Float[Tensor, "R T V"]:
        """Feed several tokens at once to each of R hypotheses; logits of the next after every one."""
        x = self.embed(tokens, self.target_embedding, self.target_place, first=state.open(tokens.shape[1]))
        return self.predict(self._decode(x, state.memories, state.caches))

    def fixed(self, state: TransformerState, width: int, room: tuple[int, int]) -> TransformerState:
        """An empty state of fixed shape for what `state` has read, with as much `room` as it asked for."""
        for module in self.modules():
            if isinstance(module, SinusoidalPositions):
                module.reserve(room[1] // width)
        return fixed_state(self._decoder_layers(), state, width, room)

    def predict(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """The generator: one linear layer, whose softmax is the distribution over the vocabulary."""
        return self.output(*self.factors(x))

    def factors(self, x: Float[Tensor, "B T D"]) -> Factors:
        """What the generator multiplies."""
        return Factors(x, self.output_weight, self.output_bias)

    def embed(
        self,
        tokens: Int[Tensor, "B T"],
        embedding: nn.Embedding,
        place: nn.Module | None,
        first: int | Int[Tensor, ""] = 0,
    ) -> Float[Tensor, "B T D"]:
        """Vectors of tokens that know where they stand; the first of them at position `first`."""
        x = embedding(tokens)
        if self.config.scale_embedding:
            x = x * math.sqrt(self.config.width)
        return self.dropout(x if place is None else place(x, first))

    def _read(
        self, source: Int[Tensor, "B S"], source_mask: Bool[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "_ _ D"], Bool[Tensor, "B 1 1 S"], Packing | None]:
        """What `encode` yields, or its real tokens alone."""
        x, mask = self.embed(source, self.source_embedding, self.source_place), masks.padding(source_mask)
        if isinstance(self.encoder, ConvolutionEncoder):
            return self.encoder_norm(self.encoder(x, source_mask)), mask, None
        packing = packing_for(x, source_mask)
        x = packed(x, packing)
        for layer in self.encoder:
            x = layer(x, mask, packing=packing)
        return self.encoder_norm(x), mask, packing

    def _decode(
        self,
        x: Float[Tensor, "R T D"],
        memories: Iterable[Memory],
        caches: list[LayerCache] | None = None,
        packing: Packing | None = None,
    ) -> Float[Tensor, "R T D"]:
        for number, (layer, memory) in enumerate(zip(self.decoder, memories, strict=True)):
            x = layer(x, memory, None if caches is None else caches[number], packing=packing)
        return self.decoder_norm(x)

    def _decoder_layers(self) -> Iterable[DecoderLayer]:
        return (layer for layer in self.decoder if isinstance(layer, DecoderLayer))

    def _place(self) -> nn.Module | None:
        """What tells the tokens where they stand; rotary positions do so inside the attention instead."""
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
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.width**-0.5)  # unit variance once scaled
        if self.config.tie == "none":
            nn.init.xavier_uniform_(self.output_weight)
