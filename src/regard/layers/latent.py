"""Latent vectors: normal distributions, and the sampler that covers what a decoder may make of them."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.layers.blocks import FeedForward

LEAST_DEVIATION = 1e-4


class Gaussian(NamedTuple):
    """Independent normal distributions."""

    mean: Float[Tensor, "*shape"]
    log_variance: Float[Tensor, "*shape"]

    def at(self, noise: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The value that standard normal noise stands for."""
        return self.mean + noise * (0.5 * self.log_variance).exp()

    def divergence(self, other: "Gaussian") -> Float[Tensor, "*shape"]:
        """KL(self ‖ other), element by element."""
        ratio = self.log_variance - other.log_variance
        square = (self.mean - other.mean) ** 2 * (-other.log_variance).exp()
        return 0.5 * (ratio.exp() + square - 1 - ratio)


class DiverseSampler(nn.Module):
    """DLow (Yuan & Kitani 2020): K affine maps of the noise of each agent, z_k = A_k ε + b_k with diagonal A_k."""

    def __init__(self, width: int, ffn_width: int, outputs: int, latent: int, count: int):
        super().__init__()
        self.latent, self.count = latent, count
        self.hidden = FeedForward(width, ffn_width, outputs=outputs)
        self.deviation, self.mean = (nn.Linear(outputs, count * latent) for _ in range(2))

    def forward(self, pooled: Float[Tensor, "B N D"]) -> Gaussian:
        """Distributions [B K N L]."""
        hidden = torch.relu(self.hidden(pooled))
        mean, deviation = (
            each.unflatten(-1, (self.count, self.latent)).transpose(1, 2)
            for each in (self.mean(hidden), self.deviation(hidden))
        )
        return Gaussian(mean, (deviation**2 + LEAST_DEVIATION**2).log())
