"""A decoder-only model: GPT-2 (Radford et al. 2019), and by its options a Llama (Touvron et al. 2023) or an iGPT.

Presets: nano and tiny (for two cores), character (10.6 M, nanoGPT's for Shakespeare), gpt2, gpt2-medium, gpt2-large and
gpt2-xl (the paper's); llama-tiny, llama-small and llama-7b; igpt-tiny (28 x 28 pixels), igpt-small, igpt-medium and
igpt-large (Chen et al. 2020: an image is the colours of its pixels, row by row, after a token that starts it).
Options of a Llama: rotary positions, RMS norm, a gated feed-forward with swish (SwiGLU, Shazeer 2020), fewer key/value
heads (Ainslie et al. 2023), no biases. Mistral adds a window (Jiang et al. 2023), Qwen2 biases of queries, keys and
values, Qwen3 a norm of every head, Gemma scaled embeddings and norms whose weights are stored as differences from 1.
Options of an iGPT: RMS norm, quick GELU, a start token that is never predicted.
Deviations: none known; sequences may be padded on either side, and positions count real tokens only.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import core as masks
from regard.attention.cache import GrowingCache, LayerCache, Slots, StaticCache, growing, positions, round_up
from regard.attention.dropout import Dropout
from regard.attention.multihead import MultiHeadAttention
from regard.attention.positions import LearnedPositions, Rotary, RotaryScaling
from regard.config import Config, Fraction, refuse_odd_heads, refuse_uneven
from regard.errors import ConfigError
from regard.layers.blocks import Activation, EncoderLayer, Factors, FeedForward, Norm, OffsetRMSNorm, Output
from regard.layers.example import LANGUAGE

LLAMA: dict[str, Any] = {
    "positions": "rotary", "norm": "rms", "norm_eps": 1e-6, "gated": True, "activation": "swish",
    "attention_bias": False, "ffn_bias": False, "tie": False, "dropout": 0.0, "embedding_dropout": 0.0,
    "attention_dropout": 0.0,
}  # fmt: skip
IGPT: dict[str, Any] = {
    "norm": "rms", "activation": "quick_gelu", "tie": False, "unpredicted": 1, "attention_dropout": 0.1,
}  # fmt: skip
NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "rms_offset": OffsetRMSNorm}
PRESETS: dict[str, dict[str, Any]] = {
    "nano": {"width": 128, "heads": 4, "depth": 4, "max_length": 64, "dropout": 0.0, "embedding_dropout": 0.0},
    "tiny": {"width": 256, "heads": 4, "depth": 4, "max_length": 256},
    "character": {"width": 384, "heads": 6, "depth": 6, "max_length": 256, "dropout": 0.2, "embedding_dropout": 0.2},
    "gpt2": {"width": 768, "heads": 12, "depth": 12},
    "gpt2-medium": {"width": 1024, "heads": 16, "depth": 24},
    "gpt2-large": {"width": 1280, "heads": 20, "depth": 36},
    "gpt2-xl": {"width": 1600, "heads": 25, "depth": 48},
    "llama-tiny": {**LLAMA, "width": 256, "heads": 8, "kv_heads": 2, "depth": 4, "ffn_width": 688, "max_length": 512},
    "llama-small": {**LLAMA, "width": 768, "heads": 12, "kv_heads": 4, "depth": 12, "ffn_width": 2048},
    "llama-7b": {**LLAMA, "width": 4096, "heads": 32, "depth": 32, "ffn_width": 11008, "max_length": 4096},
    "igpt-tiny": {**IGPT, "width": 128, "heads": 4, "depth": 6, "max_length": 784},
    "igpt-small": {**IGPT, "width": 512, "heads": 8, "depth": 24},
    "igpt-medium": {**IGPT, "width": 1024, "heads": 8, "depth": 36},
    "igpt-large": {**IGPT, "width": 1536, "heads": 16, "depth": 48},
}


class GptConfig(Config):
    """Sizes and choices of a language model; the defaults are the small GPT-2."""

    text_order: ClassVar = "blocks"  # how training presents a text; see modelling.py

    vocab: PositiveInt
    width: PositiveInt = 768
    heads: PositiveInt = 12
    kv_heads: PositiveInt | None = None  # None: as many as heads
    head_width: PositiveInt | None = None  # None: width / heads
    depth: PositiveInt = 12
    ffn_width: PositiveInt = 3072  # 4 x width unless given
    max_length: PositiveInt = 1024  # of learned positions; rotary positions continue beyond it, untrained
    positions: Literal["learned", "rotary"] = "learned"
    rotary_base: PositiveFloat = 10000.0
    rotary_scaling: RotaryScaling | None = None  # for texts longer than those of pretraining
    window: PositiveInt | None = None  # how many tokens, itself included, a token attends to; None: all before it
    window_layers: tuple[NonNegativeInt, ...] | None = None  # the layers with the window, from 0; None: all
    norm: Literal["layer", "rms", "rms_offset"] = "layer"  # rms_offset: its weights are differences from 1
    norm_eps: PositiveFloat = 1e-5
    activation: Activation = "gelu_new"
    gated: bool = False
    attention_bias: bool = True
    qkv_bias: bool = False  # biases of queries, keys and values where `attention_bias` is false
    head_norm: bool = False  # an RMS norm of every query and key
    ffn_bias: bool = True
    scaled: bool = True  # divide attention scores by √head_width
    scale_embedding: bool = False  # multiply embeddings by √width
    tie: bool = True  # the embedding is also the output matrix
    unpredicted: NonNegativeInt = 0  # the last tokens of the vocabulary that are only inputs (iGPT's start of image)
    dropout: Fraction = 0.1
    embedding_dropout: Fraction = 0.1
    attention_dropout: Fraction = 0.0

    @model_validator(mode="after")
    def _check_outputs(self) -> "GptConfig":
        if self.unpredicted and self.tie:
            raise ConfigError(f"unpredicted = {self.unpredicted}: needs an output matrix of its own; set tie = false")
        if self.unpredicted >= self.vocab:
            raise ConfigError(f"unpredicted = {self.unpredicted}: of {self.vocab} tokens, none is left to predict")
        return self

    @property
    def pixels(self) -> int:
        """Pixels of the images that it reads, one token each; 0 if it reads texts."""
        return self.max_length if self.unpredicted else 0

    @model_validator(mode="after")
    def _check_heads(self) -> "GptConfig":
        if self.head_width is None:
            refuse_uneven("width", self.width, "heads", self.heads)
        if self.kv_heads is not None:
            refuse_uneven("heads", self.heads, "kv_heads", self.kv_heads)
        if self.positions == "rotary":
            refuse_odd_heads(self.heads, self.head_width or self.width // self.heads)
        return self

    @model_validator(mode="after")
    def _check_window(self) -> "GptConfig":
        if self.window_layers is not None and self.window is None:
            raise ConfigError(f"window_layers = {list(self.window_layers)}: needs the size of the window; set window")
        if self.window_layers is not None and max(self.window_layers, default=0) >= self.depth:
            raise ConfigError(f"window_layers = {list(self.window_layers)}: there are {self.depth} layers, from 0 on")
        return self

    @model_validator(mode="after")
    def _check_scaling(self) -> "GptConfig":
        if self.rotary_scaling is not None and self.positions != "rotary":
            raise ConfigError(f"rotary_scaling: needs rotary positions, but positions = {self.positions!r}")
        if self.rotary_scaling is not None and self.rotary_base <= 1:
            raise ConfigError(f"rotary_scaling: needs a base above 1, but rotary_base = {self.rotary_base:g}")
        return self

    @model_validator(mode="before")
    @classmethod
    def _usual_ffn_width(cls, values: dict[str, Any]) -> dict[str, Any]:
        width = values.get("width", 768)
        return {"ffn_width": 4 * width, **values} if isinstance(width, int) else values


class GptState:
    """A decoding in progress: the keys and values so far and, if prompts were padded, which of them are real.

    With `slots` it has a fixed shape: all caches are static, and the slots say which keys are real.
    """

    def __init__(
        self,
        caches: Sequence[LayerCache],
        length: int | Int[Tensor, "S"],
        real: Bool[Tensor, "S T"] | None,
        slots: Slots | None = None,
    ):
        self.caches, self.length, self.real, self.slots = caches, length, real, slots

    def rows(self, width: int, tokens: int) -> tuple[int | Int[Tensor, "R"], Bool[Tensor, "R Tk"] | None]:
        """The position of the next token of each of R = S·W hypotheses, and which tokens are real, with the next."""
        if isinstance(self.length, int):
            return self.length, None
        first = self.length.repeat_interleave(width)
        if self.slots is not None:
            self.slots.open()
        if self.real is None:
            return first, None
        self.real = functional.pad(self.real, (0, tokens), value=True)
        return first, self.real.repeat_interleave(width, 0)

    def advance(self, tokens: int) -> None:
        """Count the tokens read; with slots in place, because a CUDA graph reads the same tensor."""
        if self.slots is not None and isinstance(self.length, Tensor):
            self.length += tokens
        else:
            self.length = self.length + tokens

    def storage_size(self, width: int, steps: int) -> int:
        """The number of slots that a state of fixed shape needs, rounded up so that few shapes occur."""
        return round_up(self.read + width * steps)

    @property
    def read(self) -> int:
        """The number of tokens read before the first step, padding included."""
        length = self.caches[0].length
        assert isinstance(length, int)
        return length

    def reset_from(self, state: "GptState") -> None:
        """In a state of fixed shape: start over with the prompts that `state` has read."""
        assert self.slots is not None and isinstance(self.length, Tensor)
        self.slots.reset(state.read, state.real)
        for mine, cache in zip(self.caches, state.caches, strict=True):
            assert isinstance(mine, StaticCache) and isinstance(cache, GrowingCache)
            mine.reset_from(cache)
        self.length.copy_(torch.as_tensor(state.length))

    def reorder(self, origin: Int[Tensor, "S W2"]) -> None:
        for cache in self.caches if self.slots is None else [self.slots]:
            cache.reorder(origin)

    def copy(self) -> "GptState":
        """An independent state that has read the same."""
        return GptState([cache.copy() for cache in growing(self.caches)], self.length, self.real)

    def rollback(self, tokens: int) -> None:
        """Remove the last tokens."""
        self.length = self.length - tokens
        if self.real is not None:
            self.real = self.real[:, : self.real.shape[1] - tokens]
        for cache in growing(self.caches):
            cache.rollback(tokens)

    def keep(self, sentences: Int[Tensor, "S2"]) -> None:
        for cache in self.caches:
            cache.keep(sentences)
        if self.real is not None and isinstance(self.length, Tensor):
            self.real, self.length = self.real[sentences], self.length[sentences]


class Gpt(nn.Module):
    """Predicts every next token of a text from those before it."""

    def __init__(self, config: GptConfig):
        super().__init__()
        self.config = c = config
        self.embedding = nn.Embedding(c.vocab, c.width)
        self.positions = LearnedPositions(c.width, c.max_length) if c.positions == "learned" else None
        self.dropout = Dropout(c.embedding_dropout)
        rotary = None
        if c.positions == "rotary":
            rotary = Rotary(c.head_width or c.width // c.heads, c.rotary_base, c.rotary_scaling, c.max_length)
        norm: Norm = partial(NORMS[c.norm], eps=c.norm_eps)
        self.decoder = nn.ModuleList(self._layer(rotary, norm) for _ in range(c.depth))
        self.norm = norm(c.width)
        outputs = c.vocab - c.unpredicted
        self.output_weight = self.embedding.weight if c.tie else nn.Parameter(torch.empty(outputs, c.width))
        self.output = Output()
        self._initialise()

    def forward(
        self, tokens: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | None = None, *, factored: bool = False
    ) -> Float[Tensor, "B T V"] | Factors:
        """Logits of every next token; with `factored`, unmultiplied. `mask` is False at padding, which may be at either
        end."""
        x = self._read(tokens, mask)
        return self.factors(x) if factored else self.predict(x)

    def start(self, source: Int[Tensor, "S L"], source_mask: Bool[Tensor, "S L"]) -> GptState:
        """Read S prompts except for their last tokens, which are fed to the first `step`."""
        lengths = source_mask.sum(1)
        caches = [GrowingCache(len(source), capacity=source.shape[1] + 32) for _ in self.decoder]
        # With padding on either side, the last column holds only last tokens and padding.
        before = (source_mask & (source_mask.cumsum(1) < lengths[:, None]))[:, :-1]
        padded = not bool(source_mask.all())
        if self.grows:  # the angles of a prompt depend on its whole length
            self._read(source, source_mask if padded else None, caches)
            for cache in caches:
                cache.rollback(1)
        elif source.shape[1] > 1:
            self._read(source[:, :-1], before if padded else None, caches)
        return GptState(caches, lengths - 1, before) if padded else GptState(caches, source.shape[1] - 1, None)

    def step(self, tokens: Int[Tensor, "S W"], state: GptState) -> Float[Tensor, "S W V"]:
        """Feed one token to W hypotheses of each of S prompts; returns the logits of the next."""
        return self._extend(tokens.reshape(-1, 1), state, tokens.shape[1]).view(*tokens.shape, -1)

    def extend(self, tokens: Int[Tensor, "S T"], state: GptState) -> Float[Tensor, "S T V"]:
        """Feed T tokens at once to one hypothesis of each of S prompts; returns the logits after every one of them."""
        return self._extend(tokens, state, 1)

    def _extend(self, tokens: Int[Tensor, "R T"], state: GptState, width: int) -> Float[Tensor, "R T V"]:
        first, real = state.rows(width, tokens.shape[1])
        x = self._decode(self._embed(tokens, first), real, first, state.caches)
        state.advance(tokens.shape[1])
        return self.predict(x)

    def static_state(self, state: GptState, width: int, size: int) -> GptState:
        """An empty state of fixed shape for the prompts that `state` has read; `size` is its `storage_size`."""
        weight, cache = self.output_weight, state.caches[0]
        assert isinstance(cache, GrowingCache)
        slots = Slots(cache.sentences, width, size, weight.device)
        layers = (layer for layer in self.decoder if isinstance(layer, EncoderLayer))
        caches = [layer.attention.static_cache(slots, weight.dtype) for layer in layers]
        return GptState(caches, torch.zeros(cache.sentences, dtype=torch.long, device=weight.device), None, slots)

    def predict(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """The output layer: one linear layer, whose softmax is the distribution over the vocabulary."""
        return self.output(*self.factors(x))

    def unembed(self, stream: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """The logits that the stream after any layer would give."""
        return self.predict(self.norm(stream))

    def factors(self, x: Float[Tensor, "B T D"]) -> Factors:
        """The unmultiplied logits: hidden states and output matrix."""
        return Factors(x, self.output_weight)

    def _read(
        self, tokens: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | None, caches: list[GrowingCache] | None = None
    ) -> Float[Tensor, "B T D"]:
        if mask is None:
            return self._decode(self._embed(tokens, 0), None, 0, caches)
        first = -mask.int().argmax(dim=1)  # left padding has positions below 0
        return self._decode(self._embed(tokens, first), mask, first, caches)

    def _embed(self, tokens: Int[Tensor, "B T"], first: int | Int[Tensor, "B"]) -> Float[Tensor, "B T D"]:
        x = self.embedding(tokens)
        if self.config.scale_embedding:
            x = x * self.config.width**0.5
        return self.dropout(x if self.positions is None else x + self.positions(tokens.shape[1], first))

    def _decode(
        self,
        x: Float[Tensor, "B T D"],
        real: Bool[Tensor, "B Tk"] | None,
        first: int | Int[Tensor, "B"],
        caches: Sequence[LayerCache] | None,
    ) -> Float[Tensor, "B T D"]:
        mask = None if real is None else masks.padding(real)
        windowed = masks.combine(mask, self._window(x.shape[1], real, None if caches is None else caches[0]))
        layers = self.config.window_layers
        for number, layer in enumerate(self.decoder):
            seen = windowed if layers is None or number in layers else mask
            x = layer(x, seen, causal=True, first=first, cache=None if caches is None else caches[number])
        return self.norm(x)

    def _window(
        self, tokens: int, real: Bool[Tensor, "B Tk"] | None, cache: LayerCache | None
    ) -> Bool[Tensor, "_ 1 #T Tk"] | None:
        """What the newest tokens see through the window, counted without padding; None for everything."""
        size = self.config.window
        if size is None:
            return None
        if isinstance(cache, StaticCache):
            return cache.slots.window(size)
        before = 0 if cache is None else cache.length
        assert isinstance(before, int)
        keys = before + tokens
        if not torch.compiler.is_compiling() and keys <= size:  # an exported graph is for every length
            return None
        every = torch.arange(keys, device=self.output_weight.device)[None] if real is None else positions(real)
        return masks.window(size, every[:, -tokens:], every)

    @property
    def grows(self) -> bool:
        """Whether a token's rotary angles depend on how long the text is (dynamic scaling)."""
        return self.config.rotary_scaling is not None and self.config.rotary_scaling.kind == "dynamic"

    def _scale(self) -> float | None:
        """The factor of attention scores; None: 1/√head_width."""
        c = self.config
        scale = (c.head_width or c.width // c.heads) ** -0.5 if c.scaled else 1.0
        if c.rotary_scaling is not None:
            return scale * c.rotary_scaling.score_factor
        return None if c.scaled else scale

    def _layer(self, rotary: Rotary | None, norm: Norm) -> EncoderLayer:
        c = self.config
        attention = MultiHeadAttention(
            c.width, c.heads, kv_heads=c.kv_heads, head_width=c.head_width, bias=c.attention_bias or c.qkv_bias,
            output_bias=c.attention_bias, scale=self._scale(), dropout=c.attention_dropout,
            head_norm=partial(nn.RMSNorm, eps=c.norm_eps) if c.head_norm else None, prepare=rotary,
        )  # fmt: skip
        feed_forward = FeedForward(c.width, c.ffn_width, c.activation, gated=c.gated, bias=c.ffn_bias)
        return EncoderLayer(attention, feed_forward, c.dropout, "pre", norm)

    def _initialise(self) -> None:
        """Initialise as GPT-2: small normal weights, smaller in layers whose output is added to the residual stream."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for layer in self.decoder:
            assert isinstance(layer, EncoderLayer)
            for joining in (layer.attention.output, layer.feed_forward.down):
                nn.init.normal_(joining.weight, std=0.02 / (2 * self.config.depth) ** 0.5)
        if not self.config.tie:
            nn.init.normal_(self.output_weight, std=0.02)


EXAMPLE = LANGUAGE
