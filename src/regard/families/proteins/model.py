"""Do two proteins bind? One encoder reads both, each then looks at the other, and a symmetrical head compares them.

Convolutions with pooling make tokens of 16 residues, so that a protein of 5,000 residues is 313 tokens. Layers of
self-attention with rotary positions follow, then layers in which each protein attends to the other with the same
weights. A learned query pools each protein. The head reads only symmetrical functions of the two vectors (product,
absolute difference, sum), so that swapping the proteins gives the same answer.
After PIPR (Chen et al. 2019: a Siamese residual network of convolutions and GRUs, whose vectors are multiplied).
Presets: tiny, small, base. Deviations from PIPR: attention instead of recurrence; residue vectors are learned with the
task, not before it; sequences are not cut at 2,000 residues.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import core as masks
from regard.attention.dropout import Dropout
from regard.attention.multihead import MultiHeadAttention
from regard.attention.positions import Rotary
from regard.config import Config, Fraction, refuse_even, refuse_uneven
from regard.errors import ConfigError
from regard.layers.blocks import CrossLayer, EncoderLayer, FeedForward
from regard.layers.example import Example, all_real, blank_tokens


class PooledConvolution(nn.Module):
    """A convolution over `kernel` neighbours, a norm and GELU, then the maximum of every `pool` places.

    Padding is zero before the convolution and never the maximum, so that batched output equals single output.
    """

    def __init__(self, inputs: int, width: int, kernel: int, pool: int, dropout: float):
        super().__init__()
        refuse_even("kernel", kernel)
        self.convolution = nn.Conv1d(inputs, width, kernel, padding=kernel // 2)
        self.norm, self.dropout, self.pool = nn.LayerNorm(width), Dropout(dropout), pool

    def forward(
        self, x: Float[Tensor, "B T C"], mask: Bool[Tensor, "B T"]
    ) -> tuple[Float[Tensor, "B T2 D"], Bool[Tensor, "B T2"]]:
        """The pooled places, and which of them have a real place."""
        x = x.masked_fill(~mask[..., None], 0.0)
        x = self.convolution(x.transpose(1, 2)).transpose(1, 2)
        x = functional.gelu(self.norm(x)).masked_fill(~mask[..., None], float("-inf"))
        missing = -x.shape[1] % self.pool
        if missing:
            x = functional.pad(x, (0, 0, 0, missing), value=float("-inf"))
            mask = functional.pad(mask, (0, missing))
        x = x.view(x.shape[0], -1, self.pool, x.shape[-1]).amax(dim=2)
        real = mask.view(mask.shape[0], -1, self.pool).any(dim=2)
        return self.dropout(x.masked_fill(~real[..., None], 0.0)), real


class ResidueFront(nn.Module):
    """Pooled convolutions one after another; the last has the width of the layers that follow."""

    def __init__(self, inputs: int, width: int, kernel: int, pools: Sequence[int], dropout: float):
        super().__init__()
        widths = [inputs] * len(pools) + [width]
        self.stages = nn.ModuleList(
            PooledConvolution(before, after, kernel, pool, dropout)
            for (before, after), pool in zip(pairwise(widths), pools, strict=True)
        )

    def forward(
        self, x: Float[Tensor, "B T C"], mask: Bool[Tensor, "B T"]
    ) -> tuple[Float[Tensor, "B T2 D"], Bool[Tensor, "B T2"]]:
        for stage in self.stages:
            x, mask = stage(x, mask)
        return x, mask


def stacked(first: Shaped[Tensor, "B T"], second: Shaped[Tensor, "B S"]) -> Shaped[Tensor, "B2 T2"]:
    """Two padded batches of sequences as one, padded with zeros to the longer of the two."""
    longest = max(first.shape[1], second.shape[1])
    return torch.cat([functional.pad(each, (0, longest - each.shape[1])) for each in (first, second)])


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"front_width": 16, "width": 32, "heads": 2, "depth": 1, "ffn_width": 64},
    "small": {"front_width": 64, "width": 128, "heads": 4, "depth": 2, "ffn_width": 256},
    "base": {"front_width": 128, "width": 256, "heads": 8, "depth": 3, "ffn_width": 512},
}


class InteractorConfig(Config):
    """Sizes of a model of protein pairs; the defaults are those of preset small."""

    symbols: PositiveInt = 21  # letters that a sequence may have: 20 amino acids and X
    front_width: PositiveInt = 64
    kernel: PositiveInt = 7  # residues that a convolution reads
    pools: tuple[PositiveInt, ...] = (4, 4)  # places that become one after each convolution
    width: PositiveInt = 128
    heads: PositiveInt = 4
    depth: NonNegativeInt = 2
    cross_depth: NonNegativeInt = 1  # layers in which the proteins look at each other
    ffn_width: PositiveInt = 256
    max_length: PositiveInt = 8192  # residues
    dropout: Fraction = 0.1

    @model_validator(mode="after")
    def _check(self) -> "InteractorConfig":
        refuse_uneven("width", self.width, "heads", self.heads)
        if self.width // self.heads % 2:
            raise ConfigError(f"width = {self.width}: a head of rotary positions has an even width")
        refuse_even("kernel", self.kernel)
        if not self.pools:
            raise ConfigError("pools = []: the front needs one convolution at least")
        return self

    @property
    def residues_per_token(self) -> int:
        """How many residues become one token."""
        return math.prod(self.pools)


class Interactor(nn.Module):
    """A shared encoder, attention between the proteins, and a symmetrical head."""

    def __init__(self, config: InteractorConfig):
        super().__init__()
        self.config = c = config
        self.embedding = nn.Embedding(c.symbols, c.front_width)
        self.front = ResidueFront(c.front_width, c.width, c.kernel, c.pools, c.dropout)
        self.encoder = nn.ModuleList(self._layer() for _ in range(c.depth))
        self.norm = nn.LayerNorm(c.width)
        self.links = nn.ModuleList(
            CrossLayer(MultiHeadAttention(c.width, c.heads), self._feed_forward(), c.dropout)
            for _ in range(c.cross_depth)
        )
        self.query = nn.Parameter(torch.zeros(1, 1, c.width))  # at first it pools evenly
        self.pool = MultiHeadAttention(c.width, c.heads)
        self.dropout = Dropout(c.dropout)
        self.output = FeedForward(3 * c.width, c.width, "gelu", c.dropout, outputs=1)

    def forward(
        self,
        first: Int[Tensor, "B T"],
        first_mask: Bool[Tensor, "B T"],
        second: Int[Tensor, "B S"],
        second_mask: Bool[Tensor, "B S"],
    ) -> Float[Tensor, "B"]:
        """The logit that two proteins bind; they are read as numbers of letters, padded on the right."""
        x, real = self.encode(stacked(first, second), stacked(first_mask, second_mask))
        others = masks.padding(torch.cat(real.chunk(2)[::-1]))
        for link in self.links:
            x = link(x, torch.cat(x.chunk(2)[::-1]), others)
        pooled = self.pool(self.query.expand(len(x), -1, -1), x, mask=masks.padding(real))[:, 0]
        one, other = self.dropout(pooled).chunk(2)
        return self.output(torch.cat([one * other, (one - other).abs(), one + other], dim=-1))[:, 0]

    def encode(
        self, letters: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"]
    ) -> tuple[Float[Tensor, "B T2 D"], Bool[Tensor, "B T2"]]:
        """Tokens of each protein by itself, and which of them are real."""
        x, real = self.front(self.embedding(letters), mask)
        visible = masks.padding(real)
        for layer in self.encoder:
            x = layer(x, visible)
        return self.norm(x), real

    def _layer(self) -> EncoderLayer:
        c = self.config
        attention = MultiHeadAttention(c.width, c.heads, prepare=Rotary(c.width // c.heads))
        return EncoderLayer(attention, self._feed_forward(), c.dropout, "pre")

    def _feed_forward(self) -> FeedForward:
        return FeedForward(self.config.width, self.config.ffn_width, "gelu")


def _read_proteins(model: Interactor, rows: int, source: int, target: int) -> Float[Tensor, "B"]:
    first, second = blank_tokens(rows, source), blank_tokens(rows, target)
    return model(first, all_real(rows, source), second, all_real(rows, target))


EXAMPLE = Example(_read_proteins, reads="pairs of proteins of {source} and {target} residues")
