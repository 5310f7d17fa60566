"""Training for the web page: one job at a time, in a process of its own, with all that is known of it on disk.

The process outlives the request, the page and, if that crashes, the server. A server that is shut down stops it, so
that it saves, and the next server can let it go on.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from regard.checkpoints import complete_checkpoints
from regard.checkpoints.folder import is_sealed
from regard.errors import UsageError
from regard.serve.problems import Conflict, NoRoom, NotFound
from regard.serve.progress import LOG, RECORD, Job, Record, report
from regard.serve.recipes import DEMO_SETS, brings_data, needs_data, suited
from regard.serve.uploads import check_language, count_pairs, keep_pairs
from regard.studies.demo import RECIPE as DEMO_RECIPE
from regard.studies.demo import demo_folder
from regard.training.recipe import load_recipe

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
DEMO = "demo"
CURRENT = ".current"
UPLOAD = "upload"
LIMIT = 256 * 2**20  # bytes of training data
PATIENCE = 10.0  # seconds to wait for a run to save and end
NICENESS = 10  # whoever translates meanwhile goes first
# Threads that wait for each other by spinning are slow when they must share the cores with the server.
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive"}
log = logging.getLogger("regard.jobs")


class Jobs:
    """The training job of a server, whose runs are kept in the folder `runs`.

    `on_finished` is told the folder of every model that is trained, from a thread of its own; it answers with the id
    by which the model can now be used.
    """

    def __init__(
        self, runs: Path, *, limit: int = LIMIT, on_finished: Callable[[Path], str] = lambda folder: folder.name
    ) -> None:
        self.runs, self.limit, self.on_finished = runs.absolute(), limit, on_finished
        self._changing = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._terminate: Callable[[], None] = lambda: None
        self._find_again()

    # What a page asks

    def current(self) -> Job | None:
        """The job as it stands."""
        active = self._active  # asked first: a run that ends right now is shown once more as it was
        record = self._record()
        return None if record is None else report(record, self._folder(record.name), active=active)

    def finished_models(self) -> list[Path]:
        """The folders of the models that have been trained here."""
        folders = sorted(self.runs.iterdir()) if self.runs.is_dir() else []
        return [folder for folder in folders if NAME.fullmatch(folder.name) and is_sealed(folder)]

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
            folder = self._new_folder(name)
            try:
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
            folder = demo_folder()
            if is_sealed(folder):
                raise Conflict("the demo model is trained already")
            folder.mkdir(parents=True, exist_ok=True)
            steps = load_recipe(DEMO_RECIPE, DEMO_SETS).training.steps
            self._launch(Record(name=DEMO, recipe=DEMO_RECIPE, sets=DEMO_SETS, steps=steps))
        return self._now()

    def stop(self) -> Job:
        """Let the run save and end; answers when it has, or after some seconds all the same."""
        with self._changing:
            record = self._record()
            if record is None or not self._active:
                raise Conflict("no training is running")
            if not record.stopping:  # a second signal would end it without saving
                self._write(record.replace(stopping=True))
                self._terminate()
            watcher = self._watcher
        if watcher is not None:
            watcher.join(PATIENCE)
        return self._now()

    def resume(self) -> Job:
        """Go on where a run stopped or failed."""
        with self._changing:
            self._refuse_if_active()
            record = self._record()
            if record is None:
                raise NotFound("there is no training to go on with; start one")
            if record.code == 0:
                raise Conflict(f"the training of {record.name} is finished; start another under a new name")
            self._launch(record)
        return self._now()

    def forget(self) -> None:
        """Make place for another job; what was trained stays where it is."""
        with self._changing:
            self._refuse_if_active()
            (self.runs / CURRENT).unlink(missing_ok=True)

    def close(self) -> None:
        """Stop the run before the server ends; the next server can resume it."""
        if self._active:
            try:
                self.stop()
            except Conflict:
                log.info("the run ended by itself")

    # Folders and records

    def _folder(self, name: str) -> Path:
        return demo_folder() if name == DEMO else self.runs / name

    def _new_folder(self, name: str) -> Path:
        if not NAME.fullmatch(name) or name == DEMO:
            raise UsageError(
                f"the name {name[:80]!r} cannot be used; expected up to 41 of a-z, 0-9 and -, not beginning with -, "
                f"and not {DEMO!r}"
            )
        folder = self.runs / name
        if (folder / RECORD).is_file() and not is_sealed(folder) and not complete_checkpoints(folder):
            shutil.rmtree(folder)  # a run that never trained anything is nothing to keep
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise Conflict(f"there is already a training called {name}; choose another name") from None
        except OSError as error:
            raise NoRoom(f"nothing can be written into the folder of runs: {error.strerror}") from error
        return folder

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

    def _record(self) -> Record | None:
        """The record of the current job, if there is one."""
        try:
            name = (self.runs / CURRENT).read_text(encoding="utf-8")
            return Record.model_validate_json((self._folder(name) / RECORD).read_bytes())
        except (OSError, ValueError):
            return None

    def _write(self, record: Record) -> None:
        _replace(self._folder(record.name) / RECORD, record.model_dump_json())

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
        record = self._record() if self._active else None
        if record is not None:
            raise Conflict(f"{record.name} is being trained; one training runs at a time: stop it, or wait")

    def _launch(self, record: Record) -> None:
        """Start the run, or go on with it, from within its folder: so no path of this machine gets into its files."""
        folder = self._folder(record.name)
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
        self._write(record.replace(pid=process.pid, born=_birth(process.pid), code=None, stopping=False))
        _replace(self.runs / CURRENT, record.name)
        self._watch(process.wait, process.terminate)

    def _find_again(self) -> None:
        """Watch a run that outlived a crash of the server, or note that it ended meanwhile."""
        record = self._record()
        if record is None or record.code is not None:
            return

        def wait() -> int:
            while _is_alive(record):
                time.sleep(0.2)
            return 0 if is_sealed(self._folder(record.name)) else -signal.SIGTERM

        def terminate() -> None:
            if _is_alive(record):
                os.kill(record.pid, signal.SIGTERM)

        self._watch(wait, terminate)

    def _watch(self, wait: Callable[[], int], terminate: Callable[[], None]) -> None:
        """Note how the run ends, and tell of a finished model before anyone can see that it is finished."""

        def watch() -> None:
            code = wait()
            with self._changing:
                record = self._record()
                if record is not None:  # nobody removed its folder
                    self._write(record.replace(code=code, model=None if code else self._taken_into_use(record.name)))

        self._terminate = terminate
        self._watcher = threading.Thread(target=watch, name="regard-job", daemon=True)
        self._watcher.start()

    def _taken_into_use(self, name: str) -> str | None:
        try:
            return self.on_finished(self._folder(name))
        except Exception:
            log.exception("the model %s is trained, but could not be taken into use", name)
            return None


def _replace(file: Path, text: str) -> None:
    """Write a small file so that whoever reads it finds the old or the new one, whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)


def _birth(pid: int) -> str:
    """When a process began, in the kernel's ticks; empty if it is gone, or where there is no /proc."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state == "Z" else rest[18]


def _is_alive(record: Record) -> bool:
    return record.pid > 0 and _birth(record.pid) == record.born != ""
