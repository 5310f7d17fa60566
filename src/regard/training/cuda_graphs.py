"""CUDA graphs of whole training steps: a step is captured once per batch shape and replayed from then on.

A step of a small model is a thousand kernels of microseconds each. Launching them from Python takes longer than running
them. Captured as one graph, from augmentation to the optimiser, a step is one launch. A graph reads its batch, the
number of tokens and the learning rates from fixed addresses.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from regard.data.batch import TensorBatch

WARM = 3  # ordinary steps of a shape before its capture; they compile kernels and initialise libraries
MOST = 64  # the most shapes that are captured; steps of other shapes launch every kernel

Work = Callable[[], None]
B = TypeVar("B", bound=TensorBatch)


class Capture(Protocol):
    """Captures work and returns a function that replays it; `warm` runs the work before it is captured."""

    def warm(self, work: Work) -> None: ...
    def __call__(self, work: Work) -> Work: ...


class CudaGraphs:
    """Captures work as CUDA graphs, which share their memory, since only one runs at a time."""

    def __init__(self, device: torch.device):
        self.stream, self.pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    def warm(self, work: Work) -> None:
        """Run the work on the capture stream, since gradients belong to the stream that created them."""
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            work()
        current.wait_stream(self.stream)

    def __call__(self, work: Work) -> Work:
        graph = torch.cuda.CUDAGraph()
        # so that the thread which pins the next batch may continue
        with torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local"):
            work()
        return graph.replay


class CapturedUpdate(Generic[B]):
    """An update from a batch and its number of tokens, captured for each shape of a batch."""

    def __init__(self, update: Callable[[B, Tensor], None], device: torch.device, capture: Capture):
        self.update, self.capture = update, capture
        self.tokens = torch.zeros((), device=device)
        self.taken: Counter[Hashable] = Counter()  # steps by shape
        self.replays: dict[Hashable, tuple[B, Work]] = {}
        self.failed = False

    def __call__(self, batch: B, tokens: int) -> None:
        """Run one update: by its graph if the shape is captured."""
        self.tokens.fill_(tokens)
        shape = batch.shape
        self.taken[shape] += 1
        if self.taken[shape] > WARM and shape not in self.replays and len(self.replays) < MOST and not self.failed:
            self._capture(batch)
        if shape not in self.replays:
            self.capture.warm(lambda: self.update(batch, self.tokens))
            return
        place, replay = self.replays[shape]
        place.copy_from(batch)
        replay()

    def _capture(self, batch: B) -> None:
        """Capture the update for this shape; capturing does not run it."""
        place = batch.clone()
        try:
            self.replays[batch.shape] = place, self.capture(lambda: self.update(place, self.tokens))
        except RuntimeError as error:  # out of memory, or an operation that needs the host
            self.failed = True
            warnings.warn(f"training continues without CUDA graphs, whose capture failed: {error}", stacklevel=2)
