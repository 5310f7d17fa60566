"""What a killed server leaves behind, and who removes it."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from regard.serve.jobs.runner import Jobs
from regard.serve.jobs.spool import MARK, Spool, making, remove_left, remove_left_spools

SERVER = """
import sys, time
from pathlib import Path
from regard.serve.jobs.spool import Spool, making
spool, run = Spool(), Path(sys.argv[1])
(spool.folder / "document.txt").write_text("private")
run.mkdir(parents=True)
with making(run):
    (run / "upload").mkdir()
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@contextmanager
def receiving(run: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has received a document and is making a run of what came."""
    with subprocess.Popen([sys.executable, "-c", SERVER, str(run)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def test_the_next_server_removes_what_a_killed_one_left_and_nothing_else(temporary: Path, tmp_path: Path) -> None:
    runs, own = tmp_path / "runs", Spool()
    with receiving(runs / "killed") as killed:
        (runs / "finished").mkdir()
        with receiving(runs / "alive"):
            assert len(list(temporary.glob("*/document.txt"))) == 2
            killed.kill()
            killed.wait()
            Jobs(runs)
            remove_left_spools()
            assert len(list(temporary.glob("*/document.txt"))) == 1
            assert sorted(each.name for each in runs.iterdir()) == ["alive", "finished"]
            assert own.folder.is_dir()
    own.close()


def test_a_server_that_ends_takes_its_uploads_along(temporary: Path) -> None:
    spool = Spool()
    with spool.temporary() as folder:
        (Path(folder) / "half").write_text("x")
    assert not Path(folder).exists()
    spool.close()
    spool.close()
    assert list(temporary.iterdir()) == []


def test_what_is_made_is_kept(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with making(tmp_path / "run"):
        remove_left(tmp_path)
    remove_left(tmp_path)
    assert (tmp_path / "run").is_dir() and not (tmp_path / "run" / MARK).exists()


def test_nothing_is_removed_through_a_link(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    (tmp_path / "mine" / MARK).touch()
    (temporary / "regard-spool-x").symlink_to(tmp_path / "mine")
    remove_left_spools()
    assert (tmp_path / "mine" / "file").exists()
