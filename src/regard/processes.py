"""Which of the processes that torchrun started this one is. Without torch, so that the command line starts fast."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """Which of how many processes this one is."""

    rank: int = 0
    count: int = 1

    @classmethod
    def launched(cls) -> Share:
        """As torchrun says; one of one where it did not start us."""
        return cls(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))
