"""The progress of a training job, read from the files of its run folder."""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from regard.config import Config
from regard.serve.jobs.training_data import without_paths
from regard.training.metrics_log import METRICS, read_metrics

RECORD = "job.json"
LOG = "train.log"
POINTS = 500  # of a loss curve, about one per pixel of the page's chart
SUMMARY = " sentence pairs "  # marks the log line that a run prints when its data are ready
STOPPED = frozenset(
    code for signum in (signal.SIGTERM, signal.SIGINT) for code in (-signum, 128 + signum)
)  # exit codes of a signal before and after the run installs its handler
State = Literal["preparing", "running", "stopped", "failed", "finished"]
Row = dict[str, Any]


class JobRecord(Config):
    """The file job.json of a run folder: how to start the job, its process, and how that process ended."""

    name: str
    recipe: str
    sets: tuple[str, ...] = ()
    steps: int
    minutes: float | None = None
    pid: int = 0
    born: str = ""  # start time of the process, to tell it from a later process with the same pid
    stopping: bool = False
    code: int | None = None
    model: str | None = None  # the id of its model in the model registry
    base: str = ""  # the id of the model that it improves
    replaces: bool = False  # whether its model is to be used in place of that one


class Validation(Config):
    """The metrics of one validation on held-out pairs."""

    step: int
    loss: float | None = None
    bleu: float | None = None
    chrf: float | None = None
    exact: float | None = None


class SampleTranslation(Config):
    """A held-out pair and the model's translation of it at a step."""

    step: int
    source: str
    target: str
    output: str


class Job(Config):
    """A job as the page shows it."""

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
    base: str  # the model that it improves
    replaces: bool  # whether its model is used in place of that one


class Run(Config):
    """A training run in the list of all runs."""

    name: str
    recipe: str
    state: State
    step: int
    steps: int
    message: str
    bleu: float | None  # the best so far
    usable: bool  # whether there is a model or checkpoint to use or download
    model: str | None


def summarize(job: Job, *, usable: bool) -> Run:
    """A job as an entry of the list of runs."""
    bleu = max((each.bleu for each in job.valid if each.bleu is not None), default=None)
    shared = {name: getattr(job, name) for name in ("name", "recipe", "state", "step", "steps", "message", "model")}
    return Run(**shared, bleu=bleu, usable=usable)


def read_job(record: JobRecord, folder: Path, *, active: bool) -> Job:
    """The present state of a run folder's job; `active` while its process is alive."""
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
        message=_message(record, state, step, rows, without_paths(log[-1], folder) if log else ""),
        loss=_curve(train),
        valid=validations,
        samples=[SampleTranslation(step=row["step"], **pair) for row in samples[-1:] for pair in row["pairs"]],
        summary=summary,
        model=record.model,
        base=record.base,
        replaces=record.replaces,
    )


def _lines(log: Path) -> list[str]:
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line for line in text.splitlines() if line.strip()]


def _state(record: JobRecord, *, active: bool, begun: bool) -> State:
    if active or record.code is None:  # without a code the watcher thread is about to start
        return "running" if begun else "preparing"
    if record.code == 0:
        return "finished"
    return "stopped" if record.code in STOPPED else "failed"


def _seconds_left(record: JobRecord, step: int, seconds: float) -> float | None:
    """Estimated from the mean speed so far, validations included, and the time limit if there is one."""
    if not step:
        return None
    left = (record.steps - step) * seconds / step
    return max(0.0, left if record.minutes is None else min(left, 60 * record.minutes - seconds))


def _message(record: JobRecord, state: State, step: int, rows: Sequence[Row], last_line: str) -> str:
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
    return f"Finished{_reached(rows)}."


def _reached(rows: Sequence[Row]) -> str:
    """The best BLEU of a run; of a model that was improved, what it was before and is now."""
    if (tested := next((row for row in rows if "bleu_new_before" in row), None)) is not None:
        return (
            f": BLEU {tested['bleu_new_before']:.1f} before, {tested['bleu_new_after']:.1f} now, on your held-out pairs"
        )
    best = max((row["bleu"] for row in rows if row["kind"] == "valid" and _finite(row.get("bleu"))), default=None)
    return "" if best is None else f": BLEU {best:.1f} on sentences it had not seen"


def _validation(row: Row) -> Validation:
    return Validation(step=row["step"], **{name: _finite(row.get(name)) for name in ("loss", "bleu", "chrf", "exact")})


def _curve(train: Sequence[Row]) -> list[tuple[int, float]]:
    """The loss over the steps, thinned to `POINTS`; the last point is always kept."""
    points = [(row["step"], row["loss"]) for row in train if math.isfinite(row["loss"])]
    stride = math.ceil(len(points) / POINTS) or 1
    return points[::-1][::stride][::-1]


def _finite(value: float | None) -> float | None:
    """None for infinity and NaN, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None
