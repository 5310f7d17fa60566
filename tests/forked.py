"""Processes that start in milliseconds: they are forked from one that has imported what training and serving need.

Importing it takes seconds, and the first optimiser imports `torch._dynamo`, which takes seconds more.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest

PROCESSES = multiprocessing.get_context("forkserver")
PRELOADED = ["regard.training.loop", "regard.cli.main", "regard.cli.train", "regard.families.translation.task"]
PRELOADED += ["torch._dynamo", "tensorboardX", "pytest", "regard.serve.run"]


def start_server(session: pytest.Session, folder: Path) -> None:
    """Start the process that forks, if a test needs it, before a loader with workers starts one that has imported less.

    It is started once: workers, which are forked themselves, share it. What forked processes say is in forked.log.
    """
    needed = ("PROCESSES", "fork_jobs", "run_code", "running_forked")
    if any(hasattr(getattr(item, "module", None), name) for item in session.items for name in needed):
        PROCESSES.set_forkserver_preload(PRELOADED)
        with _output_to(folder / "forked.log"):
            forkserver._forkserver.ensure_running()


@contextmanager
def _output_to(file: Path) -> Iterator[None]:
    """Processes that are started meanwhile write to this file."""
    saved = [(stream, os.dup(stream)) for stream in (1, 2)]
    with file.open("a") as opened:
        for stream, _ in saved:
            os.dup2(opened.fileno(), stream)
    try:
        yield
    finally:
        for stream, copy in saved:
            os.dup2(copy, stream)
            os.close(copy)


def share_server() -> None:
    """Use the server of the parent process. Python's check whether it runs works in the parent only."""
    if forkserver._forkserver._forkserver_address is not None:
        forkserver._forkserver.ensure_running = lambda: None


def start_regard(
    arguments: Sequence[str], log: Path, *, folder: Path | None = None, environment: dict[str, str] | None = None
) -> BaseProcess:
    """`regard ARGUMENTS` in a forked process, whose messages go to a file."""
    place = folder or Path.cwd(), log.absolute(), environment or dict(os.environ)
    process = PROCESSES.Process(target=_regard, args=(arguments, *place))
    process.start()
    return process


class ForkedJob:
    """Takes the place of the `subprocess.Popen` that starts a training of the server."""

    def __init__(self, command: list[str], *, cwd: Path, env: dict[str, str], stderr: IO[bytes], **_: object) -> None:
        arguments = command[command.index("regard") + 1 :]
        self._process = start_regard(arguments, Path(stderr.name), folder=cwd, environment=env)
        self.pid, self.terminate = self._process.pid, self._process.terminate

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode


def fork_jobs(patch: pytest.MonkeyPatch) -> None:
    """Trainings of a server in this process start at once, with the priority of other tests, which need the CPU too."""
    patch.setattr("regard.serve.jobs.runner.NICENESS", 0)
    patch.setattr("regard.serve.jobs.runner.subprocess", SimpleNamespace(Popen=ForkedJob, DEVNULL=subprocess.DEVNULL))


def run_code(code: str, place: Path) -> tuple[int | None, str, str]:
    """The exit code, output and messages of Python code in a forked process, without the shape checks of tests."""
    files = place / "stdout", place / "stderr"
    process = PROCESSES.Process(target=_run_code, args=(code, files))
    process.start()
    process.join()
    output, messages = (file.read_text() for file in files)
    return process.exitcode, output, messages


def _run_code(code: str, files: tuple[Path, Path]) -> None:
    for file, stream in zip(files, (sys.stdout, sys.stderr), strict=True):
        with file.open("w") as opened:
            os.dup2(opened.fileno(), stream.fileno())
    exec(code, {"__name__": "__main__"})


def _regard(arguments: Sequence[str], folder: Path, log: Path, environment: dict[str, str]) -> None:
    from regard.cli.main import main

    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # TMPDIR may be another one here
    os.chdir(folder)
    with log.open("w") as errors:
        os.dup2(errors.fileno(), sys.stderr.fileno())
    sys.argv = ["regard", *arguments]
    main()
