"""A start that fails before its first step leaves the folder unchanged; a killed one is taken over by the next."""

from pathlib import Path

import pytest

from regard.cli.main import run
from regard.errors import DataError, RegardError, UsageError
from regard.training.loop import Trainer, prepare, train
from regard.training.recipe.load import load_recipe
from regard.training.run_folder import Start, claim

SETS = (
    "data.source=en", "data.target=es", "data.split=0.2", "tokenizer.size=120", "model.width=16", "model.heads=2",
    "model.encoder_depth=1", "model.decoder_depth=1", "model.ffn_width=16", "training.device=cpu", "training.steps=2",
    "training.validate_every=0", "training.log_every=1",
)  # fmt: skip


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"the {n} dogs\tlos {n} perros\n" for n in range(60)))
    return file


def recipe(data: Path, *changes: str):
    return load_recipe("pairs-transformer", [*SETS, f"data.train={data}", *changes])


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def failing(*_: object) -> None:
    raise RuntimeError("out of memory, say")


def test_a_typo_in_a_path_leaves_nothing(tmp_path, pairs):
    out = tmp_path / "runs" / "mine"
    with pytest.raises(DataError, match=r"nofile\.tsv"):
        train(recipe(tmp_path / "nofile.tsv"), out)
    assert not out.parent.exists()
    out.mkdir(parents=True)
    with pytest.raises(DataError, match=r"nofile\.tsv"):
        prepare(recipe(tmp_path / "nofile.tsv"), out)
    assert not list(out.iterdir())
    train(recipe(pairs), out)


@pytest.mark.parametrize("where", ["__init__", "step"])
def test_a_failure_until_the_first_step_leaves_nothing(tmp_path, pairs, monkeypatch, where):
    monkeypatch.setattr(Trainer, where, failing)
    with pytest.raises(RuntimeError):
        train(recipe(pairs), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_failure_after_the_first_step_leaves_the_run(tmp_path, pairs, monkeypatch):
    monkeypatch.setattr(Trainer, "_between_steps", lambda self: self.progress.step and failing())
    with pytest.raises(RuntimeError):
        train(recipe(pairs), tmp_path / "run")
    assert {"recipe.toml", "data"} <= {path.name for path in (tmp_path / "run").iterdir()}


def test_a_finished_model_survives_a_resumption_that_fails_at_once(tmp_path, pairs, monkeypatch):
    out = train(recipe(pairs), tmp_path / "run")
    before = contents(out)
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "step", failing)
        with pytest.raises(RuntimeError):
            train(recipe(pairs, "training.steps=3"), out, resume=True)
    assert contents(out) == before
    with pytest.raises(UsageError, match="begun with another model"):
        train(recipe(pairs, "model.ffn_width=32"), out, resume=True)
    assert contents(out) == before
    train(recipe(pairs, "training.steps=3"), out, resume=True)


def test_what_others_put_there_stays(tmp_path, pairs):
    out = tmp_path / "job"
    out.mkdir()
    (out / "job.json").write_text("{}")
    with pytest.raises(UsageError, match="not empty"):
        train(recipe(pairs), out)
    with pytest.raises(RegardError):
        train(recipe(tmp_path / "nofile.tsv"), out, resume=True)
    assert contents(out) == {"job.json": b"{}"}


@pytest.fixture
def killed(tmp_path, pairs, monkeypatch) -> Path:
    """The folder of a run that was killed after its data were prepared, so that nothing was cleaned up."""
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "__init__", failing)
        patched.setattr(Start, "undo", lambda self: None)
        with pytest.raises(RuntimeError):
            train(recipe(pairs), tmp_path / "run")
    (tmp_path / "run" / ".lock").touch()
    assert {".starting", "data", "recipe.toml"} <= {path.name for path in (tmp_path / "run").iterdir()}
    return tmp_path / "run"


def test_a_start_that_was_killed_is_taken_over_by_another_recipe(killed, pairs):
    train(recipe(pairs, "tokenizer.size=100", "model.ffn_width=32"), killed)
    assert "size = 100" in (killed / "recipe.toml").read_text()
    assert not (killed / ".starting").exists()


def test_to_resume_it_begins_anew_and_says_so(killed, pairs):
    made = (killed / "data" / "manifest.json").stat().st_mtime_ns
    with pytest.warns(UserWarning, match="nothing to resume in .*: no step was taken there; the run starts again"):
        train(recipe(pairs), killed, resume=True)
    assert (killed / "data" / "manifest.json").stat().st_mtime_ns == made  # the data were not prepared again


def test_to_resume_it_by_another_recipe_prepares_other_data(killed, pairs):
    with pytest.warns(UserWarning, match="nothing to resume"):
        train(recipe(pairs, "tokenizer.size=100"), killed, resume=True)
    assert "size = 100" in (killed / "recipe.toml").read_text()


def test_what_was_added_since_is_not_removed(killed, pairs):
    (killed / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        train(recipe(pairs), killed)
    assert (killed / "notes.txt").read_text() == "mine"


def test_a_start_that_is_running_is_not_taken_over(killed, pairs):
    with claim(killed, recipe(pairs), resume=False), pytest.raises(UsageError, match="in use by another run"):
        train(recipe(pairs), killed)


def test_prepared_data_are_no_leftover(tmp_path, pairs):
    prepare(recipe(pairs), tmp_path / "run")
    before = contents(tmp_path / "run")
    with pytest.raises(UsageError, match="not empty; continue its run with --resume"):
        train(recipe(pairs), tmp_path / "run")
    assert contents(tmp_path / "run") == before
    train(recipe(pairs), tmp_path / "run", resume=True)


def test_there_must_be_something_to_resume(tmp_path, capsys):
    out = tmp_path / "typo"
    assert run(["train", "phrasebook", "-o", str(out), "--resume"]) == 2
    assert "there is no run in" in capsys.readouterr().err
    assert not out.exists()
