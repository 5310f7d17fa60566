"""The bar of verbs: on a terminal it says how many, how fast and how long yet; elsewhere nothing is written."""

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from regard.cli.main import run
from regard.verbs.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_says_count_speed_and_time_left_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    clock = iter([100.0, 102.0, 104.0])
    monkeypatch.setattr("regard.verbs.progress.time", SimpleNamespace(monotonic=lambda: next(clock)))  # its own alone
    out = sys.stderr
    with Progress("sentences", 40) as progress:
        progress.advance(20, earlier=True)
        progress.advance(8)
        print("regard: warning: a sentence is too long", file=sys.stderr)
    shown = out.getvalue()
    assert "28/40" in shown and "2.0 sentences/s, 0:00:06 left" in shown
    assert "a sentence is too long\n" in shown


def test_evaluate_and_embed_show_how_far_they_are(
    translator_folder: Path, make_encoder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "texts.txt").write_text("we are\nshe reads\nbread\n")
    texts, vectors = str(tmp_path / "texts.txt"), str(tmp_path / "vectors.npy")
    for command, count in (
        (["evaluate", "phrasebook", "-m", str(translator_folder), "--count", "3", "--max-words", "6"], "6/6"),
        (["embed", "-i", texts, "-o", vectors, "-m", str(make_encoder("none"))], "3/3"),
    ):
        monkeypatch.setattr("sys.stderr", Terminal())
        assert run(command) == 0
        assert count in sys.stderr.getvalue() and "0:00:00 left" in sys.stderr.getvalue()


def test_nothing_is_written_without_a_terminal_or_where_it_is_not_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress("files", 2) as progress:
        progress.show(0, 2)
        progress.show(1, 2)
    assert (progress.done, capsys.readouterr().err) == (2, "")
    monkeypatch.setattr("sys.stderr", Terminal())
    with Progress("files", 2, wanted=False) as progress:
        progress.advance()
    assert sys.stderr.getvalue() == ""
