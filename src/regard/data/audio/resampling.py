"""Changing the rate of samples: a low-pass filter (a sinc under a Kaiser window), evaluated where the new samples lie.

Rates reduce to a ratio L / M, and the L places that a new sample can have between two old ones ("phases") have a row
of filter weights each (Crochiere & Rabiner 1983, polyphase filters). Any two rates work.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from regard.errors import UsageError

Samples = NDArray[np.float32]

ZEROS = 64  # zero crossings of the sinc on each side
CUTOFF = 0.95  # of the lower Nyquist frequency: the filter passes 0.9 of it, and falls to -100 dB at 1
ATTENUATION = 100.0  # dB
BETA = 0.1102 * (ATTENUATION - 8.7)  # Kaiser's formula


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
        divisor = math.gcd(source_rate, target_rate)
        self.up, self.down = target_rate // divisor, source_rate // divisor
        self.weights = _weights(self.up, self.down)
        self.half = self.weights.shape[1] // 2
        self.kept = np.zeros(self.half - 1, dtype=np.float32)  # input from `first` on; zeros before the beginning
        self.first = 1 - self.half
        self.taken = self.given = 0  # samples so far

    def push(self, block: Samples) -> Samples:
        """The new samples that can be computed once the block is there."""
        if self.up == self.down:
            return block.astype(np.float32, copy=False)
        self.kept = np.concatenate([self.kept, block], dtype=np.float32)
        self.taken += len(block)
        # New sample n needs the old ones up to ⌊n · M / L⌋ + half.
        ready = max(0, (self.taken - self.half) * self.up)
        return self._until(-(-ready // self.down))

    def finish(self) -> Samples:
        """The new samples that are left, as if silence followed."""
        if self.up == self.down:
            return np.empty(0, dtype=np.float32)
        self.kept = np.concatenate([self.kept, np.zeros(self.half + 1, dtype=np.float32)])
        return self._until(-(-self.taken * self.up // self.down))

    def _until(self, end: int) -> Samples:
        """New samples from the last that were given to `end`."""
        new = np.empty(max(0, end - self.given), dtype=np.float32)
        for phase_start in range(min(self.up, len(new))):  # every L-th new sample has the same weights
            old, remainder = divmod((self.given + phase_start) * self.down, self.up)
            rows = len(range(phase_start, len(new), self.up))
            begin = self.kept[old - self.half + 1 - self.first :]
            step = begin.strides[0]
            windows = as_strided(begin, (rows, 2 * self.half), (self.down * step, step), writeable=False)
            new[phase_start :: self.up] = windows @ self.weights[remainder]
        self.given += len(new)
        unneeded = self.given * self.down // self.up - self.half + 1 - self.first
        if unneeded > 0:
            self.kept, self.first = self.kept[unneeded:], self.first + unneeded
        return new


@lru_cache(maxsize=8)
def _weights(up: int, down: int) -> NDArray[np.float32]:
    """The weights [L, taps] of the old samples around a new one that lies r / L after an old one."""
    cutoff = CUTOFF * min(1.0, up / down)
    half = math.ceil(ZEROS / cutoff)
    distance = np.arange(1 - half, half + 1)[None] - (np.arange(up) / up)[:, None]
    inside = np.clip(1 - (distance * cutoff / ZEROS) ** 2, 0, None)
    window = np.where(inside > 0, np.i0(BETA * np.sqrt(inside)) / np.i0(BETA), 0)
    weights = cutoff * np.sinc(cutoff * distance) * window
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)  # a constant stays the same
