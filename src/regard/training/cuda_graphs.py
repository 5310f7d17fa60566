"""CUDA graphs of whole training steps: a step is captured once per batch shape and replayed from then on.

A step of a small model is a thousand kernels of microseconds each. Launching them from Python takes longer than running
them. Captured as one graph, from augmentation to the optimiser, a step is one launch. A graph reads its batch, the
number of tokens and the learning rates from fixed addresses.

Before a graph is used, its loss and the norm of its gradients are compared with those of the same step launched kernel
by kernel: a compiler and a capture can each be right and wrong together (seen with Swin V2 in bf16, torch 2.11).
"""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from regard.data.batch import TensorBatch
from regard.errors import TrainingError
from regard.training.run_state import Progress

B = TypeVar("B", bound=TensorBatch)


class StepWindow(Generic[B]):
    """Sums over the steps since the last log.

    Steps that are not finite ("bad") are counted on the device, so that no step waits for it. With `stops`, the weights
    from before the first bad step are kept until the host checks.
    """

    def __init__(self, progress: Progress, device: torch.device, *, stops: bool) -> None:
        self.sums = torch.tensor(progress.window, device=device)  # loss, tokens, bad steps
        self.stops = stops
        self.stopped = torch.zeros((), device=device)  # with `stops`, 1 from the first bad step on
        self.recent: list[tuple[list[B], int]] = []  # with `stops`, the batches since the last check
        self.waited = 0.0  # seconds for the loader
        self._bad_row = torch.tensor([0.0, 0.0, 1.0], device=device)
        self._began, self._step, self._tokens = time.monotonic(), progress.step, progress.tokens

    def remember(self, batches: Sequence[B], tokens: int) -> None:
        """Keep the batches of a step, so that a bad step can be repeated."""
        if self.stops:
            self.recent.append((list(batches), tokens))

    def add(self, total: Float[Tensor, 2], bad: Float[Tensor, ""]) -> None:
        """Add a step's summed loss and tokens, or count it as bad. Works on the device alone, so it can be captured."""
        if self.stops:
            self.stopped.copy_(bad)
        self.sums += torch.where(bad > 0, self._bad_row, torch.cat([total, bad[None]]))

    def first_bad(self) -> tuple[int, list[B], int] | None:
        """With `stops`: how many steps ago the first bad step was, its batches and its tokens.

        Forgets the remembered batches. This is the only read of the device.
        """
        recent, self.recent = self.recent, []
        if not self.stopped.item():
            return None
        ago = int(self.sums[2].item())
        return ago, *recent[-ago]

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude time from the training speed."""
        start = time.monotonic()
        yield
        self._began += time.monotonic() - start

    def close(self, progress: Progress) -> dict[str, float] | None:
        """The mean loss and the speed of the window, after which a new one begins; None if it has no steps."""
        loss, tokens, bad = self.sums.tolist()
        if tokens == bad == 0:  # resumed right after a log
            return None
        if tokens == 0:
            raise TrainingError(f"step {progress.step}: not one step since the last log was finite; lower training.lr")
        self.sums.zero_()
        progress.skipped += int(bad)
        now = time.monotonic()
        seconds = max(now - self._began, 1e-9)
        row = {
            "loss": loss / tokens,
            "tokens_per_second": (progress.tokens - self._tokens) / seconds,
            "seconds_per_step": seconds / max(progress.step - self._step, 1),
            "waiting": self.waited / seconds,
        }
        self._began, self._step, self._tokens, self.waited = now, progress.step, progress.tokens, 0.0
        return row


WARM = 3  # ordinary steps of a shape before its capture; they compile kernels and initialise libraries
MOST = 64  # the most shapes that are captured; steps of other shapes launch every kernel

TOLERANCE = 0.02  # relative: sums of bf16 products in another order differ by less

Work = Callable[[], None]
Measure = Callable[[Work], Sequence[float]]  # runs work without a lasting effect; its loss and its gradients' norm


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

    def __init__(
        self, update: Callable[[B, Tensor], None], device: torch.device, capture: Capture, measure: Measure
    ) -> None:
        self.update, self.capture, self.measure = update, capture, measure
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
        """Capture the update for this shape, if its graph does what launched kernels do."""
        place = batch.clone()

        def work() -> None:
            self.update(place, self.tokens)

        try:
            expected = self.measure(lambda: self.capture.warm(work))  # first: later the graph has its memory
            replay = self.capture(work)
            found = self.measure(replay)
        except RuntimeError as error:  # out of memory, or an operation that needs the host
            self._give_up(f"whose capture failed: {error}")
            return
        if not _agree(expected, found):
            told = [f"loss {loss:.5g}, gradients of norm {norm:.5g}" for loss, norm in (found, expected)]
            self._give_up(f"since a captured step is wrong ({told[0]}; launched kernel by kernel: {told[1]})")
            return
        self.replays[batch.shape] = place, replay

    def _give_up(self, reason: str) -> None:
        self.failed = True
        kept = ", but for shapes that were captured before" if self.replays else ""
        warnings.warn(f"training continues without CUDA graphs{kept}, {reason}", stacklevel=2)


def _agree(expected: Sequence[float], found: Sequence[float]) -> bool:
    """Whether two measurements are equal but for rounding; what is not finite must be so in both."""
    return all(
        math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=1e-9) or not (math.isfinite(one) or math.isfinite(other))
        for one, other in zip(expected, found, strict=True)
    )
