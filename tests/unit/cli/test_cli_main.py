"""Exit codes, one-line errors and help, in this process and as a shell sees them."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest

from regard.cli.main import Verbs, run
from regard.families.contract import GROUPS
from regard.families.translation.verbs import Translate

VERBS = Verbs().list_commands(None)
REGARD = [sys.executable, "-m", "regard"]


@pytest.mark.parametrize("verb", [verb if verb != "data" else "data distill" for verb in VERBS])
def test_every_verb_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*verb.split(), "-h"]) == 0
    assert f"Example: regard {verb}" in capsys.readouterr().out


def test_the_list_of_verbs_imports_neither_torch_nor_a_family() -> None:
    program = "import sys; from regard.cli.main import run; run(['-h']); print(*sys.modules, file=sys.stderr)"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stderr.split()
    assert "regard.families.speech" in modules and "regard.families.speech.verbs" not in modules
    assert not {"torch", "numpy", "pydantic", "rich"} & set(modules)


def test_every_option_of_translate_is_in_a_group_that_exists(capsys: pytest.CaptureFixture[str]) -> None:
    declared = [name for names in Translate.groups.values() for name in names.split()]
    known = {field.name for field in fields(Translate)}
    assert len(set(declared)) == len(declared) and set(declared) <= known
    assert known - set(declared) == {"text", "model", "to", "source_language", "style"}
    assert run(["translate", "-h"]) == 0
    titles = [line for line in capsys.readouterr().out.splitlines() if line.endswith(":") and line[0] != " "]
    assert titles == ["Arguments:", "Options:", *(f"{title}:" for title in Translate.groups)]


def test_version_and_the_list_of_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip().count(".") == 2
    assert run(["-h"]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {verb} " in listed for verb in VERBS)
    body = listed.partition("Start:")[2]
    assert "..." not in body and max(map(len, body.splitlines())) <= 80
    assert [line[:-1] for line in listed.splitlines() if line.endswith(":")][1:] == list(GROUPS)
    assert run([]) == 2
    assert "Usage" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["bogus"], 2, "bogus"),
        (["transalte", "hi"], 2, "did you mean 'translate'?"),
        (["see", "cat.png"], 2, "name the model: -m FOLDER"),
        (["translate", "--bogus"], 2, "--bogus"),
        (["translate", "--beam", "many"], 2, "--beam"),
        (["plan"], 2, "MODEL_OR_RECIPE"),
        (["plan", "transformer:huge"], 2, "huge"),
        (["train", "phrasebok"], 2, "did you mean 'phrasebook"),
        (["train", "phrasebook", "--set", "training.stepz=1"], 2, "training.steps"),
        (["train", "vit"], 2, "did you mean 'cifar10-vit', "),
        (["train", "english-to-french"], 2, "`regard models` lists them; pairs-transformer"),
        (["train", "phrasebook", "--set", "data.source=French"], 2, "write the code of the language, 'fr'"),
        (["plan", "transfomer:base"], 2, "did you mean 'transformer'?"),
        (["claims", "scalling"], 2, "did you mean 'scaling'?"),
        (["translate", "-i", "."], 2, ". is a folder; name a file"),
        (["translate", "hi", "-m", "no/such/folder"], 1, "no/such/folder"),
        (["translate", "hi", "-i", "a.txt"], 2, "not both"),
        (["translate", "hi", "ho", "--attention", "x.svg"], 2, "exactly one text"),
        (["translate", "hi", "--stream", "--json"], 2, "--json"),
        (["translate", "-i", "missing.txt"], 2, "missing.txt"),
        (["compare", "nothing"], 2, "choose models, length or data"),
        (["compare", "models", "pairs.tsv", "-m", "one"], 2, "the old and the new model"),
        (["compare", "models", "pairs.tsv", "-m", "x=one", "-m", "x=two"], 2, "both models are named 'x'"),
        (["compare", "length", "pairs.tsv"], 2, "takes no pairs"),
        (["compare", "length"], 2, "NAME=FOLDER"),
        (["compare", "sequences", "-o", "x.gif"], 2, ".svg or .png"),
        (["claims", "three-ways", "--sizes", "8", "--width", "30"], 2, "multiple of 4"),
        (["claims", "three-ways", "--sizes", "8,x"], 2, "whole numbers"),
        (["claims", "permutation", "--sizes", "8"], 2, "is not measured over sizes; three-ways, windows"),
        (["claims", "permutation", "--width", "8"], 2, "--width is for --sizes"),
        (["evaluate"], 2, "--gold FILE"),
        (["evaluate", "phrasebook", "--layers"], 2, "--gold FILE"),
        (["evaluate", "phrasebook", "--merge", "both"], 2, "mutual"),
        (["convert", "a", "b", "--to", "keras"], 2, "marian"),
    ],
)
def test_a_mistake_is_one_line_and_its_exit_code(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("regard: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    def fail(arguments: list[str], **_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("regard.cli.main._commands", lambda: fail)
    assert run(["train", "x" * 5000, "-o", str(tmp_path / "run")]) == 1
    assert capsys.readouterr().err == "regard: standard output: No space left on device\n"
    usage = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr("shutil.disk_usage", lambda place: usage if place == tmp_path else usage._replace(free=2**40))
    assert run(["train", "x" * 5000, "-o", str(tmp_path / "run")]) == 1
    assert capsys.readouterr().err == f"regard: {tmp_path}: No space left on device\n"


def test_examples_are_printed_as_they_are_typed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["look", "-h"]) == 0
    examples = [line for line in capsys.readouterr().out.splitlines() if "Example:" in line]
    assert len(examples) == 5 and examples[-1].endswith("hf:openai-community/gpt2 --logit-lens -o gpt.json")


def test_interruption_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("regard.cli.main._commands", lambda: interrupt)
    assert run(["models"]) == 130
    assert capsys.readouterr().err == "regard: interrupted\n"


def test_a_reader_that_leaves_is_no_error() -> None:
    made = subprocess.run(
        ["bash", "-c", '"$@" | head -1; echo "${PIPESTATUS[0]}"', "-", *REGARD, "models"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert made.stdout.splitlines()[-1] == "0"
    assert made.stderr == ""


def test_a_terminated_training_is_143(tmp_path: Path) -> None:
    sets = ("data.phrasebook.count=50", "data.phrasebook.valid_count=2", "model.width=16", "training.log_every=1")
    words = [word for each in sets for word in ("--set", each)]
    process = subprocess.Popen(
        [*REGARD, "train", "phrasebook", "-o", str(tmp_path / "run"), *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stderr is not None
    while "step" not in (line := process.stderr.readline()):
        assert line, "the run ended by itself"
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (143, "")
    assert "Traceback" not in err
