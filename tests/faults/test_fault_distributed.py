"""One process of a torchrun job is killed: the job ends soon, and can be resumed from the last checkpoint."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from regard.checkpoints import newest_complete, verify
from regard.cli.main import run
from regard.training.metrics_log import read_metrics

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SETS = (
    "data.target=es", "data.phrasebook.count=100", "data.phrasebook.valid_count=8", "data.phrasebook.test_count=2",
    "data.phrasebook.max_words=8", "tokenizer.size=150", "training.device=cpu", "training.batch_tokens=200",
    "model.width=16", "model.heads=2", "model.encoder_depth=1", "model.decoder_depth=1", "model.ffn_width=32",
    "training.schedule=noam", "training.validate_every=0", "training.checkpoint_every=10", "training.log_every=1",
    "training.accumulate=2", "training.metric=loss",
)  # fmt: skip
LINES = 10_000 if "REGARD_FAULT_COUNT" in os.environ else 1064  # five parts, the last a short one
FOODS = ("bread", "fish", "rice", "soup")
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start jobs of two ranks, each in its own process group; all are ended after the test."""
    started = []

    def launch(*words: object) -> subprocess.Popen[str]:
        command = [*TORCHRUN, "-m", "regard", *map(str, words)]
        with (tmp_path / "log").open("a") as log:
            started.append(subprocess.Popen(command, stdout=log, stderr=log, text=True, start_new_session=True))
        return started[-1]

    yield launch
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def rank_of(job: subprocess.Popen[str], rank: int) -> int:
    """The process of a rank."""
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    wanted = f"RANK={rank}".encode()
    return next(int(pid) for pid in children if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))


def wait_until(job: subprocess.Popen[str], done: Callable[[], object], log: Path) -> None:
    while not done():
        assert job.poll() is None, log.read_text()
        time.sleep(0.05)


@pytest.mark.parametrize("parallel", [pytest.param("ddp", marks=pytest.mark.full), "fsdp"])
def test_training_ends_and_one_process_goes_on(tmp_path, start, parallel):
    out = tmp_path / "run"
    sets = [word for change in (*SETS, f"training.parallel={parallel}") for word in ("--set", change)]
    job = start("train", "phrasebook", *sets, "--set", "training.steps=100000", "-o", out)
    wait_until(job, lambda: newest_complete(out) is not None if out.exists() else False, tmp_path / "log")
    os.kill(rank_of(job, 1), signal.SIGKILL)
    assert job.wait(60) != 0
    saved = newest_complete(out)
    verify(saved)
    step = int(saved.name.removeprefix("step-"))
    more = ["--set", f"training.steps={step + 3}", "--set", "training.parallel=auto", "--resume", "-o", str(out)]
    assert run(["train", "phrasebook", *sets, *more]) == 0
    assert read_metrics(out / "metrics.jsonl")[-1]["step"] == step + 3
    verify(out)


@pytest.mark.filterwarnings("default::UserWarning")  # the command line prints them
def test_a_translation_goes_on_without_loss_or_repetition(tmp_path, start, translator_folder):
    text, once = tmp_path / "text.txt", "".join(f"we are eating {food}\n" for food in FOODS)
    text.write_text(once * (LINES // len(FOODS)))
    words = ["translate", "-m", translator_folder, "--to", "es", "--beam", "1", "--max-length", "5"]
    out, parts = tmp_path / "shared.txt", tmp_path / "shared.txt.parts"
    job = start(*words, "-i", text, "-o", out)
    wait_until(job, lambda: list(parts.glob("part-*")), tmp_path / "log")
    os.kill(rank_of(job, 1), signal.SIGKILL)
    assert job.wait(60) != 0
    assert not out.exists()
    shutil.copytree(parts, tmp_path / "before")
    again = start(*words, "-i", text, "-o", out)
    assert again.wait(600) == 0, (tmp_path / "log").read_text()
    (tmp_path / "once.txt").write_text(once)
    assert run([*map(str, words), "-i", str(tmp_path / "once.txt"), "-o", str(tmp_path / "one.txt")]) == 0
    translated = (tmp_path / "one.txt").read_bytes()
    assert translated.count(b"\n") == len(FOODS)
    assert out.read_bytes() == translated * (LINES // len(FOODS))
    assert not parts.exists()
    said = (tmp_path / "log").read_text().splitlines()
    did = [int(line.split()[0].replace(",", "")) for line in said if " new, written to" in line]
    finished = sum(len(part.read_text().splitlines()) for part in (tmp_path / "before").glob("part-*"))
    assert finished > 0
    assert sum(did) == LINES - finished
