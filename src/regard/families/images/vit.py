"""The Vision Transformer: an image is 16x16 words (Dosovitskiy et al. 2021).

Presets: tiny (for 28-32 pixels and two cores), small-32 (for 32 pixels); ti, s, b, l and h, each with its patch size
(-32, -16, -14), as in the paper (b, l, h) and in Touvron et al. 2021 (ti, s). With `stem = "convolutions"` a few small
convolutions make the patches' vectors (Xiao et al. 2021).
Deviations: none known. Images may have other sizes: the positions are interpolated.
"""

from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn

from regard.attention.dropout import Dropout
from regard.attention.multihead import MultiHeadAttention
from regard.config import Fraction, refuse_uneven
from regard.layers.blocks import Activation, EncoderLayer, FeedForward
from regard.layers.example import IMAGES
from regard.layers.vision import GridPositions, Patches, PatchesConfig, drop_rates, refuse_coarse, small_weights

TI: dict[str, Any] = {"width": 192, "heads": 3, "depth": 12, "ffn_width": 768}
S: dict[str, Any] = {"width": 384, "heads": 6, "depth": 12, "ffn_width": 1536}
B: dict[str, Any] = {"width": 768, "heads": 12, "depth": 12, "ffn_width": 3072}
L: dict[str, Any] = {"width": 1024, "heads": 16, "depth": 24, "ffn_width": 4096}
H: dict[str, Any] = {"width": 1280, "heads": 16, "depth": 32, "ffn_width": 5120}
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"image_size": 28, "patch": 4, "width": 64, "heads": 4, "depth": 4, "ffn_width": 128},
    "small-32": {"image_size": 32, "patch": 4, "width": 192, "heads": 6, "depth": 9, "ffn_width": 384},
    "ti-16": {**TI, "patch": 16},
    "s-32": {**S, "patch": 32},
    "s-16": {**S, "patch": 16},
    "b-32": {**B, "patch": 32},
    "b-16": {**B, "patch": 16},
    "l-32": {**L, "patch": 32},
    "l-16": {**L, "patch": 16},
    "h-14": {**H, "patch": 14},
}


class VitConfig(PatchesConfig):
    """Sizes and choices of a Vision Transformer; the defaults are ViT-B/16."""

    heads: PositiveInt = 12
    depth: PositiveInt = 12
    ffn_width: PositiveInt = 3072
    pool: Literal["class", "mean"] = "class"  # what the head reads: a class token, or the mean of all patches
    activation: Activation = "gelu"
    attention_bias: bool = True  # of queries, keys and values
    norm_eps: PositiveFloat = 1e-6
    dropout: Fraction = 0.0
    attention_dropout: Fraction = 0.0
    drop_path: Fraction = 0.0  # of the last layer

    @model_validator(mode="after")
    def _check_shape(self) -> "VitConfig":
        refuse_uneven("width", self.width, "heads", self.heads)
        refuse_coarse("patch", self.patch, self.image_size)
        return self

    def map_widths(self) -> list[int]:
        return [self.width]

    def map_sides(self) -> list[int]:
        return [self.image_size // self.patch]


class Vit(nn.Module):
    """Patches as tokens, a Transformer encoder, and a linear head."""

    def __init__(self, config: VitConfig):
        super().__init__()
        self.config = c = config
        self.patches = Patches(c.channels, c.width, c.patch, stem=c.stem)
        self.class_token = nn.Parameter(torch.zeros(c.width)) if c.pool == "class" else None
        self.positions = GridPositions(c.width, c.image_size // c.patch, extra=1 if c.pool == "class" else 0)
        self.dropout = Dropout(c.dropout)
        self.encoder = nn.ModuleList(self._layer(rate) for rate in drop_rates(c.drop_path, c.depth))
        self.norm = nn.LayerNorm(c.width, eps=c.norm_eps)
        self.output = nn.Linear(c.width, c.classes)
        self.apply(small_weights)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B classes"]:
        """Logits of the classes."""
        tokens = self.tokens(images)
        return self.output(tokens[:, 0] if self.class_token is not None else tokens.mean(dim=1))

    def unembed(self, stream: Float[Tensor, "B T D"]) -> Float[Tensor, "B classes"]:
        """The logits that the stream after any layer would give."""
        tokens = self.norm(stream)
        return self.output(tokens[:, 0] if self.class_token is not None else tokens.mean(dim=1))

    def features(self, images: Float[Tensor, "B C H W"]) -> list[Float[Tensor, "B D h w"]]:
        """The patches after the last layer, as one map."""
        tokens = self.tokens(images)[:, self.positions.extra :]
        return [tokens.transpose(1, 2).unflatten(2, self.grid(images))]

    def tokens(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B T D"]:
        """Every token after the last layer; the class token, if there is one, comes first."""
        x = self.patches(images).flatten(1, 2)
        if self.class_token is not None:
            x = torch.cat([self.class_token.expand(len(x), 1, -1), x], dim=1)
        x = self.dropout(x + self.positions(self.grid(images)))
        for layer in self.encoder:
            x = layer(x)
        return self.norm(x)

    def grid(self, images: Float[Tensor, "B C H W"]) -> tuple[int, int]:
        """Rows and columns of patches."""
        return images.shape[2] // self.config.patch, images.shape[3] // self.config.patch

    def _layer(self, drop_path: float) -> EncoderLayer:
        c = self.config
        attention = MultiHeadAttention(
            c.width, c.heads, bias=c.attention_bias, output_bias=True, dropout=c.attention_dropout
        )
        feed_forward = FeedForward(c.width, c.ffn_width, c.activation)
        norm = partial(nn.LayerNorm, eps=c.norm_eps)
        return EncoderLayer(attention, feed_forward, c.dropout, "pre", norm, drop_path)


EXAMPLE = IMAGES
