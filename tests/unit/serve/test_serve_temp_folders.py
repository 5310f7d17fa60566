"""The folders that a killed server leaves, and their removal."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from regard.serve.http.responses import StorageFullError
from regard.serve.jobs import temp_folders
from regard.serve.jobs.runner import TrainingJobs
from regard.serve.jobs.temp_folders import (
    LOCK_FILE,
    ServerTempFolder,
    check_space,
    remove_abandoned,
    remove_abandoned_temp_folders,
    removed_if_killed,
)

SERVER = """
import sys, time
from pathlib import Path
from regard.serve.jobs.temp_folders import ServerTempFolder, removed_if_killed
temp_folder, run = ServerTempFolder(), Path(sys.argv[1])
(temp_folder.folder / "document.txt").write_text("private")
run.mkdir(parents=True)
with removed_if_killed(run):
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
    """A process that has stored a document and is creating a run folder inside `removed_if_killed`."""
    with subprocess.Popen([sys.executable, "-c", SERVER, str(run)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def test_the_next_server_removes_what_a_killed_one_left_and_nothing_else(temporary: Path, tmp_path: Path) -> None:
    runs, own = tmp_path / "runs", ServerTempFolder()
    with receiving(runs / "killed") as killed:
        (runs / "finished").mkdir()
        with receiving(runs / "alive"):
            assert len(list(temporary.glob("*/document.txt"))) == 2
            killed.kill()
            killed.wait()
            TrainingJobs(runs)
            remove_abandoned_temp_folders()
            assert len(list(temporary.glob("*/document.txt"))) == 1
            assert sorted(each.name for each in runs.iterdir()) == ["alive", "finished"]
            assert own.folder.is_dir()
    own.close()


def test_a_server_that_ends_takes_its_uploads_along(temporary: Path) -> None:
    temp_folder = ServerTempFolder()
    (temp_folder.folder / "half").write_text("x")
    temp_folder.close()
    temp_folder.close()
    assert list(temporary.iterdir()) == []


def test_what_is_made_is_kept(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with removed_if_killed(tmp_path / "run"):
        remove_abandoned(tmp_path)
    remove_abandoned(tmp_path)
    assert (tmp_path / "run").is_dir() and not (tmp_path / "run" / LOCK_FILE).exists()


def test_nothing_is_removed_through_a_link(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    (tmp_path / "mine" / LOCK_FILE).touch()
    (temporary / "regard-spool-x").symlink_to(tmp_path / "mine")
    remove_abandoned_temp_folders()
    assert (tmp_path / "mine" / "file").exists()


def test_a_disk_that_is_nearly_full_takes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_space(tmp_path)
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(StorageFullError, match="GiB left"):
        check_space(tmp_path, free)
    monkeypatch.setattr(temp_folders, "RESERVE", free + 2**34)
    with pytest.raises(StorageFullError):
        check_space(tmp_path)
