"""Saving in the background: a checkpoint appears only when all of it is written, and every failure is reported."""

import errno
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed.checkpoint import CheckpointException

from regard.checkpoints import verify
from regard.errors import CheckpointError
from regard.training.distributed import ALONE, Ranks
from regard.training.run_checkpoints import CheckpointWriter


@dataclass(frozen=True)
class FirstOfTwo(Ranks):
    """The first of two ranks, as if the other agreed to everything."""

    count: int = 2

    def lead(self, action):
        return action()

    def side_group(self):
        return None


class Writing:
    """Writes a file at once, and reports that the rest is written when the test says so."""

    def __init__(self) -> None:
        self.written: Future[None] = Future()

    def __call__(self, folder: Path) -> Future[None]:
        (folder / "state").write_text("all of it")
        return self.written


def test_a_checkpoint_is_in_place_only_when_all_have_written(tmp_path):
    saver, writing = CheckpointWriter(FirstOfTwo()), Writing()
    saver.save(tmp_path / "step-1", writing)
    assert not (tmp_path / "step-1").exists()
    writing.written.set_result(None)
    saver.settle()
    verify(tmp_path / "step-1")


def test_the_next_checkpoint_waits_for_the_one_before(tmp_path):
    saver, first, second = CheckpointWriter(FirstOfTwo()), Writing(), Writing()
    saver.save(tmp_path / "step-1", first)
    first.written.set_result(None)
    saver.save(tmp_path / "step-2", second)
    verify(tmp_path / "step-1")
    second.written.set_result(None)
    saver.close()
    verify(tmp_path / "step-2")


def test_what_a_rank_could_not_write_is_told_and_removed(tmp_path):
    full = OSError(errno.ENOSPC, "No space left on device")
    saver, writing = CheckpointWriter(FirstOfTwo()), Writing()
    saver.save(tmp_path / "step-1", writing)
    writing.written.set_exception(CheckpointException("write", {1: (full, None)}))
    with pytest.raises(CheckpointError, match=r"disk of .* is full"):
        saver.settle()
    assert list(tmp_path.iterdir()) == []
    saver.settle()  # reported once


def test_one_process_has_saved_when_it_goes_on(tmp_path):
    writing = Writing()
    writing.written.set_result(None)
    CheckpointWriter(ALONE).save(tmp_path / "step-1", writing, needs=1)
    verify(tmp_path / "step-1")


def test_a_full_disk_is_told_with_what_is_needed_and_what_is_free(tmp_path, monkeypatch):
    disk = SimpleNamespace(free=5000)
    monkeypatch.setattr("regard.checkpoints.folder.shutil.disk_usage", lambda _: disk)
    with pytest.raises(CheckpointError, match=r"full: needed 123,456 bytes, free 5,000; free some space"):
        CheckpointWriter(ALONE).save(tmp_path / "step-1", Writing(), needs=123_456)
    disk.free = 200_000

    def write(folder: Path) -> Future[None]:
        (folder / "state").write_bytes(b"x" * 636)
        disk.free = 1000  # another program has filled the disk in the meantime
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(CheckpointError, match=r"full: needed about 123,456 bytes, free 1,636; "):
        CheckpointWriter(ALONE).save(tmp_path / "step-1", write, needs=123_456)
