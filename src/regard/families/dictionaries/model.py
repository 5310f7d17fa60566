"""Sparse autoencoders: activations as sums of few features out of many (Bricken et al. 2023, Gao et al. 2024).

f = activation(W_e (x - b) + c), x' = Σ f_i d_i + b, where every d_i has length 1. Activations: `relu`, to be trained
with an L1 penalty, and `topk`, which keeps the k largest of each vector.
Presets: tiny (for models of width 64 and two cores), small, wide.
Deviations: vectors are divided by one number, so that their mean square is 1 whatever model they come from; directions
have length 1 by construction, so the part of their gradient along them is zero without being removed; directions begin
at vectors that the model reads instead of at random, because random ones are never active where vectors lie in few
dimensions.
"""

from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from pydantic import PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.config import Config
from regard.errors import ConfigError
from regard.layers.example import Example

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"features": 512, "k": 10},
    "small": {"features": 4096, "k": 32},
    "wide": {"features": 16384, "k": 32},
}
SPREAD = 0.1  # how far directions begin from a vector, so that those of equal vectors differ


class SparseAutoencoderConfig(Config):
    """Sizes and choices of a sparse autoencoder."""

    width: PositiveInt = 64  # of the vectors; the task takes it from the place that is read
    features: PositiveInt = 512
    activation: Literal["topk", "relu"] = "topk"
    k: PositiveInt = 10  # features of a vector that `topk` keeps
    length: PositiveFloat = 1.0  # of the parameters of a direction at first; steps turn short ones faster

    @model_validator(mode="after")
    def _check_k(self) -> "SparseAutoencoderConfig":
        if self.activation == "topk" and self.k > self.features:
            raise ConfigError(f"model.k is {self.k}, but there are {self.features} features; lower it")
        return self


class Coded(NamedTuple):
    """Vectors taken apart: their features, the same before the activation, and the vectors that features give back."""

    features: Float[Tensor, "N F"]
    scores: Float[Tensor, "N F"]
    vectors: Float[Tensor, "N D"]


class SparseAutoencoder(nn.Module):
    """A dictionary of directions. Features are measured in units of `scale`."""

    mean: Tensor
    scale: Tensor

    def __init__(self, config: SparseAutoencoderConfig):
        super().__init__()
        self.config = config
        self.encoder = nn.Linear(config.width, config.features)
        self.atoms = nn.Parameter(torch.empty(config.features, config.width))  # directions of any length
        self.bias = nn.Parameter(torch.zeros(config.width))
        self.register_buffer("mean", torch.zeros(config.width))  # of the vectors it was trained on
        self.register_buffer("scale", torch.ones(()))
        nn.init.normal_(self.atoms)
        with torch.no_grad():
            self.encoder.weight.copy_(self.directions)
        nn.init.zeros_(self.encoder.bias)

    @property
    def directions(self) -> Float[Tensor, "F D"]:
        """The direction of every feature, of length 1."""
        return functional.normalize(self.atoms, dim=-1)

    @torch.no_grad()
    def initialise(self, vectors: Float[Tensor, "N D"]) -> None:
        """Begin at the mean of some vectors, in units of their spread around it, with directions that lead to them.

        A direction has its largest score at the vector it leads to, so that at first every feature is active.
        Directions are alike, so the first sums of them are too large; an encoder that is scaled down to repair this at
        once has steps that are large beside its weights, and most features die of them.
        """
        mean = vectors.mean(dim=0)
        scale = (vectors - mean).square().mean().sqrt().clamp(min=1e-12)
        self.mean.copy_(mean)
        self.scale.copy_(scale)
        self.bias.copy_(mean / scale)
        chosen = torch.randperm(len(vectors)).repeat(-(-self.config.features // len(vectors)))[: self.config.features]
        noise = functional.normalize(torch.randn_like(self.atoms), dim=-1)
        directions = functional.normalize(vectors[chosen] - mean, dim=-1) + SPREAD * noise
        self.atoms.copy_(self.config.length * directions)
        self.encoder.weight.copy_(self.directions)

    def forward(self, vectors: Float[Tensor, "N D"]) -> Coded:
        """Take vectors apart and put them together again."""
        scores = self.scores(vectors)
        features = self.activate(scores)
        return Coded(features, scores, self.decode(features))

    def encode(self, vectors: Float[Tensor, "*rest D"]) -> Float[Tensor, "*rest F"]:
        """The features of vectors."""
        return self.activate(self.scores(vectors))

    def scores(self, vectors: Float[Tensor, "*rest D"]) -> Float[Tensor, "*rest F"]:
        """The features before the activation."""
        return self.encoder(vectors / self.scale - self.bias)

    def activate(self, scores: Float[Tensor, "*rest F"]) -> Float[Tensor, "*rest F"]:
        """The features that are not zero: the positive ones, or the k largest of them."""
        positive = functional.relu(scores)
        if self.config.activation == "relu":
            return positive
        return keep_largest(positive, self.config.k)

    def decode(self, features: Float[Tensor, "*rest F"]) -> Float[Tensor, "*rest D"]:
        """The vectors that features give."""
        return (features @ self.directions + self.bias) * self.scale

    def with_feature(self, vectors: Float[Tensor, "*rest D"], number: int, value: float) -> Float[Tensor, "*rest D"]:
        """Vectors in which one feature has another value. What the dictionary does not explain of them stays."""
        change = value - self.encode(vectors)[..., number : number + 1]
        return vectors + change * self.scale * self.directions[number]


def keep_largest(values: Float[Tensor, "*rest F"], count: int) -> Float[Tensor, "*rest F"]:
    """The largest values of each row, and zeros."""
    found, where = values.topk(count, dim=-1, sorted=False)
    return torch.zeros_like(values).scatter(-1, where, found)


def _read_vectors(model: SparseAutoencoder, rows: int, source: int, target: int) -> Coded:
    return model(torch.zeros(rows * target, model.config.width))


EXAMPLE = Example(_read_vectors, "target", "texts of {target} vectors")
