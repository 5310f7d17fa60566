"""Cutting long audio where it is quiet, into pieces that a model can take.

Nothing is lost and nothing doubled: the pieces, one after another, are the input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import UsageError

Samples = NDArray[np.float32]

FRAME = 0.01  # seconds; the steps in which a quiet place is sought
PAUSE = 0.3  # seconds; the quietest stretch of this length is cut in its middle
EARLIEST = 0.5  # of the longest piece: a cut comes no earlier, so that pieces do not become many


class Piece(NamedTuple):
    """Samples that follow each other, and where they begin in the whole."""

    start: int  # sample
    samples: Samples


def cut_at_silence(blocks: Iterable[Samples], rate: int, longest: float) -> Iterator[Piece]:
    """Pieces of at most `longest` seconds, cut at the quietest place of their second half."""
    most = int(longest * rate)
    if most < 2:
        raise UsageError(f"pieces of {longest:g} seconds at {rate:,} samples a second hold nothing; make them longer")
    waiting, start = np.empty(0, dtype=np.float32), 0
    for block in blocks:
        waiting = np.concatenate([waiting, block])
        while len(waiting) > most:
            end = _quiet_place(waiting[:most], rate)
            yield Piece(start, waiting[:end])
            waiting, start = waiting[end:], start + end
    if len(waiting):
        yield Piece(start, waiting)


def _quiet_place(samples: Samples, rate: int) -> int:
    """The middle of the quietest stretch in the second half; the latest, if several are equally quiet."""
    earliest = max(1, int(len(samples) * EARLIEST))
    frame = max(1, int(FRAME * rate))
    frames = (len(samples) - earliest) // frame
    width = min(frames, round(PAUSE / FRAME))
    if not width:
        return len(samples)
    energy = np.square(samples[earliest : earliest + frames * frame], dtype=np.float64).reshape(frames, frame).sum(1)
    sums = np.cumsum(np.concatenate([[0.0], energy]))
    loudness = sums[width:] - sums[:-width]
    quietest = np.flatnonzero(loudness <= loudness.min() + 1e-12)[-1]
    return earliest + int(quietest) * frame + width * frame // 2
