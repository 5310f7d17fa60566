"""Command-line options: numbers are validated, files are not read as texts, data are found below the data root."""

import json
from pathlib import Path

import pytest
from PIL import Image

import regard
from regard.cli.main import run
from regard.data.sources import located, missing
from regard.errors import UsageError
from regard.training.recipe.files import recipe_names, shipped
from regard.training.recipe.load import load_recipe

WRONG = (
    "look x --top -1", "look x --head -1", "look x --temperature nan", "look x --max-tokens -1",
    "generate x -m m --temperature -1", "generate x -m m --temperature nan", "generate x -m m --max-tokens 0",
    "generate x -m m -n 0", "generate x -m m --best-of 0", "generate x -m m --keep nan", "generate x -m m --keep 2",
    "fill x -m m --top 0", "neighbours x -m m --top 0", "evaluate phrasebook --count 0",
    "evaluate phrasebook --seed -1", "evaluate phrasebook --min-words 0", "plan phrasebook --batch 0",
    "plan phrasebook --tokens inf",
    "plan phrasebook --target-length -3", "compare length --count 0", "compare sequences --width 0",
    "bench translate --threads 0", "bench translate --seconds nan",
)  # fmt: skip


@pytest.mark.parametrize("command", WRONG)
def test_numbers_out_of_range_are_refused_in_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("regard: ") and error.count("\n") == 1


TRANSLATE = (
    "--beam 100000", "--beam 0", "--max-length -1", "--length-penalty nan", "--n-best 0", "--sample --top-p 0",
    "--sample --top-k -1", "--min-length -1", "--no-repeat-ngram -1", "--sample --temperature -1",
    "--sample --temperature 0",
)  # fmt: skip


@pytest.mark.parametrize("options", TRANSLATE)
def test_a_search_out_of_range_is_refused_before_anything_is_written(
    options: str, translator_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("mine")
    command = ["translate", "we are eating bread", "-m", str(translator_folder), "--to", "es", "-o", str(kept)]
    assert run([*command, *options.split()]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and " = " in error
    assert kept.read_text() == "mine"


@pytest.mark.parametrize("option", ["--temperature 0.5", "--top-k 3", "--top-p 0.9", "--seed 2"])
def test_what_shapes_drawn_answers_is_refused_in_a_search(option: str, translator_folder: Path, capsys) -> None:
    command = ["translate", "we are eating bread", "-m", str(translator_folder), "--to", "es", *option.split()]
    assert run(command) == 2
    assert f"{option.split()[0]} is for --sample, and this is a search" in capsys.readouterr().err
    assert run([*command, "--sample"]) == 0


@pytest.mark.parametrize("verb", ["look", "translate"])
def test_a_picture_is_no_text(
    verb: str,
    translator_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("L", (8, 8)).save("g.png")
    assert run([verb, "g.png", "-m", str(translator_folder), "--to", "es"]) == 2
    assert "g.png is the file of an image, but this model reads texts" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["g.png"]


@pytest.mark.parametrize("name", ["missing.png", "DSC_0001.JPG", "no/such/photo.jpeg"])
def test_the_name_of_an_image_that_is_not_there_is_no_text_to_look_at(
    name: str, translator_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [name, "-m", str(translator_folder), "--to", "es", "-o", str(tmp_path / "x.html")]
    assert run(["look", *arguments]) == 2
    assert f"{name}: there is no such image" in capsys.readouterr().err
    with pytest.raises(UsageError, match="there is no such image"):
        regard.look(str(translator_folder), name, to="es")
    assert not list(tmp_path.iterdir())
    assert run(["look", f"open {name}", *arguments[1:]]) == 0  # a text may speak of one


@pytest.mark.parametrize("claim", ["gradients", "scaling"])
def test_claims_are_drawn(claim: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", claim, "--json", "-o", str(tmp_path / "x.svg")]) == 0
    assert json.loads(capsys.readouterr().out)
    assert "<svg" in (tmp_path / "x.svg").read_text()


def test_data_are_found_below_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REGARD_DATA", raising=False)
    assert load_recipe("multi30k-transformer").data.train == "../shared/data/multi30k/train"
    (tmp_path / "mine" / "multi30k").mkdir(parents=True)
    monkeypatch.setenv("REGARD_DATA", "mine/")
    recipe = load_recipe("multi30k-transformer", ["data.valid=data:held.tsv"])
    assert (recipe.data.train, recipe.data.valid) == ("mine/multi30k/train", "mine/held.tsv")
    assert "the data root is mine: set REGARD_DATA or --data-root" in missing(recipe.data.train)
    for language in ("en", "de"):
        (tmp_path / "mine" / "multi30k" / f"train.{language}").touch()
    assert not missing(recipe.data.train) and not missing("elsewhere.tsv")
    assert located({"a": ["data:b", 1]}) == {"a": ["mine/b", 1]}


def test_a_missing_file_is_named_with_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_DATA", "")
    assert run(["train", "multi30k-transformer", "--data-root", "nowhere"]) == 2
    assert "--data-root 'nowhere' is not a folder" in capsys.readouterr().err
    assert run(["train", "multi30k-transformer", "--data-root", str(tmp_path)]) == 1
    assert f"{tmp_path}/multi30k/train is not there; the data root is {tmp_path}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_recipes_say_what_they_do_need_and_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").touch()
    assert all(shipped(name).purpose for name in recipe_names())
    assert shipped("tinyshakespeare-gpt").data == {f"{tmp_path}/tinyshakespeare/input.txt": True}
    assert shipped("pairs-transformer").data is None and shipped("scenes-vit").data == {}
    assert run(["models"]) == 0
    shown = capsys.readouterr().out
    assert "input.txt (there)" in shown and "(missing)" in shown and "data: built in" in shown
    assert "time: unmeasured" in shown and shipped("wikitext2-lstm").takes in shown
    assert "data: yours, with --set data.train=…" in shown
    assert run(["models", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recipes"]["tinyshakespeare-gpt"]["data"]
