"""`pytest --workers 3`: the tests are collected once, then run in forked processes.

Collecting imports torch, transformers and every test file, and generates requests from the server's schema: most of a
minute on a slow core. A process of pytest-xdist would repeat it; a forked one begins with its first test. A worker
takes a whole file, so fixtures of a module are made once.
"""

import multiprocessing
import os
import struct
import traceback
from collections.abc import Iterator
from itertools import chain, groupby, pairwise, zip_longest
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

import forked

FORKING = multiprocessing.get_context("fork")
FIRST = ("browser", "faults", "recipes", "parity")  # folders of long tests, and of tests that wait


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=1, help="processes that run tests at once")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Share the tests among workers; pytest's own loop runs them where there is only one."""
    wanted, option = session.config.option.workers, session.config.option
    if wanted < 2 or option.collectonly or (session.testsfailed and not option.continue_on_collection_errors):
        return None
    folder = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # all workers share it
    forked.start_server(session, folder)
    Workers(session, wanted).run()
    return True


def in_order(items: list[pytest.Item]) -> list[list[int]]:
    """The numbers of the tests of each file, in the order in which workers take files.

    Folders take turns, so that tests that wait and tests that compute run at the same time. The files with the fewest
    tests of a folder are last, so that the workers end together.
    """
    files = [list(group) for _, group in groupby(range(len(items)), lambda index: items[index].path)]
    folders: dict[Path, list[list[int]]] = {}
    for file in sorted(files, key=len, reverse=True):
        folders.setdefault(items[file[0]].path.parent, []).append(file)
    turns = sorted(folders.values(), key=lambda group: items[group[0][0]].path.parent.name not in FIRST)
    return [file for turn in zip_longest(*turns) for file in turn if file]


class Workers:
    """Processes that take files from a pipe and send the reports of their tests."""

    def __init__(self, session: pytest.Session, count: int) -> None:
        self._session, self._config, self._count = session, session.config, count
        self._files = in_order(session.items)
        self._queue, full = os.pipe()
        with os.fdopen(full, "wb") as writer:  # a few bytes a file: they fit into the pipe, which then ends
            writer.write(b"".join(struct.pack("=I", number) for number in range(len(self._files))))
        self._processes: dict[Connection, BaseProcess] = {}
        self._running: dict[Connection, list[int]] = {}  # the tests that a worker has taken and not finished

    def run(self) -> None:
        try:
            for _ in range(min(self._count, len(self._files))):
                self._start([])
            while self._processes:
                for connection in wait(list(self._processes)):
                    self._receive(connection)  # type: ignore[arg-type]
                    if self._session.shouldfail:
                        raise self._session.Failed(self._session.shouldfail)
                    if self._session.shouldstop:
                        raise self._session.Interrupted(self._session.shouldstop)
        finally:
            for process in self._processes.values():
                process.terminate()
            os.close(self._queue)

    def _start(self, first: list[int]) -> None:
        """Start a worker that begins with these tests."""
        ours, theirs = FORKING.Pipe(duplex=False)
        process = FORKING.Process(target=self._work, args=(theirs, first))
        process.start()
        theirs.close()
        self._processes[ours], self._running[ours] = process, list(first)

    def _receive(self, connection: Connection) -> None:
        try:
            kind, value = connection.recv()
        except EOFError:
            self._end(connection)
            return
        running, hook = self._running[connection], self._config.hook
        if kind == "taken":
            running += value
        elif kind == "report":
            report = hook.pytest_report_from_serializable(config=self._config, data=value)
            hook.pytest_runtest_logreport(report=report)
        elif kind == "finished":
            item = self._session.items[running.pop(0)]
            hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        else:
            pytest.exit(f"a worker failed outside of a test\n{value}", returncode=pytest.ExitCode.INTERNAL_ERROR)

    def _end(self, connection: Connection) -> None:
        """A worker has closed its pipe. If it died in a test, the test failed, and another worker goes on after it."""
        process, running = self._processes.pop(connection), self._running.pop(connection)
        process.join()
        if running:
            item = self._session.items[running[0]]
            self._config.hook.pytest_runtest_logreport(report=pytest.TestReport(
                item.nodeid, item.location, {}, "failed", f"its process died with exit code {process.exitcode}", "call",
            ))  # fmt: skip
            self._start(running[1:])

    def _work(self, connection: Connection, first: list[int]) -> None:
        """What a worker does: run tests until no file is left."""
        plugins = self._config.pluginmanager
        plugins.unregister(name="terminalreporter")
        capture = plugins.getplugin("capturemanager")
        capture.stop_global_capturing()  # its files are shared with the other processes
        capture.start_global_capturing()
        capture.suspend_global_capture()
        forked.share_server()
        plugins.register(Sender(self._config, connection))
        try:
            for number, following in pairwise(chain(self._numbers(connection, first), [None])):
                item, items = self._session.items[number], self._session.items
                next_item = None if following is None else items[following]
                self._config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
                connection.send(("finished", number))
        except BaseException:
            connection.send(("broken", traceback.format_exc()))
            raise
        connection.close()

    def _numbers(self, connection: Connection, first: list[int]) -> Iterator[int]:
        yield from first
        while taken := os.read(self._queue, 4):
            file = self._files[struct.unpack("=I", taken)[0]]
            connection.send(("taken", file))
            yield from file


class Sender:
    """The plugin that sends a worker's reports to the process that prints them."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config, self._connection = config, connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data: dict[str, Any] = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", data))
