"""The parts of a Conformer (Gulati et al. 2020): subsampling, the convolution module, and its block.

Padding never reaches real frames: it is zero wherever a convolution could read it, keys at padding are masked, and
batch norms take their statistics from real frames alone. So a batch gives what its recordings give one by one.
"""

from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import masks
from regard.attention.dropout import Dropout
from regard.attention.multihead import MultiHeadAttention
from regard.attention.places import Argument, Computed, Result
from regard.attention.relative import DistanceTable, RelativePositions
from regard.layers.blocks import FeedForward, Residual

SUBSAMPLED = 4  # frames of the input for one of the encoder


def subsampled(frames: int) -> int:
    """The number of frames after subsampling."""
    return -(-frames // SUBSAMPLED)


def without_padding(x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B T D"]:
    """Zeros in place of padding."""
    return x if mask is None else torch.where(mask[..., None], x, 0.0)


class Subsampling(nn.Module):
    """Two convolutions of stride 2 over time and frequency, then a linear layer: a frame of four."""

    def __init__(self, bands: int, width: int, dropout: float):
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, stride=2, padding=1)
        self.second = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.project, self.dropout = nn.Linear(width * subsampled(bands), width), Dropout(dropout)

    def forward(
        self, features: Float[Tensor, "B T F"], mask: Bool[Tensor, "B T"] | None
    ) -> tuple[Float[Tensor, "B T2 D"], Bool[Tensor, "B T2"] | None]:
        """The frames, and which of them are real."""
        x = without_padding(features, mask)[:, None]
        x = functional.relu(self.first(x))
        if mask is not None:
            mask = mask[:, ::2]
            x = torch.where(mask[:, None, :, None], x, 0.0)
            mask = mask[:, ::2].contiguous()
        x = functional.relu(self.second(x))
        return self.dropout(self.project(x.transpose(1, 2).flatten(2))), mask


class FrameBatchNorm(nn.BatchNorm1d):
    """Batch norm of frames: its statistics are those of real frames alone."""

    def forward(  # type: ignore[override]
        self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None
    ) -> Float[Tensor, "B T D"]:
        wide = x.float()
        if self.training:
            mean, variance = self._measure(wide, mask)
        else:
            assert self.running_mean is not None and self.running_var is not None
            mean, variance = self.running_mean, self.running_var
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (wide * scale + (self.bias - mean * scale)).to(x.dtype)

    def _measure(
        self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None
    ) -> tuple[Float[Tensor, "D"], Float[Tensor, "D"]]:
        """Mean and variance of this batch, which also move the running ones."""
        assert self.running_mean is not None and self.running_var is not None and self.momentum is not None
        frames = x.shape[0] * x.shape[1]
        count = frames if mask is None else mask.sum()
        mean = without_padding(x, mask).sum(dim=(0, 1)) / count
        variance = without_padding((x - mean).square(), mask).sum(dim=(0, 1)) / count
        with torch.no_grad():
            unbiased = variance * count / (max(frames - 1, 1) if mask is None else (mask.sum() - 1).clamp(min=1))
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(unbiased, self.momentum)
            assert self.num_batches_tracked is not None
            self.num_batches_tracked += 1
        return mean, variance


class ConvolutionModule(nn.Module):
    """A gated pointwise layer, a depthwise convolution over time, batch norm, swish, and a pointwise layer."""

    PLACES: ClassVar = {
        "gate": Computed("expand", read=lambda module, args, options, output: output.chunk(2, dim=-1)[1].sigmoid()),
        "hidden": Argument("project"),
    }

    def __init__(self, width: int, kernel: int):
        super().__init__()
        self.expand, self.project = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.norm = FrameBatchNorm(width)

    def forward(self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B T D"]:
        x = without_padding(functional.glu(self.expand(x), dim=-1), mask)
        x = self.depthwise(x.transpose(1, 2)).transpose(1, 2)
        return self.project(functional.silu(self.norm(x, mask)))


class ConformerBlock(nn.Module):
    """Half a feed-forward network, self-attention, convolution, half a feed-forward network, and a norm."""

    PLACES: ClassVar = {
        "input": Argument(),
        "after_first": Result("after_first"),
        "after_attention": Result("after_attention"),
        "after_convolution": Result("after_convolution"),
        "residual": Result(),
    }

    def __init__(self, width: int, heads: int, ffn_width: int, kernel: int, dropout: float, table: DistanceTable):
        super().__init__()
        self.first, self.last = (FeedForward(width, ffn_width, "swish", dropout) for _ in range(2))
        self.attention = MultiHeadAttention(width, heads, position=RelativePositions(width, heads, table))
        self.convolution = ConvolutionModule(width, kernel)
        after = partial(Residual, width, dropout, "pre")
        self.after_first, self.after_attention, self.after_convolution, self.after_last = (after() for _ in range(4))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B T D"]:
        seen = None if mask is None else masks.padding(mask)
        x = self.after_first(x, lambda h: 0.5 * self.first(h))
        x = self.after_attention(x, lambda h: self.attention(h, mask=seen))
        x = self.after_convolution(x, lambda h: self.convolution(h, mask))
        x = self.after_last(x, lambda h: 0.5 * self.last(h))
        return self.norm(x)
