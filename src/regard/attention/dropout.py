"""Dropout (Srivastava 2014) with random numbers that are cheap on a processor.

Torch draws a Bernoulli number of its own for every element there, which can take longer than the layer around it. Here
one word of 64 random bits decides on four elements. The rate is rounded to 16 bits (0.1 becomes 0.100006), and what is
kept is scaled by the rounded rate, so that means stay exact. The bits are those of torch's own generator: the same seed
drops the same. On other devices, and under a compiler, it is torch's dropout.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

LEVELS = 1 << 16  # of 16 random bits
PER_WORD = 4  # elements that a word of 64 bits decides on


def drop(x: Float[Tensor, "*shape"], rate: float) -> Float[Tensor, "*shape"]:
    """Zero with the probability `rate`, otherwise x / (1 - rate)."""
    if not rate:
        return x
    if x.device.type != "cpu" or rate == 1 or torch.compiler.is_compiling():
        return functional.dropout(x, rate)
    return x * scales(x, rate)


def scales(x: Float[Tensor, "*shape"], rate: float) -> Float[Tensor, "*shape"]:
    """What `drop` multiplies every element by on a processor."""
    dropped, count = round(rate * LEVELS), x.numel()
    words = torch.empty(math.ceil(count / PER_WORD), dtype=torch.int64).random_(-(1 << 63), None)  # all 64 bits
    bits, kept = words.view(torch.int16)[:count].view(x.shape), torch.empty(x.shape, dtype=x.dtype)
    torch.ge(bits, dropped - LEVELS // 2, out=kept)
    return kept.mul_(LEVELS / (LEVELS - dropped))


class Dropout(nn.Dropout):
    """`drop` in training."""

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return drop(x, self.p) if self.training else x
