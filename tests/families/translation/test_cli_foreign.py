"""regard translate warns about texts in a language that the model does not translate."""

from pathlib import Path

import pytest

from regard.cli.main import run
from regard.families.translation.document_verb import Foreign

pytestmark = pytest.mark.filterwarnings("default::UserWarning")  # the command line prints them
GERMAN, SPANISH, ENGLISH = "Wir essen Brot in dem Haus.", "Estamos comiendo pan en la casa.", "We are eating bread."


def told(texts: list[str], capsys: pytest.CaptureFixture[str], *, typed: bool) -> str:
    assert list(Foreign("en", "es", typed=typed).watch(texts)) == texts
    return capsys.readouterr().err


def test_each_typed_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert "German (de); this model reads English" in told([GERMAN], capsys, typed=True)
    assert "Spanish (es) already" in told([SPANISH], capsys, typed=True)
    for text in (ENGLISH, "ok", "Anna", "12", "", "Madrid", "pizza", "Tom's flaky.", "Duck!", "😀"):
        assert told([text], capsys, typed=True) == ""


def test_lines_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = told([ENGLISH, GERMAN, SPANISH, ENGLISH], capsys, typed=False).splitlines()
    assert "2 of 4 lines" in line and "number 2 is German (de)" in line
    assert told([ENGLISH] * 3, capsys, typed=False) == ""


def test_the_command_says_so(translator_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["translate", "-m", str(translator_folder), "--to", "es", "--beam", "1", "--max-length", "6"]
    assert run([*command, GERMAN]) == 0
    assert "German (de)" in capsys.readouterr().err
    assert run([*command, ENGLISH]) == 0
    assert "seems to be" not in capsys.readouterr().err
