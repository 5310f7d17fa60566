"""Progress of a run on stderr: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from regard.training.recipe.sections import Metric

SOON, QUIET = 5.0, 30.0  # seconds without a line after which a run says where it is: the first time, and later


class NoReporter:
    """The reporter of all ranks but the first, which alone reports."""

    def step(self, step: int) -> None: ...
    def train(self, step: int, row: Mapping[str, float], seconds_left: float) -> None: ...
    def say(self, text: str) -> None: ...
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...


def shown(values: Mapping[str, float], metrics: Sequence[Metric]) -> str:
    """The metrics that a task declares, on one line; others, such as those of single languages, are left out."""
    names = {metric.name for metric in metrics}
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items() if name in names)


class Reporter:
    """Shows a run on stderr: a rich bar on a terminal, plain lines otherwise."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._began = self._told = math.nan  # when the first step began, and when something was said last
        self._first, self._quiet = 0, SOON
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
        """Move the bar; where there is none, say where the run is if nothing was said of it for long."""
        if self._bar:
            self._bar.update(self._task, completed=step)
            return
        now = time.monotonic()
        if math.isnan(self._began):
            self._began, self._told, self._first = now, now, step
        elif now - self._told >= self._quiet and step > self._first:
            left = (self.steps - step) * (now - self._began) / (step - self._first)
            self.say(f"step {step}/{self.steps}  {duration(left)} left")
            self._quiet = QUIET

    def train(self, step: int, row: Mapping[str, float], seconds_left: float) -> None:
        """Report loss, speed and the time left."""
        state = f"loss {row['loss']:.3f}  {row['tokens_per_second']:,.0f} tokens/s"
        if self._bar:
            self._bar.update(self._task, completed=step, state=state)
        else:
            self.say(f"step {step}/{self.steps}  {state}  lr {row['lr']:.2e}  {duration(seconds_left)} left")

    def say(self, text: str) -> None:
        """One line, above the bar where there is one."""
        if self._bar:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._told = time.monotonic()
            say_plainly(text)


def say_plainly(text: str) -> None:
    """One line on stderr."""
    print(text, file=sys.stderr, flush=True)


class Heartbeat:
    """A `poll` that also tells how long work without steps has taken, every QUIET seconds."""

    def __init__(self, work: str, poll: Callable[[], None], say: Callable[[str], None] = say_plainly) -> None:
        self._work, self._poll, self._say = work, poll, say
        self._began = self._told = time.monotonic()

    def __call__(self) -> None:
        self._poll()
        now = time.monotonic()
        if now - self._told >= QUIET:
            self._told = now
            self._say(f"{self._work}, {duration(now - self._began)} so far")


def duration(seconds: float) -> str:
    """Seconds as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
