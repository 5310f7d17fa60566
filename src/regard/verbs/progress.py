"""How far a verb is, on a terminal: what is done, of how much, how many a second, and the time left."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


class Progress:
    """A bar on stderr while its block runs; without a terminal nothing is shown, and rich is not imported.

    `total` may be set when it becomes known. What is printed to stderr meanwhile appears above the bar.
    """

    def __init__(self, unit: str, total: int | None = None, *, wanted: bool = True) -> None:
        self.unit, self.total, self.done, self._earlier = unit, total, 0, 0
        self._wanted = wanted and sys.stderr.isatty()
        self._bar: Bar | None = None

    @property
    def shown(self) -> bool:
        """Whether somebody sees it, so that counting the total beforehand is worth its time."""
        return self._wanted

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        if self._wanted:
            self._bar = _bar()
            self._bar.add_task("", total=self.total, speed="")
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None

    def advance(self, count: int = 1, *, earlier: bool = False) -> None:
        """So many more are done; those that an `earlier` process did say nothing about the speed of this one."""
        self.done += count
        self._earlier += count if earlier else 0
        if self._bar:
            task = self._bar.tasks[0].id
            self._bar.update(task, completed=self.done, total=self.total, speed=self._speed())

    def show(self, place: int, total: int) -> None:
        """The one at this place, counted from 0, is done: for functions that report `progress(place, total)`."""
        self.total = total
        self.advance(place + 1 - self.done)

    def _speed(self) -> str:
        rate = (self.done - self._earlier) / max(time.monotonic() - self._began, 1e-6)
        if not rate:
            return ""
        left = "" if self.total is None else f", {timedelta(seconds=round((self.total - self.done) / rate))} left"
        return f"{rate:,.1f} {self.unit}/s{left}"


def _bar() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[speed]}")
    return Bar(*columns, console=Console(stderr=True), redirect_stdout=False)
