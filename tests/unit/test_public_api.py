"""The public names of `regard`: what they are, that they import lazily, and that their examples run."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from regard.families.catalog import PIPELINES

READING = Path(__file__).parents[2] / "docs" / "reading.md"
RELEASED = {  # the names that each release made public: all of them must still import
    "0.1.0": "load look",
}
FRESH = """
import os, sys
before, threads = dict(os.environ), sys.getrecursionlimit()
import regard
assert dict(os.environ) == before
assert not {"torch", "numpy", "pydantic", "typing_extensions"} & sys.modules.keys(), sys.modules.keys()
assert sorted(name for name in sys.modules if name.startswith("regard")) == ["regard"]
print(*dir(regard))
"""


def test_importing_regard_imports_and_changes_nothing():
    said = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.split() == sorted(regard.__all__)


@pytest.mark.parametrize("name", [name for name in regard.__all__ if name != "__version__"])
def test_every_public_name_imports_and_is_described(name):
    assert getattr(regard, name).__doc__
    assert len(regard.__all__) == len(set(regard.__all__))


def test_every_pipeline_of_ours_is_public():
    ours = {entry.class_name.rpartition(".")[2] for entry in PIPELINES.values() if entry.package.startswith("regard.")}
    assert ours <= set(regard.__all__)
    assert all(isinstance(getattr(regard, name), type) for name in ours)


@pytest.mark.parametrize(("release", "names"), RELEASED.items())
def test_names_of_earlier_releases_still_import(release, names):
    assert all(hasattr(regard, name) for name in names.split()), release


def test_other_names_are_errors():
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", regard.__version__)
    with pytest.raises(AttributeError, match="module 'regard' has no attribute 'lod'"):
        getattr(regard, "lod")  # noqa: B009 - the name that was asked for


def test_examples_of_docstrings_run():
    assert doctest.testmod(regard, raise_on_error=False).failed == 0
    assert sum(len(each.examples) for each in doctest.DocTestFinder().find(regard)) >= 4


@pytest.mark.parametrize("beam", [1, 3])
def test_the_first_example_of_reading_runs_with_any_beam(beam, translator_folder):
    code = re.search(r"```python\n(.*?)```", READING.read_text(encoding="utf-8"), re.DOTALL)[1]
    assert 'load("runs/en-fr")' in code and "beam=5" in code
    names = {}
    exec(code.replace("runs/en-fr", str(translator_folder)).replace("beam=5", f'to="es", beam={beam}'), names)
    *_, step = names["steps"]
    assert step.shape[:2] == (beam, 1)
    assert names["stream"].dim() == 3
