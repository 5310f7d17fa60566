"""The metrics of a run on disk: metrics.jsonl, and TensorBoard event files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

METRICS, BOARD = "metrics.jsonl", "tensorboard"
DURING = ("train", "valid", "samples")  # the kinds of rows that are written before the end of a run


class NoLog:
    """The log of all ranks but the first, which alone writes."""

    def open(self) -> None: ...
    def write(self, step: int, kind: str, values: Mapping[str, Any]) -> None: ...
    def last(self, kind: str, step: int) -> dict[str, Any]:
        return {}

    def close(self) -> None: ...


class MetricsLog:
    """Appends to metrics.jsonl and to TensorBoard event files, from the first row on.

    A run that resumes at `step` repeats the steps after it. Rows of later steps and of the end of the run are dropped.
    """

    def __init__(self, folder: Path, *, step: int) -> None:
        self._folder, self._path, self._step = folder, folder / METRICS, step
        self._file: IO[str] | None = None

    def open(self) -> None:
        """Open the files, unless they are open; a run whose first step fails never opens them."""
        if self._file is not None:
            return
        from tensorboardX import (
            SummaryWriter,  # imported here because it takes a second or two, and only training needs it
        )

        kept = [row for row in read_metrics(self._path) if row["step"] <= self._step and row["kind"] in DURING]
        self._path.write_text("".join(_line(row) for row in kept), encoding="utf-8")
        self._file = self._path.open("a", encoding="utf-8")
        purged = self._step + 1 if self._step else None
        self._board = SummaryWriter(str(self._folder / BOARD), purge_step=purged)

    def write(self, step: int, kind: str, values: Mapping[str, Any]) -> None:
        """Add one row, of kind `train`, `valid` or `samples`, or of the end of a run: `average`, `test`, `run`."""
        if self._file is None:
            self.open()
        assert self._file is not None
        self._file.write(_line({"step": step, "kind": kind, **values}))
        self._file.flush()
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def last(self, kind: str, step: int) -> dict[str, Any]:
        """The values logged last for a kind and step; empty if there are none."""
        rows = [row for row in read_metrics(self._path) if (row["kind"], row["step"]) == (kind, step)]
        return {name: value for name, value in rows[-1].items() if name not in ("kind", "step")} if rows else {}

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._board.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; a last line cut short by a crash is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row) + "\n"
