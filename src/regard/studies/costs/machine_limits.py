"""The time that this machine takes for a piece of work of a given size, measured when it is first needed.

Every kind is timed separately, with torch's own operations, at the size that the model uses: the rate of a product and
the memory bandwidth both depend on the size. This module does not know about models.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import cycle
from math import ceil
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.core import attend
from regard.attention.dropout import scales
from regard.studies.costs.parts import FLOAT, Kind, Piece

SHORTEST = 0.005  # seconds of a measurement at least; shorter pieces are repeated
COLD, MANY = 2**26, 64  # bytes that suffice to flush a cache, in at most this many tensors
NEW_PAGES = 2**25  # bytes from which glibc maps new pages for every tensor (its largest mmap threshold)
CHAIN = 100  # operations in a row, to measure the overhead of one
Work = Callable[[], object]


class WorkTimer:
    """Times pieces of work on one device. Products and attention use `dtype`, everything else float32.

    Other load disturbs a machine for seconds at a time. So each round measures every piece once, instead of one piece
    for long, and a caller that compares runs its own work between the rounds.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype = torch.float32):
        self.device, self.dtype, self.clock = device, dtype, clock(device)
        self.rounds: list[dict[Piece, float]] = []

    def measure(self, pieces: Iterable[Piece]) -> None:
        """Measure one more round."""
        self.rounds.append({piece: self._measured(piece) for piece in pieces})

    def seconds(self, piece: Piece) -> float:
        """The median over the rounds."""
        return median(each[piece] for each in self.rounds)

    def _measured(self, piece: Piece) -> float:
        match piece.kind:
            case "product":
                return self._time(self._product(*piece.size))
            case "convolution":
                return self._time(self._convolution(*piece.size))
            case "batch_norm":
                return self._time(self._batch_norm(*piece.size))
            case "attention" | "written":
                return self._time(self._attention(*piece.size, written=piece.kind == "written"))
            case "lstm":
                return self._time(self._lstm(*piece.size))
            case "call":
                return self._time(self._chain()) / CHAIN
        alone, many = (self._time(self._elementwise(piece.kind, size)) for size in (1, piece.size[0]))
        touched = 3 if piece.kind in ("stream", "update") else 1  # two tensors are read, one is written
        return max(0.0, many - alone) / touched

    def _time(self, work: Work) -> float:
        """The mean over enough runs to be timed reliably."""
        first = self._timed(work, 1)
        return self._timed(work, max(1, ceil(SHORTEST / max(first, 1e-6))))

    def _timed(self, work: Work, times: int) -> float:
        begin = self.clock()
        for _ in range(times):
            work()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return (self.clock() - begin) / times

    def _numbers(self, *shape: int, learned: bool = False) -> Tensor:
        return torch.ones(shape, device=self.device, dtype=self.dtype, requires_grad=learned)

    def _product(self, rows: int, inputs: int, outputs: int) -> Work:
        x, weight, bias = self._numbers(rows, inputs), self._numbers(outputs, inputs), self._numbers(outputs)
        gradient = self._numbers(rows, outputs)

        def work() -> None:
            torch.addmm(bias, x, weight.t())
            gradient @ weight
            gradient.t() @ x
            gradient.sum(0)

        return work

    def _convolution(
        self, pictures: int, side: int, inputs: int, outputs: int, kernel: int, groups: int, stride: int
    ) -> Work:
        padding = kernel // 2
        before = (side - 1) * stride + kernel - 2 * padding
        x = self._numbers(pictures, inputs, before, before, learned=True)
        weight = self._numbers(outputs, inputs // groups, kernel, kernel, learned=True)
        gradient = self._numbers(pictures, outputs, side, side)

        def work() -> object:
            y = functional.conv2d(x, weight, stride=stride, padding=padding, groups=groups)
            return torch.autograd.grad(y, (x, weight), gradient)

        return work

    def _batch_norm(self, pictures: int, channels: int, pixels: int) -> Work:
        layer = nn.BatchNorm2d(channels, device=self.device, dtype=self.dtype)
        x = self._numbers(pictures, channels, pixels, 1, learned=True)
        gradient = self._numbers(pictures, channels, pixels, 1)

        def work() -> object:
            return torch.autograd.grad(layer(x), (x, *layer.parameters()), gradient)

        return work

    def _attention(
        self, sequences: int, heads: int, queries: int, keys: int, head_width: int, *, written: bool
    ) -> Work:
        """Attention with heads split as in `MultiHeadAttention`; with a learned bias torch materialises the weights."""
        q, k, v = (
            self._numbers(sequences, length, heads, head_width, learned=True) for length in (queries, keys, keys)
        )
        bias = self._numbers(1, heads, queries, keys, learned=True) if written else None
        gradient = self._numbers(sequences, queries, heads * head_width)
        learned = (q, k, v) if bias is None else (q, k, v, bias)

        def work() -> object:
            y = attend(*(x.transpose(1, 2) for x in (q, k, v)), bias=bias)
            return torch.autograd.grad(y.transpose(1, 2).flatten(2), learned, gradient)

        return work

    def _lstm(self, sequences: int, steps: int, inputs: int, width: int) -> Work:
        layer = nn.LSTM(inputs, width, batch_first=True, device=self.device, dtype=self.dtype)
        x, gradient = self._numbers(sequences, steps, inputs, learned=True), self._numbers(sequences, steps, width)

        def work() -> object:
            return torch.autograd.grad(layer(x)[0], (x, *layer.parameters()), gradient)

        return work

    def _elementwise(self, kind: Kind, size: int) -> Work:
        """Element-wise operations on tensors that are out of the cache: the least recently used of several.

        Results overwrite old tensors, as in a loop with stable memory; only very large results get new pages every
        time.
        """
        count = min(MANY, 1 + COLD // (FLOAT * size))
        tensors = cycle([torch.ones(3, size, device=self.device).unbind() for _ in range(count)])
        new = self.device.type == "cpu" and FLOAT * size >= NEW_PAGES

        def work() -> object:
            a, b, there = next(tensors)
            c = torch.empty_like(a) if new else there
            match kind:
                case "stream":
                    return torch.add(a, b, out=c)
                case "curve":
                    return torch.sigmoid(a, out=c)
                case "gelu":
                    torch.ops.aten.gelu.out(a, out=c)
                    return torch.ops.aten.gelu_backward.grad_input(b, a, grad_input=c)
                case "draw":
                    return scales(a, 0.1) if self.device.type == "cpu" else c.bernoulli_(0.9)
            return a.add_(b)

        return work

    def _chain(self) -> Work:
        one = self._numbers(1, learned=True)

        def work() -> object:
            x = one
            for _ in range(CHAIN):
                x = x * 1.0
            return torch.autograd.grad(x, one)

        return work


def clock(device: torch.device) -> Callable[[], float]:
    """CPU time if torch uses one CPU thread, because other processes disturb it least; otherwise wall-clock time."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time if alone else time.perf_counter
