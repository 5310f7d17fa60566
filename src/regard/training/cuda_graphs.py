"""A whole step of training on a GPU, captured once for each shape of a batch and replayed from then on.

A step of a small model is a thousand kernels that take microseconds each, less than Python needs to launch them, so
that the GPU waits. Captured as one graph, from changing the pictures to moving the weights, a step is one launch. It
reads its batch, the number of its tokens and its learning rates where they were when it was captured.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.data.batch import Tensors

WARM = 3  # steps of a shape before its capture, in which kernels are compiled and libraries set themselves up
MOST = 64  # shapes that are captured; others are launched as ever

Work = Callable[[], None]


class Capture(Protocol):
    """Turns work into something that does it again; until then it is done by `warm`."""

    def warm(self, work: Work) -> None: ...
    def __call__(self, work: Work) -> Work: ...


class CudaGraphs:
    """What work does on the device; all graphs share their memory, since only one runs at a time."""

    def __init__(self, device: torch.device):
        self.stream, self.pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    def warm(self, work: Work) -> None:
        """Do it on the stream of the capture, to which gradients belong from the first step on."""
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            work()
        current.wait_stream(self.stream)

    def __call__(self, work: Work) -> Work:
        graph = torch.cuda.CUDAGraph()
        # the thread that pins the next batch may go on meanwhile
        with torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local"):
            work()
        return graph.replay


class Repeated:
    """An update from a batch and the number of its tokens, which is the same work for every batch of a shape."""

    def __init__(self, update: Callable[[Any, Tensor], None], device: torch.device, capture: Capture):
        self.update, self.capture = update, capture
        self.tokens = torch.zeros((), device=device)
        self.taken: Counter[Hashable] = Counter()  # steps by shape
        self.replays: dict[Hashable, tuple[Tensors, Work]] = {}
        self.failed = False

    def __call__(self, batch: Tensors, tokens: int) -> None:
        """Update once."""
        self.tokens.fill_(tokens)
        shape = batch.shape
        self.taken[shape] += 1
        if self.taken[shape] > WARM and shape not in self.replays and len(self.replays) < MOST and not self.failed:
            self._remember(batch)
        if shape not in self.replays:
            self.capture.warm(lambda: self.update(batch, self.tokens))
            return
        place, replay = self.replays[shape]
        place.take(batch)
        replay()

    def _remember(self, batch: Tensors) -> None:
        """Capture the update of a batch of this shape, which does not carry it out yet."""
        place = batch.clone()
        try:
            self.replays[batch.shape] = place, self.capture(lambda: self.update(place, self.tokens))
        except RuntimeError as error:  # memory is short, or an operation asks the host
            self.failed = True
            warnings.warn(f"training goes on without graphs, which failed: {error}", stacklevel=2)
