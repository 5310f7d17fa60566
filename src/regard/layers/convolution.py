"""Convolutions: a sequence encoder whose receptive field grows with depth (Gehring 2017, ConvS2S), and an encoder of
words from their characters (Kim et al. 2016)."""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.dropout import Dropout
from regard.attention.places import Argument, Computed, Result
from regard.errors import ConfigError


class GatedConvolution(nn.Module):
    """x ← (x + a ⊙ σ(b)) / √2, where [a, b] is a convolution over `kernel` neighbouring tokens; the last of them is the
    token itself if it is `causal`."""

    PLACES: ClassVar = {
        "input": Argument(channels_first=True),
        "gate": Computed("convolution", read=lambda module, args, options, output: _gate(output)),
        "residual": Result(channels_first=True),
    }

    def __init__(self, width: int, kernel: int, dropout: float, *, causal: bool = False):
        super().__init__()
        self.before = kernel - 1 if causal else 0  # zeros that the convolution does not add itself
        self.convolution = nn.Conv1d(width, 2 * width, kernel, padding=0 if causal else kernel // 2)
        self.dropout = Dropout(dropout)
        # Keeps the variance constant over many layers: the gate passes a third of it, dropout scales it by 1 / (1 - p).
        # (Gehring 2017, section 3.5, assumes a quarter, which holds only for gates near zero.)
        nn.init.normal_(self.convolution.weight, std=math.sqrt(3 * (1 - dropout) / (kernel * width)))

    def forward(self, x: Float[Tensor, "B D T"], padding: Bool[Tensor, "B 1 T"] | None) -> Float[Tensor, "B D T"]:
        seen = self.dropout(x)
        if self.before:
            seen = functional.pad(seen, (self.before, 0))
        mixed = functional.glu(self.convolution(seen), dim=1)
        x = (x + mixed) * math.sqrt(0.5)
        return x if padding is None else x.masked_fill(padding, 0.0)


def _gate(convolved: Float[Tensor, "B D2 T"]) -> Float[Tensor, "B T D"]:
    return torch.sigmoid(convolved.chunk(2, dim=1)[1]).transpose(1, 2)


class ConvolutionEncoder(nn.Module):
    """Gated convolutions with residual connections; padding is zero in every layer, as beyond the sentence's ends.

    Weight normalisation is left out: the scaled residuals keep a few layers stable without it.
    """

    def __init__(self, width: int, depth: int, kernel: int = 3, dropout: float = 0.0):
        super().__init__()
        if kernel % 2 == 0:
            raise ConfigError(f"kernel {kernel} has no middle; choose an odd one, such as {kernel + 1}")
        self.layers = nn.ModuleList(GatedConvolution(width, kernel, dropout) for _ in range(depth))
        self.receptive_field = 1 + depth * (kernel - 1)

    def forward(self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, "B T D"]:
        padding = None if mask is None else ~mask[:, None]
        x = x.transpose(1, 2)
        if padding is not None:
            x = x.masked_fill(padding, 0.0)
        for layer in self.layers:
            x = layer(x, padding)
        return x.transpose(1, 2)


class Highway(nn.Module):
    """x ← g ⊙ x + (1 - g) ⊙ relu(W x + b), where g = σ(V x + c) initially passes most of x (Srivastava 2015)."""

    PLACES: ClassVar = {"gate": Computed("gate", read=lambda module, args, options, output: torch.sigmoid(output))}

    def __init__(self, width: int):
        super().__init__()
        self.change, self.gate = nn.Linear(width, width), nn.Linear(width, width)
        nn.init.ones_(self.gate.bias)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        return torch.lerp(functional.relu(self.change(x)), x, torch.sigmoid(self.gate(x)))


class CharacterEncoder(nn.Module):
    """A vector for every word from its characters: convolutions, the maximum of each filter, highways, a projection."""

    def __init__(self, characters: int, width: int, filters: Sequence[tuple[int, int]], highways: int, output: int):
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.filters = nn.ModuleList(nn.Conv1d(width, count, kernel) for kernel, count in filters)
        total = sum(count for _, count in filters)
        self.highways = nn.Sequential(*(Highway(total) for _ in range(highways)))
        self.project = nn.Linear(total, output)

    def forward(self, characters: Int[Tensor, "*B C"]) -> Float[Tensor, "*B D"]:
        x = self.embedding(characters.flatten(0, -2)).transpose(1, 2)
        found = torch.cat([functional.relu(conv(x).amax(-1)) for conv in self.filters], dim=-1)
        return self.project(self.highways(found)).view(*characters.shape[:-1], -1)
