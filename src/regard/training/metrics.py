"""What a run tells: metrics.jsonl and TensorBoard always, a bar on a terminal, lines on stderr elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

METRICS, BOARD = "metrics.jsonl", "tensorboard"
DURING = ("train", "valid", "samples")  # the kinds of rows that are written before the end of a run


class Silence:
    """The log and the reporter of ranks that leave it to the first to tell."""

    def open(self) -> None: ...
    def write(self, step: int, kind: str, values: Mapping[str, Any]) -> None: ...
    def last(self, kind: str, step: int) -> dict[str, Any]:
        return {}

    def step(self, step: int) -> None: ...
    def train(self, step: int, row: Mapping[str, float], seconds_left: float) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...


class MetricsLog:
    """Appends to metrics.jsonl and to TensorBoard event files, once it has something to tell.

    A run that resumes at `step` tells again what came after it, and its end: those rows are dropped then.
    """

    def __init__(self, folder: Path, *, step: int) -> None:
        self._folder, self._path, self._step = folder, folder / METRICS, step
        self._file: IO[str] | None = None

    def open(self) -> None:
        """Begin to tell, if that has not begun; a run whose first step fails never does."""
        if self._file is not None:
            return
        from tensorboardX import SummaryWriter  # its import takes a second or two, and only training needs it

        kept = [row for row in read_metrics(self._path) if row["step"] <= self._step and row["kind"] in DURING]
        self._path.write_text("".join(_line(row) for row in kept), encoding="utf-8")
        self._file = self._path.open("a", encoding="utf-8")
        purged = self._step + 1 if self._step else None
        self._board = SummaryWriter(str(self._folder / BOARD), purge_step=purged)

    def write(self, step: int, kind: str, values: Mapping[str, Any]) -> None:
        """Add one row, of kind `train`, `valid` or `samples`, or of the end of a run: `average`, `test`."""
        if self._file is None:
            self.open()
        assert self._file is not None
        self._file.write(_line({"step": step, "kind": kind, **values}))
        self._file.flush()
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def last(self, kind: str, step: int) -> dict[str, Any]:
        """The values logged last for a kind and step; nothing where there are none."""
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


def shown(values: Mapping[str, float]) -> str:
    """The main metrics on one line, those of single languages left out."""
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items() if "_" not in name)


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row) + "\n"


class Reporter:
    """Shows a run on stderr: a rich bar on a terminal, plain lines otherwise."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            columns = (
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[state]}"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=self._console)
            self._task = self._bar.add_task("training", total=steps, state="")

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.stop()

    def step(self, step: int) -> None:
        """Move the bar."""
        if self._bar:
            self._bar.update(self._task, completed=step)

    def train(self, step: int, row: Mapping[str, float], seconds_left: float) -> None:
        """Tell how training goes."""
        state = f"loss {row['loss']:.3f}  {row['tokens_per_second']:,.0f} tokens/s"
        if self._bar:
            self._bar.update(self._task, completed=step, state=state)
        else:
            self.say(f"step {step}/{self.steps}  {state}  lr {row['lr']:.2e}  {_duration(seconds_left)} left")

    def say(self, text: str) -> None:
        """One line, above the bar where there is one."""
        if self._bar:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
