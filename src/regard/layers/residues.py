"""A front for long sequences: convolutions over neighbours, each followed by a maximum over a few places."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.dropout import Dropout
from regard.errors import ConfigError


class PooledConvolution(nn.Module):
    """A convolution over `kernel` neighbours, a norm and GELU, then the maximum of every `pool` places.

    Padding is zero before the convolution and never the maximum, so that a batch gives what its sequences give alone.
    """

    def __init__(self, inputs: int, width: int, kernel: int, pool: int, dropout: float):
        super().__init__()
        if kernel % 2 == 0:
            raise ConfigError(f"kernel = {kernel}: has no middle; choose an odd one, such as {kernel + 1}")
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
