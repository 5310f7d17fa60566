"""Training jobs of the web page: one at a time, in a process of its own, with all of its state on disk.

The process keeps running when the request or the page ends, and also when the server crashes. A server that shuts down
stops the process, which then saves its state, and the next server can resume it.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from regard.checkpoints.folder import is_sealed
from regard.errors import UsageError
from regard.serve.http.responses import ConflictError, NotFoundError
from regard.serve.jobs.comparison import SUGGESTIONS, RunComparison, compare_run
from regard.serve.jobs.recipes import (
    ADAPT,
    DEMO_RECIPE,
    DEMO_SETS,
    check_language,
    count_pairs,
    has_builtin_data,
    needs_data,
    save_pairs,
    settings_for,
)
from regard.serve.jobs.runs import DEMO, LOG, Job, JobRecord, Run, RunFolders, RunState, read_job
from regard.serve.jobs.temp_folders import removed_if_killed
from regard.training.recipe.load import load_recipe

UPLOAD = "upload"
LIMIT = 256 * 2**20  # bytes of training data
STOP_WAIT = 10.0  # seconds to wait for a run to save and end
NICENESS = 10  # requests to the server have priority over training
# OpenMP threads that spin while they wait are slow when they share the cores with the server.
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive"}
log = logging.getLogger("regard.jobs")


class TrainingJobs:
    """The training jobs of a server, in the folder `runs`; one runs at a time.

    `on_finished` is called with the folder and name of every trained model, from another thread; it returns the id of
    the model in the model registry. `on_removed` is called with the id of a model that was deleted or replaced.
    """

    def __init__(
        self,
        runs: Path,
        *,
        limit: int = LIMIT,
        on_finished: Callable[[Path, str], str] = lambda folder, name: name,
        on_removed: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.run_folders, self.limit = RunFolders(runs), limit
        self.on_finished, self.on_removed = on_finished, on_removed
        self._changing = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._terminate: Callable[[], None] = lambda: None
        self._watch_existing()

    @property
    def runs(self) -> Path:
        return self.run_folders.root

    # Queries

    def current(self) -> Job | None:
        """The present state of the current job."""
        active = self._active  # read first: a run that ends just now is reported as running once more
        record = self.run_folders.current
        return None if record is None else read_job(record, self.run_folders.folder(record.name), active=active)

    def all(self) -> list[Run]:
        """Every run that was started by this page and not deleted, newest first."""
        return [self._run(record) for name in self.run_folders.names() if (record := self.run_folders.record(name))]

    def _run(self, record: JobRecord) -> Run:
        active = self._is_running(record)
        job = read_job(record, self.run_folders.folder(record.name), active=active)
        bleu = max((each.bleu for each in job.valid if each.bleu is not None), default=None)
        usable = not active and self.run_folders.has_model(record)
        return Run(**job.model_dump(include={*RunState.model_fields}), bleu=bleu, usable=usable)

    # Commands

    def start(
        self,
        files: Sequence[Path],
        *,
        name: str,
        recipe: str,
        source: str = "",
        target: str = "",
        base: Path | None = None,
        base_name: str = "",
        steps: int | None = None,
        minutes: float | None = None,
    ) -> Job:
        """Train by a shipped recipe, on the pairs of `files` (which are moved) or on the recipe's built-in data.

        The recipe `adapt` improves the model in the folder `base`, which is called `base_name` in the model registry.
        """
        if (recipe == ADAPT) != (base is not None):
            raise UsageError(f"the recipe {ADAPT} improves a model, and no other recipe does; give both or neither")
        with self._changing:
            self._refuse_if_active()
            folder = self.run_folders.create(name)
            try:
                with removed_if_killed(folder):
                    sets = self._settings(files, folder, recipe, source, target, steps)
                    if base is not None:
                        sets += (f"model.init={json.dumps(os.path.relpath(base, folder))}",)
                    if minutes is not None:
                        sets += (f"training.time_limit={minutes}",)
                    total_steps = load_recipe(recipe, sets).training.steps
                settings: dict[str, Any] = {"sets": sets, "steps": total_steps, "minutes": minutes}
                self._launch(JobRecord(name=name, recipe=recipe, base=base_name, **settings))
            except BaseException:
                shutil.rmtree(folder)
                raise
        return self._now()

    def start_demo(self) -> Job:
        """Train the demo translator, or resume its training."""
        with self._changing:
            self._refuse_if_active()
            folder = self.run_folders.folder(DEMO)
            if is_sealed(folder):
                raise ConflictError("the demo model is trained already")
            folder.mkdir(parents=True, exist_ok=True)
            steps = load_recipe(DEMO_RECIPE, DEMO_SETS).training.steps
            self._launch(JobRecord(name=DEMO, recipe=DEMO_RECIPE, sets=DEMO_SETS, steps=steps))
        return self._now()

    def stop(self) -> Job:
        """Signal the run to save and end; returns when it has ended, or after `STOP_WAIT` seconds."""
        with self._changing:
            record = self.run_folders.current
            if record is None or not self._active:
                raise ConflictError("no training is running")
            if not record.stopping:  # a second signal would end the run before it has saved
                self.run_folders.write(record.replace(stopping=True))
                self._terminate()
            watcher = self._watcher
        if watcher is not None:
            watcher.join(STOP_WAIT)
        return self._now()

    def resume(self, name: str = "") -> Job:
        """Resume a run that stopped or failed: the current one, or the one of that name."""
        with self._changing:
            self._refuse_if_active()
            record = self.run_folders.get(name) if name else self.run_folders.current
            if record is None:
                raise NotFoundError("there is no training to resume; start one")
            if record.code == 0:
                raise ConflictError(f"the training of {record.name} is finished; start another under a new name")
            self._launch(record)
        return self._now()

    def use(self, name: str) -> Run:
        """Register the model of a run; of an unfinished run, its newest checkpoint."""
        with self._changing:
            record = self._idle(name)
            folder = self.run_folders.model(record)
            self._unregister(record)
            used = record.replace(model=self.on_finished(folder, record.name))
            self.run_folders.write(used)
            return self._run(used)

    def compare(self, name: str) -> RunComparison:
        """The model of a finished run beside the model that it improves, on held-out pairs and on corrections."""
        with self._changing:
            record = self._improvement(name)
        return compare_run(self.run_folders.folder(record.name), self.runs / SUGGESTIONS)

    def replace(self, name: str, replaces: bool) -> JobRecord:
        """Decide whether the model of a finished run is used in place of the model that it improves."""
        with self._changing:
            record = self._improvement(name).replace(replaces=replaces)
            self.run_folders.write(record)
            return record

    def replacements(self) -> list[JobRecord]:
        """The runs whose models are used in place of those that they improve, oldest first."""
        records = (self.run_folders.record(name) for name in reversed(self.run_folders.names()))
        return [record for record in records if record is not None and record.replaces]

    def rename(self, name: str, new: str) -> Run:
        """Give a run and its model another name."""
        with self._changing:
            record = self._idle(name)
            renamed = self.run_folders.rename(record, new)
            if record.model is not None:
                self._unregister(record)
                renamed = renamed.replace(model=self._register(renamed, self.run_folders.model(renamed)))
                self.run_folders.write(renamed)
            return self._run(renamed)

    def delete(self, name: str) -> None:
        """Delete a run and its model."""
        with self._changing:
            record = self._idle(name)
            self.run_folders.delete(record)
            self._unregister(record)

    def model(self, name: str) -> Path:
        """The folder of a run's model, for the download."""
        with self._changing:
            return self.run_folders.model(self._idle(name))

    def clear_current(self) -> None:
        """Let the page show no job; the run folder stays."""
        with self._changing:
            self._refuse_if_active()
            self.run_folders.current = None

    def close(self) -> None:
        """Stop the run when the server shuts down; the next server can resume it."""
        if self._active:
            try:
                self.stop()
            except ConflictError:
                log.info("the run ended by itself")

    # Data

    def _settings(
        self, files: Sequence[Path], folder: Path, recipe: str, source: str, target: str, steps: int | None
    ) -> tuple[str, ...]:
        """The `--set` values that fit a recipe to the data; paths in them are relative to the run folder."""
        if not needs_data(recipe):
            if files or not has_builtin_data(recipe):
                raise UsageError(f"the recipe {recipe} does not take files; choose one for your own sentence pairs")
            return settings_for(recipe, steps=steps)
        check_language(source)
        check_language(target)
        pairs = save_pairs(files, folder / UPLOAD, source, target, limit=self.limit)
        count = count_pairs(pairs, source, target)
        data = {"train": pairs.relative_to(folder).as_posix(), "source": source, "target": target}
        return (
            *(f"data.{key}={json.dumps(value)}" for key, value in data.items()),
            *settings_for(recipe, pairs=count, steps=steps),
        )

    def _now(self) -> Job:
        job = self.current()
        assert job is not None
        return job

    # The process

    @property
    def _active(self) -> bool:
        """Whether a run is active; it is until the watcher thread has recorded its end."""
        return self._watcher is not None and self._watcher.is_alive()

    def _refuse_if_active(self) -> None:
        record = self.run_folders.current if self._active else None
        if record is not None:
            raise ConflictError(f"{record.name} is being trained; one training runs at a time: stop it, or wait")

    def _is_running(self, record: JobRecord) -> bool:
        current = self.run_folders.current if self._active else None
        return current is not None and current.name == record.name

    def _idle(self, name: str) -> JobRecord:
        """The record of a run that is not running."""
        record = self.run_folders.get(name)
        if self._is_running(record):
            raise ConflictError(f"{record.name} is being trained; stop it first")
        return record

    def _improvement(self, name: str) -> JobRecord:
        """The record of a finished run that improved a model."""
        record = self._idle(name)
        if not record.base or record.code != 0:
            raise ConflictError(f"{record.name} is no finished improvement of another model")
        return record

    def _launch(self, record: JobRecord) -> None:
        """Start or resume the run with its folder as working directory, so that its files contain no local paths."""
        folder = self.run_folders.folder(record.name)
        changes = [part for change in record.sets for part in ("--set", change)]
        with (folder / LOG).open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "regard", "train", record.recipe, *changes, "--out", ".", "--resume"],
                cwd=folder,
                env=ENVIRONMENT | os.environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # Ctrl-C in the server's terminal must not reach it
            )
        os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
        self.run_folders.write(
            record.replace(pid=process.pid, born=_start_time(process.pid), code=None, stopping=False)
        )
        self.run_folders.current = record
        self._watch(process.wait, process.terminate)

    def _watch_existing(self) -> None:
        """Watch a run that kept running after a crash of the server, or record that it has ended."""
        record = self.run_folders.current
        if record is None or record.code is not None:
            return

        def wait() -> int:
            while _is_alive(record):
                time.sleep(0.2)
            return 0 if is_sealed(self.run_folders.folder(record.name)) else -signal.SIGTERM

        def terminate() -> None:
            if _is_alive(record):
                os.kill(record.pid, signal.SIGTERM)

        self._watch(wait, terminate)

    def _watch(self, wait: Callable[[], int], terminate: Callable[[], None]) -> None:
        """Record how the run ends; a finished model is registered before the run is reported as finished."""

        def watch() -> None:
            code = wait()
            with self._changing:
                record = self.run_folders.current
                if record is None:  # its folder was removed from outside
                    return
                model = record.model  # a checkpoint that was registered before the end stays registered
                if code == 0:
                    self._unregister(record)
                    model = self._register(record, self.run_folders.folder(record.name))
                self.run_folders.write(record.replace(code=code, model=model))

        self._terminate = terminate
        self._watcher = threading.Thread(target=watch, name="regard-job", daemon=True)
        self._watcher.start()

    def _register(self, record: JobRecord, folder: Path) -> str | None:
        try:
            return self.on_finished(folder, record.name)
        except Exception:
            log.exception("the model %s is trained, but could not be loaded into the registry", record.name)
            return None

    def _unregister(self, record: JobRecord) -> None:
        """Remove the model of a run from the registry, if it is there."""
        if record.model is not None:
            self.on_removed(record.model)


def _start_time(pid: int) -> str:
    """The start time of a process in kernel ticks; empty if it has ended, or without /proc."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state == "Z" else rest[18]


def _is_alive(record: JobRecord) -> bool:
    return record.pid > 0 and _start_time(record.pid) == record.born != ""
