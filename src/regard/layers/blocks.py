"""The blocks of every Transformer: residual connections, feed-forward networks, encoder and decoder layers."""

import math
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.cache import LayerCache
from regard.attention.dropout import Dropout
from regard.attention.multihead import Memory, MultiHeadAttention
from regard.attention.packing import Packing
from regard.attention.places import Argument, Computed, Result
from regard.errors import ConfigError


def xavier_weights(model: nn.Module, embedding: float) -> None:
    """Linear layers after Glorot and Bengio 2010, without biases; embeddings with this standard deviation."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=embedding)


def closed(layer: nn.Linear) -> nn.Linear:
    """The layer with zeros: the branch that ends with it adds nothing at first."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def opened(layer: nn.Linear) -> nn.Linear:
    """The layer as a gate that is open at first, whatever its input."""
    nn.init.zeros_(layer.weight)
    nn.init.ones_(layer.bias)
    return layer


class OffsetRMSNorm(nn.RMSNorm):
    """RMSNorm whose weights are stored as their differences from 1 (Gemma)."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        return functional.rms_norm(x, self.normalized_shape, 1 + self.weight, self.eps)


EVEN, MANY = 8, 64  # row multiples for small and large vocabularies: 16 and 128 bytes in half precision

NormOrder = Literal["post", "pre", "branch"]
Norm = Callable[[int], nn.Module]  # a width -> a norm: nn.LayerNorm, nn.RMSNorm, or either with its eps
Activation = Literal["relu", "gelu", "gelu_new", "quick_gelu", "swish"]


def quick_gelu(x: Tensor) -> Tensor:
    """x σ(1.702 x), the approximation of GELU that iGPT was trained with."""
    return x * torch.sigmoid(1.702 * x)


def gelu_new(x: Tensor) -> Tensor:
    """½ x (1 + tanh u), u = √(2/π) (x + 0.044715 x³), the approximation of GELU in GPT-2 and ALBERT.

    Compiled code computes it as x σ(2u), the same function, since on a GPU a tanh takes several times as long as a σ.
    """
    if torch.compiler.is_compiling():
        return x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))
    return functional.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_new": gelu_new,
    "quick_gelu": quick_gelu,
    "swish": functional.silu,
}


class DropPath(nn.Module):
    """Stochastic depth (Huang 2016): in training a whole branch is left out for some of the examples."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Float[Tensor, "B *rest"]) -> Float[Tensor, "B *rest"]:
        if not (self.training and self.rate):
            return x
        kept = x.new_empty(len(x), *[1] * (x.dim() - 1)).bernoulli_(1 - self.rate)
        return x * (kept / (1 - self.rate))


class Residual(nn.Module):
    """Add & norm: LayerNorm(x + Dropout(f(x))) as in the paper, or x + Dropout(f(LayerNorm(x))) (pre-norm).

    With `branch` the norm is at the end of the branch: x + LayerNorm(Dropout(f(x))) (Swin V2's res-post-norm). `scaled`
    multiplies f(x) by a learned factor for each feature (LayerScale, Touvron 2021).
    """

    def __init__(
        self,
        width: int,
        dropout: float,
        order: NormOrder,
        norm: Norm = nn.LayerNorm,
        drop_path: float = 0.0,
        *,
        scaled: bool = False,
    ):
        super().__init__()
        self.norm, self.dropout, self.order = norm(width), Dropout(dropout), order
        self.drop_path = DropPath(drop_path)
        self.scale = nn.Parameter(torch.ones(width)) if scaled else None

    def forward(
        self, x: Float[Tensor, "B *T D"], branch: Callable[[Float[Tensor, "B *T D"]], Float[Tensor, "B *T D"]]
    ) -> Float[Tensor, "B *T D"]:
        change = self.dropout(branch(self.norm(x) if self.order == "pre" else x))
        if self.scale is not None:
            change = change * self.scale
        if self.order == "branch":
            change = self.norm(change)
        x = x + self.drop_path(change)
        return self.norm(x) if self.order == "post" else x


class HalfResidual(Residual):
    """A residual connection whose sums are in autocast's half precision; autocast alone keeps sums in float32."""

    def __init__(self, residual: Residual):
        self.__dict__.update(residual.__dict__)  # the same parts, so parameters and state-dict keys stay as they are

    def forward(
        self, x: Float[Tensor, "B *T D"], branch: Callable[[Float[Tensor, "B *T D"]], Float[Tensor, "B *T D"]]
    ) -> Float[Tensor, "B *T D"]:
        kind = x.device.type
        if not torch.is_autocast_enabled(kind):
            return super().forward(x, branch)
        dtype = torch.get_autocast_dtype(kind)
        return super().forward(x.to(dtype), branch).to(dtype)


def keep_half(model: nn.Module) -> None:
    """Replace all residual connections of a model by `HalfResidual`s."""
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, Residual)
    ]
    if not found:
        raise ConfigError("training.precision is 'bf16-stream', but the model has no layers of a Transformer; set bf16")
    for parent, name, child in found:
        setattr(parent, name, HalfResidual(child))


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2 for each token separately (Vaswani 2017, equation 2).

    `gated` multiplies the hidden layer by an activated gate: f(x G) · (x W1), then W2 (Shazeer 2020; SwiGLU with
    swish). The output is as wide as the input unless `outputs` is given.
    """

    PLACES: ClassVar = {
        "hidden": Argument("down"),
        "gate": Computed("gate", read=lambda module, args, options, output: module.activation(output)),
    }

    def __init__(
        self,
        width: int,
        hidden: int,
        activation: Activation = "relu",
        dropout: float = 0.0,
        *,
        gated: bool = False,
        bias: bool = True,
        outputs: int | None = None,
    ):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden, bias=bias), nn.Linear(hidden, outputs or width, bias=bias)
        self.gate = nn.Linear(width, hidden, bias=bias) if gated else None
        self.activation, self.dropout = ACTIVATIONS[activation], Dropout(dropout)

    def forward(self, x: Float[Tensor, "B *T D"]) -> Float[Tensor, "B *T D2"]:
        if self.gate is None:
            return self.down(self.dropout(self.activation(self.up(x))))
        return self.down(self.dropout(self.activation(self.gate(x)) * self.up(x)))


class Factors(NamedTuple):
    """Unmultiplied logits: hidden states, output matrix, bias. A loss may multiply them piece by piece."""

    hidden: Float[Tensor, "*B D"]
    weight: Float[Tensor, "V D"]
    bias: Float[Tensor, "V"] | None = None

    def chunk(self, parts: int) -> "list[Factors]":
        """The factors of parts of the rows, like `Tensor.chunk` of the logits."""
        return [Factors(part, self.weight, self.bias) for part in self.hidden.chunk(parts)]


class Output(nn.Module):
    """`linear` with a matrix of another module, usually the embedding. As a separate module it can be replaced in the
    inference form of a model."""

    def forward(
        self, x: Float[Tensor, "*B D"], weight: Float[Tensor, "V D"], bias: Float[Tensor, "V"] | None = None
    ) -> Float[Tensor, "*B V"]:
        if not weight.is_cuda:
            return functional.linear(x, weight, bias)
        return functional.linear(x, *even(weight, bias))[..., : len(weight)]


def even(weight: Float[Tensor, "V D"], bias: Float[Tensor, "V"] | None) -> tuple[Tensor, Tensor | None]:
    """Weights zero-padded to a multiple of 8 rows, or of 64 for large vocabularies: with other sizes a GPU's
    half-precision kernels are several times slower."""
    missing = -len(weight) % (EVEN if len(weight) < MANY**2 else MANY)
    if not missing:
        return weight, bias
    return functional.pad(weight, (0, 0, 0, missing)), None if bias is None else functional.pad(bias, (0, missing))


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward network; with `causal`, the layer of a language model."""

    PLACES: ClassVar = {"input": Argument(), "after_attention": Result("after_attention"), "residual": Result()}

    def __init__(
        self,
        attention: MultiHeadAttention,
        feed_forward: FeedForward,
        dropout: float,
        order: NormOrder,
        norm: Norm = nn.LayerNorm,
        drop_path: float = 0.0,
        *,
        scaled: bool = False,
    ):
        super().__init__()
        width = attention.query.in_features
        self.attention, self.feed_forward = attention, feed_forward
        self.after_attention = Residual(width, dropout, order, norm, drop_path, scaled=scaled)
        self.after_feed_forward = Residual(width, dropout, order, norm, drop_path, scaled=scaled)

    def forward(
        self,
        x: Float[Tensor, "R T D"],
        mask: Bool[Tensor, "S 1 #Tq Tk"] | None = None,
        *,
        bias: Float[Tensor, "1 H Tq Tk"] | None = None,
        causal: bool = False,
        cache: LayerCache | None = None,
        first: int | Int[Tensor, "B"] | None = None,
        packing: Packing | None = None,
    ) -> Float[Tensor, "R T D"]:
        """R is the batch and T = Tq, unless the tokens are packed into one row. With a static cache, R = S·W hypotheses
        have a mask for each of S sentences."""
        looks = partial(self.attention, mask=mask, bias=bias, causal=causal, cache=cache, first=first, packing=packing)
        x = self.after_attention(x, looks)
        return self.after_feed_forward(x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Causal self-attention, then cross-attention to the source, then a feed-forward network."""

    PLACES: ClassVar = {
        "input": Argument(),
        "after_attention": Result("after_attention"),
        "after_cross": Result("after_cross"),
        "residual": Result(),
    }

    def __init__(
        self,
        attention: MultiHeadAttention,
        cross: MultiHeadAttention,
        feed_forward: FeedForward,
        dropout: float,
        order: NormOrder,
        norm: Norm = nn.LayerNorm,
    ):
        super().__init__()
        width = attention.query.in_features
        self.attention, self.cross, self.feed_forward = attention, cross, feed_forward
        self.after_attention = Residual(width, dropout, order, norm)
        self.after_cross = Residual(width, dropout, order, norm)
        self.after_feed_forward = Residual(width, dropout, order, norm)

    def forward(
        self,
        x: Float[Tensor, "R T D"],
        memory: Memory,
        cache: LayerCache | None = None,
        bias: Float[Tensor, "1 H Tq Tk"] | None = None,
        packing: Packing | None = None,
    ) -> Float[Tensor, "R T D"]:
        """In training R is the batch, or 1 if that is packed. When decoding, R = S·W hypotheses share the memory of S
        sentences."""
        x = self.after_attention(x, lambda h: self.attention(h, bias=bias, causal=True, cache=cache, packing=packing))
        # All hypotheses of a sentence query its memory at once, so it is not copied for a beam.
        grid = x if packing is not None else x.view(memory.sequences, -1, x.shape[-1])
        grid = self.after_cross(grid, lambda h: self.cross(h, memory, packing=packing))
        return self.after_feed_forward(grid, self.feed_forward).view_as(x)


class CrossLayer(nn.Module):
    """Attention to another sequence, then a feed-forward network; norms come after the sums (Lu et al. 2019)."""

    PLACES: ClassVar = {"input": Argument(), "after_cross": Result("after_cross"), "residual": Result()}

    def __init__(self, cross: MultiHeadAttention, feed_forward: FeedForward, dropout: float, norm: Norm = nn.LayerNorm):
        super().__init__()
        width = cross.query.in_features
        self.cross, self.feed_forward = cross, feed_forward
        self.after_cross = Residual(width, dropout, "post", norm)
        self.after_feed_forward = Residual(width, dropout, "post", norm)

    def forward(
        self, x: Float[Tensor, "B T D"], memory: Float[Tensor, "B Tk M"], mask: Bool[Tensor, "B 1 1 Tk"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """`mask` says which places of the memory are real."""
        x = self.after_cross(x, lambda h: self.cross(h, memory, mask=mask))
        return self.after_feed_forward(x, self.feed_forward)


class CoAttentionLayer(nn.Module):
    """Two sequences, each of which attends to the other as it was before the layer."""

    def __init__(self, words: CrossLayer, regions: CrossLayer):
        super().__init__()
        self.words, self.regions = words, regions

    def forward(
        self,
        words: Float[Tensor, "B T D"],
        regions: Float[Tensor, "B R E"],
        words_mask: Bool[Tensor, "B 1 1 T"],
        regions_mask: Bool[Tensor, "B 1 1 R"],
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B R E"]]:
        return self.words(words, regions, regions_mask), self.regions(regions, words, words_mask)
