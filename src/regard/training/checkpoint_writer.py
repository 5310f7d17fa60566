"""Checkpoints while training goes on: written whole or not at all, by several processes behind their training."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import CheckpointException

from regard.checkpoints.folder import new_folder
from regard.training.distributed import Ranks


class Saver:
    """Writes one checkpoint at a time; several ranks train on while their pieces are written and hashed."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self.group = ranks, ranks.aside()
        self._behind = ThreadPoolExecutor(1)
        self._pending: Future[Any] | None = None

    def save(self, folder: Path, write: Callable[[Path], Future[Any]], *, needs: int = 0) -> None:
        """Let all ranks `write` into a folder that the first has opened, which is put in place when all have finished.

        `needs` are the bytes that all of them will write. What `write` returns is done when the pieces of this rank are
        written; on the first, when those of all are.
        """
        self.settle()
        with ExitStack() as opened:
            written = write(self._ranks.lead(lambda: opened.enter_context(new_folder(folder, needs=needs))))
            if self._ranks.count > 1:
                first = self._ranks.first
                self._pending = self._behind.submit(_close, opened.pop_all(), written) if first else written

    def settle(self) -> None:
        """Until the checkpoint that was begun is complete; all ranks fail if it could not be written."""
        pending, self._pending = self._pending, None
        if pending is not None:
            wait([pending])
            self._ranks.lead(pending.result)

    def close(self) -> None:
        """Until this rank has done its part of the checkpoint that was begun; the others may have failed."""
        if self._pending is not None:
            wait([self._pending])
        self.group = None


def _close(opened: ExitStack, written: Future[Any]) -> None:
    """Put a checkpoint in place once it is written, or remove what there is of it."""
    with opened:
        try:
            written.result()
        except CheckpointException as error:  # torch's own, around what each rank met with
            raise next(iter(error.failures.values()))[0] from None
