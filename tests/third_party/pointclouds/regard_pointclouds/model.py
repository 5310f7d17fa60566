"""A Transformer over points: each is a token of three numbers, and their order means nothing."""

from typing import Any

from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from regard.attention import MultiHeadAttention
from regard.config import Config
from regard.layers.blocks import EncoderLayer, FeedForward

PRESETS: dict[str, dict[str, Any]] = {"tiny": {"width": 32, "heads": 2, "depth": 2}}


class PointConfig(Config):
    """Sizes of a Transformer over points."""

    width: PositiveInt = 64
    heads: PositiveInt = 4
    depth: PositiveInt = 3
    classes: PositiveInt = 3


class PointTransformer(nn.Module):
    """Points, encoder layers, and a linear layer on the mean of the tokens."""

    def __init__(self, config: PointConfig) -> None:
        super().__init__()
        self.config = c = config
        self.points = nn.Linear(3, c.width)
        self.encoder = nn.ModuleList(
            EncoderLayer(MultiHeadAttention(c.width, c.heads), FeedForward(c.width, 2 * c.width, "gelu"), 0.0, "pre")
            for _ in range(c.depth)
        )
        self.norm, self.output = nn.LayerNorm(c.width), nn.Linear(c.width, c.classes)

    def forward(self, points: Float[Tensor, "B T 3"]) -> Float[Tensor, "B classes"]:
        """Logits of the shapes."""
        tokens = self.points(points)
        for layer in self.encoder:
            tokens = layer(tokens)
        return self.output(self.norm(tokens).mean(dim=1))
