"""A training job as a page shows it, read from the files of its run."""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from regard.config import Config
from regard.serve.jobs.training_data import without_paths
from regard.training.metrics import METRICS, read_metrics

RECORD = "job.json"
LOG = "train.log"
POINTS = 500  # of a curve; more cannot be seen
SUMMARY = " sentence pairs "  # is in the line that a run says first, when its data are ready
STOPPED = frozenset(
    code for signum in (signal.SIGTERM, signal.SIGINT) for code in (-signum, 128 + signum)
)  # before and after the run could catch the signal
State = Literal["preparing", "running", "stopped", "failed", "finished"]
Row = dict[str, Any]


class Record(Config):
    """What is kept of a job in its folder: how to start it, and which process it is or how that ended."""

    name: str
    recipe: str
    sets: tuple[str, ...] = ()
    steps: int
    minutes: float | None = None
    pid: int = 0
    born: str = ""  # when the process began, to tell it from another one that was given its number
    stopping: bool = False
    code: int | None = None
    model: str | None = None  # the id by which its model can be used


class Validation(Config):
    """One measurement on held-out pairs."""

    step: int
    loss: float | None = None
    bleu: float | None = None
    chrf: float | None = None
    exact: float | None = None


class SampleTranslation(Config):
    """A held-out pair and what the model made of it at a step."""

    step: int
    source: str
    target: str
    output: str


class Job(Config):
    """Everything about a job that people want to see."""

    name: str
    recipe: str
    state: State
    step: int
    steps: int
    seconds: float
    seconds_left: float | None
    message: str
    loss: list[tuple[int, float]]
    valid: list[Validation]
    samples: list[SampleTranslation]
    summary: str
    model: str | None


class Run(Config):
    """A training in the list of all of them."""

    name: str
    recipe: str
    state: State
    step: int
    steps: int
    message: str
    bleu: float | None  # the best so far
    usable: bool  # there is something to use or download
    model: str | None


def summary(job: Job, *, usable: bool) -> Run:
    """A job in few words."""
    bleu = max((each.bleu for each in job.valid if each.bleu is not None), default=None)
    shared = {name: getattr(job, name) for name in ("name", "recipe", "state", "step", "steps", "message", "model")}
    return Run(**shared, bleu=bleu, usable=usable)


def report(record: Record, folder: Path, *, active: bool) -> Job:
    """The job of a folder as it stands; `active` while its process lives."""
    rows = read_metrics(folder / METRICS)
    train, valid, samples = ([row for row in rows if row["kind"] == kind] for kind in ("train", "valid", "samples"))
    log = _lines(folder / LOG)
    summary = next((line for line in log if SUMMARY in line), "")
    state = _state(record, active=active, begun=bool(summary))
    step, seconds = (train[-1]["step"], train[-1]["seconds"]) if train else (0, 0.0)
    validations = [_validation(row) for row in valid]
    return Job(
        name=record.name,
        recipe=record.recipe,
        state=state,
        step=step,
        steps=record.steps,
        seconds=seconds,
        seconds_left=_seconds_left(record, step, seconds) if state == "running" else None,
        message=_message(record, state, step, validations, without_paths(log[-1], folder) if log else ""),
        loss=_curve(train),
        valid=validations,
        samples=[SampleTranslation(step=row["step"], **pair) for row in samples[-1:] for pair in row["pairs"]],
        summary=summary,
        model=record.model,
    )


def _lines(log: Path) -> list[str]:
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line for line in text.splitlines() if line.strip()]


def _state(record: Record, *, active: bool, begun: bool) -> State:
    if active or record.code is None:  # about to be watched
        return "running" if begun else "preparing"
    if record.code == 0:
        return "finished"
    return "stopped" if record.code in STOPPED else "failed"


def _seconds_left(record: Record, step: int, seconds: float) -> float | None:
    """By the speed of the whole run so far, validations included; a time limit may end it before its steps do."""
    if not step:
        return None
    left = (record.steps - step) * seconds / step
    return max(0.0, left if record.minutes is None else min(left, 60 * record.minutes - seconds))


def _message(record: Record, state: State, step: int, valid: Sequence[Validation], last_line: str) -> str:
    place = f"step {step:,} of {record.steps:,}"
    if state in ("preparing", "running") and record.stopping:
        return "Saving what was trained, then stopping."
    if state == "preparing":
        return "Reading the sentence pairs and learning their vocabulary."
    if state == "running":
        return f"Training: {place}." if step < record.steps else "Putting the finished model together."
    if state == "stopped":
        return f"Stopped near {place}; it can go on from there." if step else "Stopped before training began."
    if state == "failed":
        return last_line.removeprefix("regard: ") or f"The training process ended with code {record.code}."
    best = max((each.bleu for each in valid if each.bleu is not None), default=None)
    return "Finished." if best is None else f"Finished: BLEU {best:.1f} on sentences it had not seen."


def _validation(row: Row) -> Validation:
    return Validation(step=row["step"], **{name: _finite(row.get(name)) for name in ("loss", "bleu", "chrf", "exact")})


def _curve(train: Sequence[Row]) -> list[tuple[int, float]]:
    """The loss over the steps, thinned but for its last point."""
    points = [(row["step"], row["loss"]) for row in train if math.isfinite(row["loss"])]
    stride = math.ceil(len(points) / POINTS) or 1
    return points[::-1][::stride][::-1]


def _finite(value: float | None) -> float | None:
    """JSON has neither infinity nor NaN."""
    return value if value is not None and math.isfinite(value) else None
