"""Resample audio with soxr, whole or block by block."""

from __future__ import annotations

import numpy as np
import soxr
from numpy.typing import NDArray

from regard.errors import UsageError

Samples = NDArray[np.float32]

QUALITY = "VHQ"  # passes 0.91 of the lower Nyquist frequency; 28 bits, beyond what float32 holds


def resample(samples: Samples, source_rate: int, target_rate: int) -> Samples:
    """Samples at another rate; there are ⌈samples · target / source⌉ of them. Only the ratio of the rates matters, so
    that 9 and 10 slow speech down by a ninth."""
    resampler = Resampler(source_rate, target_rate)
    return np.concatenate([resampler.push(samples), resampler.finish()])


class Resampler:
    """The same, block by block."""

    def __init__(self, source_rate: int, target_rate: int):
        if min(source_rate, target_rate) < 1:
            raise UsageError(f"rates of {source_rate} and {target_rate} samples a second; both must be positive")
        self.source_rate, self.target_rate = source_rate, target_rate
        self.stream = soxr.ResampleStream(source_rate, target_rate, 1, dtype="float32", quality=QUALITY)
        self.taken = self.given = 0  # samples so far

    def push(self, block: Samples) -> Samples:
        """The new samples that can be computed once the block is there."""
        self.taken += len(block)
        new = self.stream.resample_chunk(block.astype(np.float32, copy=False))
        self.given += len(new)
        return new

    def finish(self) -> Samples:
        """The new samples that are left, as if silence followed."""
        left = -(-self.taken * self.target_rate // self.source_rate) - self.given
        silence = np.zeros(self.source_rate // self.target_rate + 1, dtype=np.float32)  # soxr would round the count
        return self.stream.resample_chunk(silence, last=True)[:left]
