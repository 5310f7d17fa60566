"""A family of another package: installed by pip, found by its entry point, used through the ordinary commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PACKAGE = Path(__file__).parents[1] / "third_party" / "pointclouds"
SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the package in it, as pip installs it."""
    folder = tmp_path_factory.mktemp("site")
    source = folder.with_name("source")
    subprocess.run(["cp", "-r", str(PACKAGE), str(source)], check=True)  # setuptools writes beside what it builds
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "--target", str(folder), str(source)], check=True)
    return folder


@pytest.fixture(scope="module")
def command(installed):
    def run(*arguments: str) -> str:
        path = os.pathsep.join([str(installed), str(SOURCE)])
        done = subprocess.run(
            [sys.executable, "-m", "regard", *arguments],
            capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def trained(command, tmp_path_factory):
    folder = tmp_path_factory.mktemp("clouds") / "run"
    command("train", "drawn-clouds", "--out", str(folder))
    return folder


@pytest.fixture
def needle(tmp_path):
    points = np.random.default_rng(1).normal(size=(32, 3)) * (0.1, 0.1, 1.0)
    np.savetxt(tmp_path / "needle.xyz", points)
    return tmp_path / "needle.xyz"


def test_its_verb_answers_and_is_listed(command, trained, needle):
    assert command("recognise", str(needle), "-m", str(trained)) == f"{needle}\tneedle\n"
    assert "recognise" in command("--help")


def test_it_is_measured_by_evaluate(command, trained):
    scores = json.loads(command("evaluate", "builtin:clouds", "-m", str(trained), "--json"))
    assert scores["accuracy"] > 0.9


def test_look_draws_its_attention(command, trained, needle, tmp_path):
    command("look", str(needle), "-m", str(trained), "-o", str(tmp_path / "look.json"))
    report = json.loads((tmp_path / "look.json").read_text())
    assert report["meta"]["shape"] == "needle"
    assert len(report["panels"]) == 2  # its layers


def test_its_recipe_and_model_are_listed(command):
    listed = command("models")
    assert "drawn-clouds" in listed and "point_transformer" in listed


def test_without_the_package_its_names_are_unknown():
    done = subprocess.run(
        [sys.executable, "-m", "regard", "train", "drawn-clouds", "--out", "nowhere"],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert done.returncode == 2 and "no shipped recipe 'drawn-clouds'" in done.stderr
