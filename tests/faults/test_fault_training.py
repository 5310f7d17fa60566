"""Training processes that are stopped, killed or started twice: no progress is lost, and a folder has one writer."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from regard.checkpoints import load_model, newest_complete, verify
from regard.errors import UsageError
from regard.training.loop import train
from regard.training.metrics_log import read_metrics
from regard.training.tasks.catalog import load_recipe

COUNT = int(os.environ.get("REGARD_FAULT_COUNT", "1"))
SETS = [
    "data.target=es", "data.phrasebook.count=100", "data.phrasebook.valid_count=8", "data.phrasebook.test_count=2",
    "data.phrasebook.max_words=8", "tokenizer.size=150", "training.device=cpu", "training.batch_tokens=200",
    "model.width=16", "model.heads=2", "model.encoder_depth=1", "model.decoder_depth=1", "model.ffn_width=32",
    "training.schedule=noam", "training.validate_every=50", "training.validate_sentences=2",
    "training.checkpoint_every=20", "training.log_every=5", "training.keep=2",
]  # fmt: skip
ENDLESS = "training.steps=1000000"
PROGRAM = """
import sys
from pathlib import Path
from regard.errors import RegardError
from regard.training.loop import train
from regard.training.tasks.catalog import load_recipe

if __name__ == "__main__":
    try:
        train(load_recipe("phrasebook", sys.argv[2:]), Path(sys.argv[1]), resume=True)
    except RegardError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
"""


@pytest.fixture
def start(tmp_path):
    """Start training processes, each in its own process group; all are ended after the test."""
    started = []
    (tmp_path / "program.py").write_text(PROGRAM)

    def launch(out, *sets):
        command = [sys.executable, str(tmp_path / "program.py"), str(out), *SETS, ENDLESS, *sets]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        started.append(process)
        return process

    yield launch
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for_steps(process, out, beyond=0):
    """Wait until the run has logged a step after `beyond`."""
    while process.poll() is None:
        rows = read_metrics(out / "metrics.jsonl")
        if rows and rows[-1]["step"] > beyond:
            return
        time.sleep(0.05)
    pytest.fail(f"the run ended by itself: {process.stderr.read()}")


@pytest.mark.parametrize("attempt", range(COUNT))
def test_sigterm_saves_and_exits_143(tmp_path, start, attempt):
    out = tmp_path / "run"
    step = 0
    for _ in range(2):  # the second time as a resumed run
        process = start(out)
        wait_for_steps(process, out, beyond=step)
        time.sleep(random.Random(attempt).random() / 2)
        process.terminate()
        assert process.wait(timeout=60) == 143
        assert "continue with --resume" in process.stderr.read()
        newest = newest_complete(out)
        verify(newest)
        assert int(newest.name[5:]) > step
        step = int(newest.name[5:])
    train(load_recipe("phrasebook", [*SETS, f"training.steps={step + 2}"]), out, resume=True)
    verify(out)
    load_model(out)


def test_control_c_with_workers_saves_and_exits_130(tmp_path, start):
    out = tmp_path / "run"
    process = start(out, "training.workers=2")
    wait_for_steps(process, out)
    os.killpg(process.pid, signal.SIGINT)  # to the workers as well, like a terminal
    assert process.wait(timeout=60) == 130, process.stderr.read()
    verify(newest_complete(out))


@pytest.mark.parametrize("attempt", range(COUNT))
def test_a_killed_run_resumes_from_its_last_checkpoint(tmp_path, start, attempt):
    out = tmp_path / "run"
    process = start(out, "training.checkpoint_every=1")
    wait_for_steps(process, out)
    time.sleep(random.Random(attempt).random() / 2)
    process.kill()
    process.wait()
    step = int(newest_complete(out).name[5:])
    train(load_recipe("phrasebook", [*SETS, f"training.steps={step + 2}"]), out, resume=True)
    verify(out)
    steps = [row["step"] for row in read_metrics(out / "metrics.jsonl") if row["kind"] == "train"]
    assert steps == sorted(set(steps))


def test_a_signal_before_the_first_step_ends_the_run_at_once(tmp_path, start):
    out = tmp_path / "run"
    process = start(out, "data.phrasebook.count=100000", "data.phrasebook.max_words=60")
    while not (out / "recipe.toml").exists() and process.poll() is None:
        time.sleep(0.05)
    process.terminate()
    assert process.wait(timeout=60) == 143
    assert "nothing had been trained yet" in process.stderr.read()


def test_a_second_run_is_refused_while_the_first_writes(tmp_path, start):
    out = tmp_path / "run"
    process = start(out)
    wait_for_steps(process, out)
    with pytest.raises(UsageError, match="in use by another run"):
        train(load_recipe("phrasebook", [*SETS, ENDLESS]), out, resume=True)
    process.terminate()
    assert process.wait(timeout=60) == 143
