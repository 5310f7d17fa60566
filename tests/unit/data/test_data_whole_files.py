"""Files that are written whole or not at all: full disks, errors half-way, links, pipes, and every command with -o."""

import errno
import gzip
import os
import re
from pathlib import Path

import pytest

import regard
from regard.cli.main import run
from regard.data.files import atomic_text, write_whole
from regard.errors import DataError

COMMANDS = Path(regard.__file__).parent / "cli"


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)


def _stop_half_way(path: Path) -> None:
    with atomic_text(path) as file:
        print("half", file=file, flush=True)
        raise InterruptedError


def test_an_error_half_way_leaves_the_file_of_before(tmp_path: Path) -> None:
    path = tmp_path / "answers.txt"
    path.write_text("before")
    with pytest.raises(DataError, match="not written"):
        _stop_half_way(path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_as_given_in_folders_that_are_made(tmp_path: Path) -> None:
    write_whole(tmp_path / "a" / "b.txt", "año\r\nline\n")
    assert (tmp_path / "a" / "b.txt").read_bytes() == "año\r\nline\n".encode()
    with atomic_text(tmp_path / "c.txt.gz") as file:
        print("año", file=file)
    assert gzip.decompress((tmp_path / "c.txt.gz").read_bytes()) == "año\n".encode()


def test_a_link_stays_a_link_and_a_pipe_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "file")
    write_whole(tmp_path / "link", "content")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "far" / "file").read_text() == "content"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDWR)  # both ends, so that nothing waits
    write_whole(tmp_path / "pipe", "content")
    assert os.read(reader, 100) == b"content"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize(
    "arguments",
    [
        ["translate", "we are eating bread", "-o", "out.txt"],
        ["evaluate", "pairs.tsv", "-o", "out.txt"],
        ["heads", "pairs.tsv", "-o", "out.json"],
        ["compare", "sequences", "--lengths", "4,8", "--width", "8", "-o", "out.png"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_full_disk_leaves_what_a_command_wrote_before(
    arguments: list[str], translator_folder: Path, tmp_path: Path, monkeypatch, full_disk, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pairs.tsv").write_text("we are eating bread\testamos comiendo pan\nthey sleep\tduermen\n")
    Path(arguments[-1]).write_text("before")
    model = [] if arguments[0] == "compare" else ["-m", str(translator_folder), "--to", "es"]
    assert run([*arguments, *model]) == 1
    assert f"{arguments[-1]}: not written (No space left on device)" in capsys.readouterr().err
    assert Path(arguments[-1]).read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {"pairs.tsv", arguments[-1]}


def test_no_command_writes_a_file_in_place() -> None:
    """Results of commands go through `write_whole` or `atomic_write`, so that none is half-written."""
    in_place = re.compile(r"\.write_(?:text|bytes)\(|open\([^)]*\"[wx]b?\"")
    assert [path.name for path in COMMANDS.glob("*.py") if in_place.search(path.read_text())] == []
    with pytest.raises(DataError, match="not written"):
        write_whole(COMMANDS, "a folder is no file")
