"""The window of steps since the last log: its sums on the device, its batches, and its time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

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
