"""Dropout (Srivastava 2014) with random numbers that are cheap on a CPU.

On a CPU, torch draws a Bernoulli number for every element, which can take longer than the layer itself. Here one word
of 64 random bits decides on four elements. The rate is rounded to 16 bits (0.1 becomes 0.100006), and kept elements are
scaled by the rounded rate, so that means stay exact. The bits come from torch's generator, so a seed repeats the same
mask. On other devices torch's dropout is used.

Under a compiler, a hash of an element's index and of two numbers from torch's generator decides on it: a dozen integer
operations, which fuse with the operations around them. The compiler's own generator (Philox) takes ten times as many,
which on a GPU nearly doubles the time of the norm they are fused with.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

LEVELS = 1 << 16  # values of 16 random bits
PER_WORD = 4  # elements that a word of 64 bits decides on


def drop(x: Float[Tensor, "*shape"], rate: float) -> Float[Tensor, "*shape"]:
    """Zero with probability `rate`, otherwise x / (1 - rate)."""
    if not rate:
        return x
    if rate < 1 and torch.compiler.is_compiling():
        return torch.where(kept(x, rate), x / (1 - rate), 0.0)
    if x.device.type != "cpu" or rate == 1:
        return functional.dropout(x, rate)
    return x * scales(x, rate)


def scales(x: Float[Tensor, "*shape"], rate: float) -> Float[Tensor, "*shape"]:
    """The factors by which `drop` multiplies elements on a CPU."""
    dropped, count = round(rate * LEVELS), x.numel()
    words = torch.empty(math.ceil(count / PER_WORD), dtype=torch.int64).random_(-(1 << 63), None)  # all 64 bits
    bits, kept = words.view(torch.int16)[:count].view(x.shape), torch.empty(x.shape, dtype=x.dtype)
    torch.ge(bits, dropped - LEVELS // 2, out=kept)
    return kept.mul_(LEVELS / (LEVELS - dropped))


def kept(x: Float[Tensor, "*shape"], rate: float) -> Bool[Tensor, "*shape"]:
    """Where `drop` keeps an element under a compiler.

    The hash is two rounds of xor, shift and multiply. Its constants are from Wellons' search for hashes in which every
    input bit flips each output bit half of the time (github.com/skeeto/hash-prospector). The second key, applied
    between the rounds, prevents one mask from being a shifted copy of another.
    """
    first, second = torch.randint(-(1 << 31), 1 << 31, (2,), device=x.device).to(torch.int32).unbind()
    places = torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape)
    mixed = _shifted(places ^ first, 16) * 0x21F0AAAD
    mixed = _shifted(mixed ^ second, 15) * (0xD35A2D97 - (1 << 32))
    return _shifted(mixed, 15) >= round(rate * (1 << 32)) - (1 << 31)


def _shifted(x: Int[Tensor, "*shape"], bits: int) -> Int[Tensor, "*shape"]:
    """x ^ (x >> bits), with a logical shift (zeros from the left)."""
    return x ^ ((x >> bits) & ((1 << (32 - bits)) - 1))


class Dropout(nn.Dropout):
    """`drop` as a module; the identity in evaluation."""

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return drop(x, self.p) if self.training else x
