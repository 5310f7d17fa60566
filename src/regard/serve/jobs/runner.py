"""Training for the web page: one job at a time, in a process of its own, with all that is known of it on disk.

The process outlives the request, the page and, if that crashes, the server. A server that is shut down stops it, so
that it saves, and the next server can let it go on.
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

from regard.checkpoints.folder import is_sealed
from regard.errors import UsageError
from regard.serve.http.errors import ConflictError, NotFoundError
from regard.serve.jobs.progress import LOG, Job, Record, Run, report, summary
from regard.serve.jobs.recipes import DEMO_SETS, brings_data, needs_data, suited
from regard.serve.jobs.runs import DEMO, RunFolders
from regard.serve.jobs.temp_folders import removed_if_killed
from regard.serve.jobs.training_data import check_language, count_pairs, keep_pairs
from regard.studies.demo import RECIPE as DEMO_RECIPE
from regard.training.recipe.recipes import load_recipe

UPLOAD = "upload"
LIMIT = 256 * 2**20  # bytes of training data
PATIENCE = 10.0  # seconds to wait for a run to save and end
NICENESS = 10  # whoever translates meanwhile goes first
# Threads that wait for each other by spinning are slow when they must share the cores with the server.
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive"}
log = logging.getLogger("regard.jobs")


class TrainingJobs:
    """The trainings of a server, kept in the folder `runs`; one at a time is running.

    `on_finished` is told the folder and name of every model that is trained, from a thread of its own; it answers with
    the id by which the model can now be used. `on_removed` is told the id of a model that is there no longer.
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
        self._find_again()

    @property
    def runs(self) -> Path:
        return self.run_folders.root

    # What a page asks

    def current(self) -> Job | None:
        """The job as it stands."""
        active = self._active  # asked first: a run that ends right now is shown once more as it was
        record = self.run_folders.current
        return None if record is None else report(record, self.run_folders.folder(record.name), active=active)

    def all(self) -> list[Run]:
        """Every training that was begun here and not deleted, newest first."""
        return [self._run(record) for name in self.run_folders.names() if (record := self.run_folders.record(name))]

    def models(self) -> dict[str, Path]:
        """The folders of the models that have been trained here, by name."""
        return self.run_folders.models()

    def _run(self, record: Record) -> Run:
        active = self._is_running(record)
        job = report(record, self.run_folders.folder(record.name), active=active)
        return summary(job, usable=not active and self.run_folders.has_model(record))

    # What a page orders

    def start(
        self,
        files: Sequence[Path],
        *,
        name: str,
        recipe: str,
        source: str = "",
        target: str = "",
        steps: int | None = None,
        minutes: float | None = None,
    ) -> Job:
        """Train by a shipped recipe on the pairs of `files`, which are moved away, or on what the recipe brings."""
        with self._changing:
            self._refuse_if_active()
            folder = self.run_folders.create(name)
            try:
                with removed_if_killed(folder):
                    sets = self._settings(files, folder, recipe, source, target, steps)
                    if minutes is not None:
                        sets += (f"training.time_limit={minutes}",)
                    settled = load_recipe(recipe, sets).training.steps
                self._launch(Record(name=name, recipe=recipe, sets=sets, steps=settled, minutes=minutes))
            except BaseException:
                shutil.rmtree(folder)
                raise
        return self._now()

    def start_demo(self) -> Job:
        """Train the built-in translator, or finish what was begun of it."""
        with self._changing:
            self._refuse_if_active()
            folder = self.run_folders.folder(DEMO)
            if is_sealed(folder):
                raise ConflictError("the demo model is trained already")
            folder.mkdir(parents=True, exist_ok=True)
            steps = load_recipe(DEMO_RECIPE, DEMO_SETS).training.steps
            self._launch(Record(name=DEMO, recipe=DEMO_RECIPE, sets=DEMO_SETS, steps=steps))
        return self._now()

    def stop(self) -> Job:
        """Let the run save and end; answers when it has, or after some seconds all the same."""
        with self._changing:
            record = self.run_folders.current
            if record is None or not self._active:
                raise ConflictError("no training is running")
            if not record.stopping:  # a second signal would end it without saving
                self.run_folders.write(record.replace(stopping=True))
                self._terminate()
            watcher = self._watcher
        if watcher is not None:
            watcher.join(PATIENCE)
        return self._now()

    def resume(self, name: str = "") -> Job:
        """Go on where a run stopped or failed: the current one, or the one of that name."""
        with self._changing:
            self._refuse_if_active()
            record = self.run_folders.get(name) if name else self.run_folders.current
            if record is None:
                raise NotFoundError("there is no training to go on with; start one")
            if record.code == 0:
                raise ConflictError(f"the training of {record.name} is finished; start another under a new name")
            self._launch(record)
        return self._now()

    def use(self, name: str) -> Run:
        """Take the model of a run into use: of one that has not ended, what it has learnt so far."""
        with self._changing:
            record = self._idle(name)
            folder = self.run_folders.model(record)
            self._withdraw(record)
            used = record.replace(model=self.on_finished(folder, record.name))
            self.run_folders.write(used)
            return self._run(used)

    def rename(self, name: str, new: str) -> Run:
        """Give a run and its model another name."""
        with self._changing:
            record = self._idle(name)
            renamed = self.run_folders.rename(record, new)
            if record.model is not None:
                self._withdraw(record)
                renamed = renamed.replace(model=self._taken_into_use(renamed, self.run_folders.model(renamed)))
                self.run_folders.write(renamed)
            return self._run(renamed)

    def delete(self, name: str) -> None:
        """Remove a run and its model for good."""
        with self._changing:
            record = self._idle(name)
            self.run_folders.delete(record)
            self._withdraw(record)

    def model(self, name: str) -> Path:
        """The folder of a run's model, to be sent."""
        with self._changing:
            return self.run_folders.model(self._idle(name))

    def forget(self) -> None:
        """Make place for another job; what was trained stays where it is."""
        with self._changing:
            self._refuse_if_active()
            self.run_folders.current = None

    def close(self) -> None:
        """Stop the run before the server ends; the next server can resume it."""
        if self._active:
            try:
                self.stop()
            except ConflictError:
                log.info("the run ended by itself")

    # Data

    def _settings(
        self, files: Sequence[Path], folder: Path, recipe: str, source: str, target: str, steps: int | None
    ) -> tuple[str, ...]:
        """The changes to a recipe that make it fit the data; paths in it are relative to the run's folder."""
        if not needs_data(recipe):
            if files or not brings_data(recipe):
                raise UsageError(f"the recipe {recipe} does not take files; choose one for your own sentence pairs")
            return suited(recipe, steps=steps)
        check_language(source)
        check_language(target)
        pairs = keep_pairs(files, folder / UPLOAD, source, target, limit=self.limit)
        count = count_pairs(pairs, source, target)
        data = {"train": pairs.relative_to(folder).as_posix(), "source": source, "target": target}
        return (
            *(f"data.{key}={json.dumps(value)}" for key, value in data.items()),
            *suited(recipe, pairs=count, steps=steps),
        )

    def _now(self) -> Job:
        job = self.current()
        assert job is not None
        return job

    # The process

    @property
    def _active(self) -> bool:
        """Whether a run is going on; until its end is noted and told, it is."""
        return self._watcher is not None and self._watcher.is_alive()

    def _refuse_if_active(self) -> None:
        record = self.run_folders.current if self._active else None
        if record is not None:
            raise ConflictError(f"{record.name} is being trained; one training runs at a time: stop it, or wait")

    def _is_running(self, record: Record) -> bool:
        current = self.run_folders.current if self._active else None
        return current is not None and current.name == record.name

    def _idle(self, name: str) -> Record:
        """The record of a run that is not running."""
        record = self.run_folders.get(name)
        if self._is_running(record):
            raise ConflictError(f"{record.name} is being trained; stop it first")
        return record

    def _launch(self, record: Record) -> None:
        """Start the run, or go on with it, from within its folder: so no path of this machine gets into its files."""
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
                start_new_session=True,  # Ctrl-C in the server's terminal is not for it
            )
        os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
        self.run_folders.write(record.replace(pid=process.pid, born=_birth(process.pid), code=None, stopping=False))
        self.run_folders.current = record
        self._watch(process.wait, process.terminate)

    def _find_again(self) -> None:
        """Watch a run that outlived a crash of the server, or note that it ended meanwhile."""
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
        """Note how the run ends, and tell of a finished model before anyone can see that it is finished."""

        def watch() -> None:
            code = wait()
            with self._changing:
                record = self.run_folders.current
                if record is None:  # somebody removed its folder
                    return
                model = record.model  # what was taken into use before the end stays in use
                if code == 0:
                    self._withdraw(record)
                    model = self._taken_into_use(record, self.run_folders.folder(record.name))
                self.run_folders.write(record.replace(code=code, model=model))

        self._terminate = terminate
        self._watcher = threading.Thread(target=watch, name="regard-job", daemon=True)
        self._watcher.start()

    def _taken_into_use(self, record: Record, folder: Path) -> str | None:
        try:
            return self.on_finished(folder, record.name)
        except Exception:
            log.exception("the model %s is trained, but could not be taken into use", record.name)
            return None

    def _withdraw(self, record: Record) -> None:
        """The model of a run is there no longer, or another one takes its place."""
        if record.model is not None:
            self.on_removed(record.model)


def _birth(pid: int) -> str:
    """When a process began, in the kernel's ticks; empty if it is gone, or where there is no /proc."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state == "Z" else rest[18]


def _is_alive(record: Record) -> bool:
    return record.pid > 0 and _birth(record.pid) == record.born != ""
