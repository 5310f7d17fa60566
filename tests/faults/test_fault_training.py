"""Training processes that are stopped, killed or started twice: no progress is lost, and a folder has one writer."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from forked import PROCESSES
from regard.checkpoints import load_model, newest_complete, verify
from regard.errors import RegardError, UsageError
from regard.training.loop import train
from regard.training.metrics_log import read_metrics
from regard.training.recipe.load import load_recipe

COUNT = int(os.environ.get("REGARD_FAULT_COUNT", "1"))
SETS = [
    "data.target=es", "data.phrasebook.count=100", "data.phrasebook.valid_count=8", "data.phrasebook.test_count=2",
    "data.phrasebook.max_words=8", "tokenizer.size=150", "training.device=cpu", "training.batch_tokens=200",
    "model.width=16", "model.heads=2", "model.encoder_depth=1", "model.decoder_depth=1", "model.ffn_width=32",
    "training.schedule=noam", "training.validate_every=50", "training.validate_sentences=2",
    "training.checkpoint_every=20", "training.log_every=5", "training.keep=2", "decoding.max_length=8",
]  # fmt: skip
ENDLESS = "training.steps=1000000"
PROGRAM = """
import sys
from pathlib import Path
from test_fault_training import train_in_process

if __name__ == "__main__":
    train_in_process(*map(Path, sys.argv[1:3]), sys.argv[3:])
"""


def train_in_process(out, log, sets):
    """Train in a process whose messages go to a file."""
    with log.open("w") as sys.stderr:
        try:
            train(load_recipe("phrasebook", sets), out, resume=True)
        except RegardError as error:
            print(error, file=sys.stderr)
            sys.exit(error.exit_code)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


@pytest.fixture
def start(log):
    """Start training processes; all are ended after the test."""
    started = []

    def launch(out, *sets):
        process = PROCESSES.Process(target=train_in_process, args=(out, log, [*SETS, ENDLESS, *sets]))
        process.start()
        started.append(process)
        return process

    yield launch
    for process in started:
        process.kill()
        process.join()


def exit_code(process):
    process.join(60)
    return process.exitcode


def wait_for_steps(is_alive, out, log, beyond=0):
    """Wait until the run has logged a step after `beyond`."""
    while is_alive():
        rows = read_metrics(out / "metrics.jsonl")
        if rows and rows[-1]["step"] > beyond:
            return
        time.sleep(0.05)
    pytest.fail(f"the run ended by itself: {log.read_text()}")


@pytest.mark.parametrize("attempt", range(COUNT))
def test_sigterm_saves_and_exits_143(tmp_path, start, log, attempt):
    out = tmp_path / "run"
    step = 0
    for _ in range(2):  # the second time as a resumed run
        process = start(out)
        wait_for_steps(process.is_alive, out, log, beyond=step)
        time.sleep(random.Random(attempt).random() / 2)
        process.terminate()
        assert exit_code(process) == 143
        assert "continue with --resume" in log.read_text()
        newest = newest_complete(out)
        verify(newest)
        assert int(newest.name[5:]) > step
        step = int(newest.name[5:])
    train(load_recipe("phrasebook", [*SETS, f"training.steps={step + 2}"]), out, resume=True)
    verify(out)
    load_model(out)


@contextmanager
def program(out, log, *sets):
    """A training as a program of its own: its workers are in its process group, and it may be killed."""
    file = log.with_name("program.py")
    file.write_text(PROGRAM)
    command = [sys.executable, file, out, log, *SETS, ENDLESS, *sets]
    paths = os.pathsep.join([*map(str, Path(__file__).parents[:2]), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(command, start_new_session=True, env={**os.environ, "PYTHONPATH": paths}) as process:
        try:
            wait_for_steps(lambda: process.poll() is None, out, log)
            yield process
        finally:
            process.kill()


def test_control_c_with_workers_saves_and_exits_130(tmp_path, log):
    out = tmp_path / "run"
    with program(out, log, "training.workers=2") as process:
        os.killpg(process.pid, signal.SIGINT)  # to the workers as well, like a terminal
        assert process.wait(timeout=60) == 130, log.read_text()
    verify(newest_complete(out))


@pytest.mark.parametrize("attempt", range(COUNT))
def test_a_killed_run_resumes_from_its_last_checkpoint(tmp_path, log, attempt):
    out = tmp_path / "run"
    with program(out, log, "training.checkpoint_every=1") as process:
        time.sleep(random.Random(attempt).random() / 2)
        process.kill()
    step = int(newest_complete(out).name[5:])
    train(load_recipe("phrasebook", [*SETS, f"training.steps={step + 2}"]), out, resume=True)
    verify(out)
    steps = [row["step"] for row in read_metrics(out / "metrics.jsonl") if row["kind"] == "train"]
    assert steps == sorted(set(steps))


def test_a_signal_before_the_first_step_ends_the_run_at_once(tmp_path, start, log):
    out = tmp_path / "run"
    process = start(out, "data.phrasebook.count=100000", "data.phrasebook.max_words=60")
    while not (out / "recipe.toml").exists() and process.is_alive():
        time.sleep(0.05)
    process.terminate()
    assert exit_code(process) == 143
    assert "nothing had been trained yet" in log.read_text()


def test_a_second_run_is_refused_while_the_first_writes(tmp_path, start, log):
    out = tmp_path / "run"
    process = start(out)
    wait_for_steps(process.is_alive, out, log)
    with pytest.raises(UsageError, match="in use by another run"):
        train(load_recipe("phrasebook", [*SETS, ENDLESS]), out, resume=True)
    process.terminate()
    assert exit_code(process) == 143
