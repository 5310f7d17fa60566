"""`regard demo`: the built-in translator, then the small one that it trains; each where the other is missing, too."""

from pathlib import Path

import pytest

from regard.cli import demo
from regard.cli.main import run
from regard.data.synthetic.phrasebook import part_of
from regard.families.translation import shipped
from regard.training.loop import train
from stand_ins import write_stand_ins

SHIPPED = "regard.families.translation.shipped.FOLDER"
LEARNER = "regard.families.translation.shipped.learner_folder"


@pytest.fixture
def learnt(translator_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(LEARNER, lambda: translator_folder)
    return translator_folder


@pytest.mark.usefixtures("learnt")
def test_both_translators_show_their_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SHIPPED, write_stand_ins(tmp_path / "shipped"))
    assert run(["demo", "the red house is big", "--to", "fr", "-o", str(tmp_path / "maps")]) == 0
    out = capsys.readouterr().out
    sentences = [*(sentence for sentence, _ in demo.SENTENCES), "the red house is big", "we are eating bread"]
    places = [out.index(f"\n{sentence}\n→ ") for sentence in sentences]
    assert places == sorted(places)
    assert "exactly right of 500, BLEU" in out and "alignment error rate" in out
    assert [out.count(f"\n  regard {verb} ") for verb in ("translate", "serve", "train")] == [1, 1, 1]
    drawn = [*(f"built-in-{number}.svg" for number in range(1, 7)), "trained-1.svg", "trained-2.svg"]
    assert sorted(file.name for file in (tmp_path / "maps").iterdir()) == drawn


@pytest.mark.usefixtures("learnt")
def test_without_weights_the_rest_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SHIPPED, tmp_path / "missing")
    assert run(["demo", "the red house is big", "-o", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not any(sentence in lines for sentence, _ in demo.SENTENCES)
    assert "the red house is big" in lines
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("begun", [False, True])
def test_the_small_translator_is_trained_once_and_resumed(
    begun: bool, learnt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def trained(recipe: object, folder: Path, *, resume: bool) -> None:
        asked.append(resume)
        folder.mkdir(exist_ok=True)
        for file in learnt.iterdir():
            if file.is_file():
                (folder / file.name).write_bytes(file.read_bytes())

    monkeypatch.setattr(f"{train.__module__}.train", trained)
    folder = tmp_path / "learner"
    monkeypatch.setattr(LEARNER, lambda: folder)
    if begun:
        folder.mkdir()
    assert {demo._learnt().name for _ in range(2)} == {"learner"}
    assert asked == [begun]


def test_the_lectures_sentences_are_held_out() -> None:
    assert {part_of(sentence) for sentence, _ in demo.LECTURES} == {"test"}


def test_another_phrasebook_is_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        words = tmp_path / name / "data" / "synthetic" / "phrasebook"
        words.mkdir(parents=True)
        (words / "lexicon.toml").write_text(f"{name} = 1\n", encoding="utf-8")
    folders = []
    for name in ("first", "first", "second"):
        monkeypatch.setattr("regard.__file__", str(tmp_path / name / "__init__.py"))
        shipped._edition.cache_clear()
        folders.append(shipped.learner_folder())
    shipped._edition.cache_clear()
    assert folders[0] == folders[1] != folders[2]
