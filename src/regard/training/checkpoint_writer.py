"""Writing checkpoints atomically. Several processes write their shards in the background."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import CheckpointException

from regard.checkpoints.folder import new_folder
from regard.training.distributed import Ranks


class CheckpointWriter:
    """Writes one checkpoint at a time; several ranks keep training while their shards are written and hashed."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self.group = ranks, ranks.side_group()
        self._background = ThreadPoolExecutor(1)
        self._pending: Future[Any] | None = None

    def save(self, folder: Path, write: Callable[[Path], Future[Any]], *, needs: int = 0) -> None:
        """Let all ranks `write` into a temporary folder, which gets its name when all have finished.

        `needs` is the number of bytes that all of them write. The future that `write` returns is done when the shards
        of this rank are written; on the first rank, when those of all ranks are.
        """
        self.settle()
        with ExitStack() as opened:
            written = write(self._ranks.lead(lambda: opened.enter_context(new_folder(folder, needs=needs))))
            if self._ranks.count > 1:
                first = self._ranks.first
                self._pending = self._background.submit(_close, opened.pop_all(), written) if first else written

    def settle(self) -> None:
        """Wait until the pending checkpoint is complete; all ranks fail if it could not be written."""
        pending, self._pending = self._pending, None
        if pending is not None:
            wait([pending])
            self._ranks.lead(pending.result)

    def close(self) -> None:
        """Wait until this rank has done its part of the pending checkpoint; other ranks may have failed."""
        if self._pending is not None:
            wait([self._pending])
        self.group = None


def _close(opened: ExitStack, written: Future[Any]) -> None:
    """Give a checkpoint its name once it is written, or remove its parts if that failed."""
    with opened:
        try:
            written.result()
        except CheckpointException as error:  # torch's own error, which wraps those of the ranks
            raise next(iter(error.failures.values()))[0] from None
