"""`regard train --both`: two models from one file, one for each direction."""

from pathlib import Path

import pytest
import torch

from regard.cli.main import run
from regard.errors import ConfigError
from regard.training.recipe.load import load_recipe, open_task

PAIRS = [(f"we eat bread {n}", f"comemos pan {n}") for n in range(40)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table without a header, the source first."""
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS), encoding="utf-8")
    return file


def _sets(table: Path) -> list[str]:
    return [f"data.train={table}", "data.source=en", "data.target=es", "data.split=0.2", "tokenizer.size=60"]


def test_the_other_direction_has_the_same_pairs_the_other_way_round(table, tmp_path):
    recipe = load_recipe("pairs-rnn", _sets(table))
    there, back = (
        open_task(each, tmp_path / each.data.source, torch.device("cpu"), lambda: None).corpus
        for each in (recipe, recipe.reversed())
    )
    assert {(pair.target, pair.source, pair.to) for pair in back.valid} <= {(a, b, "en") for a, b in PAIRS}
    assert (back.tokenizer.source_language, back.tokenizer.target_languages) == ("es", ("en",))
    assert len(there.train) + len(there.valid) == len(back.train) + len(back.valid) == len(PAIRS)
    assert recipe.reversed().reversed() == recipe


def test_the_command_trains_both_and_resumes_what_is_not_complete(table, tmp_path, monkeypatch, capsys):
    trained = []

    def train(recipe, folder, *, resume):
        trained.append((recipe.data.source, recipe.data.target, folder.name, resume))
        folder.mkdir(parents=True, exist_ok=True)
        if len(trained) == 1:
            (folder / "manifest.json").touch()  # complete

    monkeypatch.setattr("regard.training.loop.train", train)
    command = ["train", "pairs-rnn", "--both", "--out", str(tmp_path / "runs")]
    for change in _sets(table):
        command += ["--set", change]
    assert run(command) == 0
    assert trained == [("en", "es", "en-es", False), ("es", "en", "es-en", False)]
    assert capsys.readouterr().out.split() == [str(tmp_path / "runs" / name) for name in ("en-es", "es-en")]
    trained[:] = [trained[0]]
    assert run([*command, "--resume"]) == 0
    assert trained[1:] == [("es", "en", "es-en", True)]


def test_what_has_no_other_direction_is_refused(table, tmp_path, capsys):
    several = load_recipe("pairs-rnn", [*_sets(table), "data.target=['es','pt']"])
    for recipe, words in ((several, "one target language"), (load_recipe("phrasebook-rnn"), "phrasebook|one target")):
        with pytest.raises(ConfigError, match=words):
            recipe.reversed()
    adapted = load_recipe("adapt", [*_sets(table)[:3], "model.init=x"])
    with pytest.raises(ConfigError, match="adapt each direction"):
        adapted.reversed()
    assert run(["train", "scenes-vit", "--both", "--out", str(tmp_path / "out")]) == 2
    assert "--both is for translators" in capsys.readouterr().err and not (tmp_path / "out").exists()
