"""The Vision Transformer: an image is 16x16 words (Dosovitskiy et al. 2021).

Presets: tiny (for 28-32 pixels and two cores), small-32 (for 32 pixels); ti, s, b, l and h, each with its patch size
(-32, -16, -14), as in the paper (b, l, h) and in Touvron et al. 2021 (ti, s). With `stem = "convolutions"` a few small
convolutions make the patches' vectors (Xiao et al. 2021). Options of DeiT (Touvron et al. 2021): a second class token,
taught by another model. Options of DINOv2 (Oquab et al. 2023): no head, branches with scales, and registers (Darcet et
al. 2024).
Deviations: none known. Images may have other sizes: the positions are interpolated.
"""

from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn

from regard.attention.dropout import Dropout
from regard.attention.multihead import MultiHeadAttention
from regard.config import Fraction, refuse_uneven
from regard.errors import ConfigError
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

    classes: NonNegativeInt = 1000  # 0: no head; the answer is the vector that a head would read
    heads: PositiveInt = 12
    depth: PositiveInt = 12
    ffn_width: PositiveInt = 3072
    pool: Literal["class", "mean", "both"] = "class"  # what the head reads: a class token, the mean of all patches
    pooler: bool = False  # one more layer with tanh before the head (BERT's)
    distillation: Literal["none", "token", "head"] = "none"  # a second class token, and a head of its own (DeiT)
    registers: NonNegativeInt = 0  # further tokens, without positions
    mask_token: bool = False  # a vector that stands for hidden patches
    antialias: bool = False  # of the positions for images of another size
    gated: bool = False
    layer_scale: bool = False  # a learned factor for each feature of each branch
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
        if self.distillation != "none" and self.pool != "class":
            raise ConfigError(f"distillation = {self.distillation!r}: needs pool = 'class', but pool = {self.pool!r}")
        if self.distillation == "head" and not self.classes:
            raise ConfigError("distillation = 'head': needs classes, but classes = 0; set distillation = 'token'")
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
        self.class_token = nn.Parameter(torch.zeros(c.width)) if c.pool != "mean" else None
        self.distillation_token = nn.Parameter(torch.zeros(c.width)) if c.distillation != "none" else None
        self.registers = nn.Parameter(torch.zeros(c.registers, c.width)) if c.registers else None
        self.mask_token = nn.Parameter(torch.zeros(c.width)) if c.mask_token else None
        first = (c.pool != "mean") + (c.distillation != "none")
        self.positions = GridPositions(c.width, c.image_size // c.patch, extra=first, antialias=c.antialias)
        self.extra_tokens = first + c.registers  # before the patches
        self.dropout = Dropout(c.dropout)
        self.encoder = nn.ModuleList(self._layer(rate) for rate in drop_rates(c.drop_path, c.depth))
        self.norm = nn.LayerNorm(c.width, eps=c.norm_eps)
        read = c.width * 2 if c.pool == "both" else c.width
        self.pooler = nn.Linear(read, read) if c.pooler else None
        self.output = nn.Linear(read, c.classes) if c.classes else nn.Identity()
        self.distilled_output = nn.Linear(read, c.classes) if c.distillation == "head" else None
        self.apply(small_weights)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B classes"]:
        """Logits of the classes; without a head, a vector of each image."""
        return self._answer(self.tokens(images))

    def unembed(self, stream: Float[Tensor, "B T D"]) -> Float[Tensor, "B classes"]:
        """The logits that the stream after any layer would give."""
        return self._answer(self.norm(stream))

    def _answer(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B classes"]:
        parts = {"class": [tokens[:, 0]], "mean": [], "both": [tokens[:, 0]]}[self.config.pool]
        if self.config.pool != "class":
            parts = [*parts, tokens[:, self.extra_tokens :].mean(dim=1)]
        read = torch.cat(parts, dim=1)
        answer = self.output(read if self.pooler is None else self.pooler(read).tanh())
        return answer if self.distilled_output is None else (answer + self.distilled_output(tokens[:, 1])) / 2

    def features(self, images: Float[Tensor, "B C H W"]) -> list[Float[Tensor, "B D h w"]]:
        """The patches after the last layer, as one map."""
        tokens = self.tokens(images)[:, self.extra_tokens :]
        return [tokens.transpose(1, 2).unflatten(2, self.grid(images))]

    def tokens(
        self, images: Float[Tensor, "B C H W"], hidden: Bool[Tensor, "B P"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """Every token after the last layer: class token, distillation token, registers, then the patches.

        Patches that are `hidden` are read as the mask token.
        """
        x = self.patches(images).flatten(1, 2)
        if hidden is not None:
            if self.mask_token is None:
                raise ConfigError("the model has no vector for hidden patches; set mask_token = true")
            x = torch.where(hidden[..., None], self.mask_token, x)
        first = [token for token in (self.class_token, self.distillation_token) if token is not None]
        x = torch.cat([*(token.expand(len(x), 1, -1) for token in first), x], dim=1) if first else x
        x = x + self.positions(self.grid(images))
        if self.registers is not None:
            begin, places = x[:, : len(first)], x[:, len(first) :]
            x = torch.cat([begin, self.registers.expand(len(x), -1, -1), places], dim=1)
        x = self.dropout(x)
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
        feed_forward = FeedForward(c.width, c.ffn_width, c.activation, gated=c.gated)
        norm = partial(nn.LayerNorm, eps=c.norm_eps)
        return EncoderLayer(attention, feed_forward, c.dropout, "pre", norm, drop_path, scaled=c.layer_scale)


EXAMPLE = IMAGES
