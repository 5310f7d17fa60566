"""The forked workers that run these tests report what one process would, and survive a test that kills its process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SESSION = """
import pytest

@pytest.fixture(scope="session")
def session_value():
    yield 1
    with open({log!r}, "a") as log:
        log.write("torn down\\n")
"""
CASES = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_passes(number, session_value):
    print("unseen")

def test_fails():
    print("a printed line of {name}")
    assert [1, 2] == [1, 3]

def test_is_skipped():
    pytest.skip("for a reason")

@pytest.mark.xfail
def test_fails_as_expected():
    assert False
"""
DYING = """
import os
def test_before(): pass
def test_dies(): os._exit(7)
def test_after(): pass
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "workers", "-p", "no:cacheprovider", "-rs", "-c", os.devnull]
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(TESTS)}
    return subprocess.run(
        [*command, "--rootdir", str(folder), *arguments, str(folder)],
        env=os.environ | plugins, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def counts(output: str) -> dict[str, int]:
    last = output.strip().splitlines()[-1]
    return {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", last.partition(" in ")[0])}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cases")
    (folder / "conftest.py").write_text(SESSION.format(log=str(folder / "log")))
    for name in ("one", "two", "three"):
        (folder / f"test_{name}.py").write_text(CASES.format(name=name))
    return folder


def test_workers_report_what_one_process_reports(folder):
    alone, shared = (run_pytest(folder, "--workers", count) for count in "12")
    assert counts(shared.stdout) == counts(alone.stdout) == {"failed": 3, "passed": 9, "skipped": 3, "xfailed": 3}
    assert alone.returncode == shared.returncode == 1
    for part in ("a printed line of one", "a printed line of three", "At index 1 diff: 2 != 3", "for a reason"):
        assert part in shared.stdout, shared.stdout
    assert "unseen" not in shared.stdout
    assert (folder / "log").read_text().count("torn down") == 1 + 2


def test_a_test_that_kills_its_process_fails_and_the_others_run(tmp_path):
    (tmp_path / "test_dying.py").write_text(DYING)
    (tmp_path / "test_other.py").write_text("def test_other(): pass")
    result = run_pytest(tmp_path, "--workers", "2")
    assert counts(result.stdout) == {"failed": 1, "passed": 3}, result.stdout
    assert "test_dies" in result.stdout and "its process died with exit code 7" in result.stdout


def test_the_first_failure_can_end_the_run(folder):
    result = run_pytest(folder, "--workers", "2", "--exitfirst")
    assert "stopping after 1 failures" in result.stdout and counts(result.stdout)["failed"] == 1
