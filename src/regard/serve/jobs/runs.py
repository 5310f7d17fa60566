"""Run folders: their names, records, models, and the progress of their jobs.

A name from a request is validated before it becomes a path.
"""

from __future__ import annotations

import math
import re
import shutil
import signal
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from regard.checkpoints import complete_checkpoints
from regard.checkpoints.folder import is_sealed, newest_complete, publish
from regard.config import Config
from regard.errors import UsageError
from regard.serve.http.responses import ConflictError, NotFoundError, StorageFullError
from regard.serve.jobs.recipes import without_paths
from regard.serve.jobs.temp_folders import remove_abandoned
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


class RunState(Config):
    """What a job and an entry of the list of runs have in common."""

    name: str
    recipe: str
    state: State
    step: int
    steps: int
    message: str
    model: str | None


class Job(RunState):
    """A job as the page shows it."""

    seconds: float
    seconds_left: float | None
    loss: list[tuple[int, float]]
    valid: list[Validation]
    samples: list[SampleTranslation]
    summary: str
    base: str  # the model that it improves
    replaces: bool  # whether its model is used in place of that one


class Run(RunState):
    """A training run in the list of all runs."""

    bleu: float | None  # the best so far
    usable: bool  # whether there is a model or checkpoint to use or download


def read_job(record: JobRecord, folder: Path, *, active: bool) -> Job:
    """The present state of a run folder's job; `active` while its process is alive."""
    rows = read_metrics(folder / METRICS)
    train, valid, samples = ([row for row in rows if row["kind"] == kind] for kind in ("train", "valid", "samples"))
    log = _lines(folder / LOG)
    summary = next((line for line in log if SUMMARY in line), "")
    state = _state(record, active=active, begun=bool(summary))
    step, seconds = (train[-1]["step"], train[-1]["seconds"]) if train else (0, 0.0)
    metrics = ("loss", "bleu", "chrf", "exact")
    return Job(
        **record.model_dump(include={"name", "recipe", "steps", "model", "base", "replaces"}),
        state=state,
        step=step,
        seconds=seconds,
        seconds_left=_seconds_left(record, step, seconds) if state == "running" else None,
        message=_message(record, state, step, rows, without_paths(log[-1], folder) if log else ""),
        loss=_curve(train),
        valid=[Validation(step=row["step"], **{name: _finite(row.get(name)) for name in metrics}) for row in valid],
        samples=[SampleTranslation(step=row["step"], **pair) for row in samples[-1:] for pair in row["pairs"]],
        summary=summary,
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


def _curve(train: Sequence[Row]) -> list[tuple[int, float]]:
    """The loss over the steps, thinned to `POINTS`; the last point is always kept."""
    points = [(row["step"], row["loss"]) for row in train if math.isfinite(row["loss"])]
    stride = math.ceil(len(points) / POINTS) or 1
    return points[::-1][::stride][::-1]


def _finite(value: float | None) -> float | None:
    """None for infinity and NaN, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None


NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
DEMO = "demo"
CURRENT = ".current"
DELETED = ".deleted-"
MODEL = "model"  # subfolder of an unfinished run: the checkpoint that is in use
CHUNK = 2**20


class RunFolders:
    """The run folders of a server under `root`; one of them may be the current one."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        remove_abandoned(self.root)
        for folder in self.root.glob(f"{DELETED}*"):  # left by a server that was killed while it deleted a run
            shutil.rmtree(folder, ignore_errors=True)

    # Records

    def folder(self, name: str) -> Path:
        return self.root / name

    def names(self) -> list[str]:
        """The runs that were started from a page, newest first."""
        files = sorted(self.root.glob(f"*/{RECORD}"), key=lambda file: file.stat().st_mtime, reverse=True)
        return [file.parent.name for file in files if self.record(file.parent.name) is not None]

    def record(self, name: str) -> JobRecord | None:
        """The record of a run, or None if there is none of that name."""
        if not NAME.fullmatch(name):
            return None
        try:
            return JobRecord.model_validate_json((self.folder(name) / RECORD).read_bytes())
        except (OSError, ValueError):
            return None

    def get(self, name: str) -> JobRecord:
        """The record of a run; raises NotFoundError if there is none of that name."""
        if (record := self.record(name)) is None:
            raise NotFoundError(f"there is no training called {name[:80]!r}")
        return record

    def write(self, record: JobRecord) -> None:
        _replace(self.folder(record.name) / RECORD, record.model_dump_json())

    @property
    def current(self) -> JobRecord | None:
        """The run that the page shows, if there is one."""
        try:
            return self.record((self.root / CURRENT).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            return None

    @current.setter
    def current(self, record: JobRecord | None) -> None:
        if record is None:
            (self.root / CURRENT).unlink(missing_ok=True)
        else:
            _replace(self.root / CURRENT, record.name)

    # Creating, renaming and deleting

    def create(self, name: str) -> Path:
        """Create the folder of a new run."""
        folder = self._new_folder(name)
        if (folder / RECORD).is_file() and not is_sealed(folder) and not complete_checkpoints(folder):
            shutil.rmtree(folder)  # the earlier run of this name saved nothing
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise ConflictError(f"there is already a training called {name}; choose another name") from None
        except OSError as error:
            raise StorageFullError(f"the folder of runs cannot be written: {error.strerror}") from error
        return folder

    def rename(self, record: JobRecord, name: str) -> JobRecord:
        """Give a run another name; its folder is renamed."""
        new_folder, is_current = self._new_folder(name), self.current == record
        if new_folder.exists():
            raise ConflictError(f"there is already a training called {name}; choose another name")
        self.folder(record.name).rename(new_folder)
        renamed = record.replace(name=name)
        self.write(renamed)
        if is_current:
            self.current = renamed
        return renamed

    def delete(self, record: JobRecord) -> None:
        """Delete a run and its models."""
        if self.current == record:
            self.current = None
        trash = self.root / f"{DELETED}{record.name}"
        self.folder(record.name).rename(trash)  # atomic: a half-deleted folder must not look like a run
        shutil.rmtree(trash, ignore_errors=True)

    def _new_folder(self, name: str) -> Path:
        if not NAME.fullmatch(name) or name == DEMO:
            raise UsageError(
                f"the name {name[:80]!r} cannot be used; expected up to 41 of a-z, 0-9 and -, not beginning with -, "
                f"and not {DEMO!r}"
            )
        return self.root / name

    # Models

    def models(self) -> dict[str, Path]:
        """The models trained here, by name: of finished runs, and checkpoints of unfinished runs that are in use."""
        folders = sorted(self.root.iterdir()) if self.root.is_dir() else []
        places = [(folder, each) for folder in folders if NAME.fullmatch(folder.name) for each in ("", MODEL)]
        return {folder.name: folder / each for folder, each in reversed(places) if is_sealed(folder / each)}

    def model(self, record: JobRecord) -> Path:
        """The model of a run: the finished one, or its newest checkpoint, copied to the subfolder `MODEL`."""
        folder = self.folder(record.name)
        if is_sealed(folder):
            return folder
        if (newest := newest_complete(folder)) is None:
            raise ConflictError(f"{record.name} has saved no checkpoint yet; resume its training")
        try:
            (folder / MODEL).mkdir(exist_ok=True)
            publish(newest, folder / MODEL)
        except OSError as error:
            raise StorageFullError(f"the model cannot be stored: {error.strerror}") from error
        return folder / MODEL

    def has_model(self, record: JobRecord) -> bool:
        """Whether there is a finished model or a checkpoint."""
        folder = self.folder(record.name)
        return is_sealed(folder) or bool(complete_checkpoints(folder))


def stream_zip(folder: Path, name: str) -> Iterator[bytes]:
    """The files of a model as a zip archive, in chunks while it is written."""
    sink = _WriteBuffer()
    with zipfile.ZipFile(sink, "w") as archive:  # type: ignore[call-overload]  # it only needs `write` and `flush`
        for file in sorted(folder.iterdir()):
            if not file.is_file() or file.name.startswith(".") or file.name in (RECORD, LOG):
                continue
            entry = zipfile.ZipInfo.from_file(file, f"{name}/{file.name}")
            with file.open("rb") as content, archive.open(entry, "w", force_zip64=True) as packed:
                while chunk := content.read(CHUNK):
                    packed.write(chunk)
                    yield sink.take()
    yield sink.take()


class _WriteBuffer:
    """A write-only file without seeking; `take` returns and clears what was written."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def write(self, data: bytes) -> int:
        self._buffer += data
        return len(data)

    def flush(self) -> None:
        """Nothing to do: `take` returns everything written."""

    def take(self) -> bytes:
        taken = bytes(self._buffer)
        self._buffer.clear()
        return taken


def _replace(file: Path, text: str) -> None:
    """Replace a small file atomically: a reader sees the old or the new content."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)
