"""Several ranks (real processes over gloo) against one process: the same recipe gives the same run."""

import faulthandler
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from forked import PROCESSES
from regard.checkpoints import newest_complete
from regard.cli.main import run
from regard.errors import TrainingError
from regard.training.loop import train
from regard.training.metrics_log import read_metrics
from regard.training.recipe.load import load_recipe

STEPS = 4  # of six batches each: ranks that disagree about one gradient part in the second step
TINY = (
    "data.phrasebook.count=150", "data.phrasebook.valid_count=4", "data.phrasebook.test_count=2",
    "data.phrasebook.max_words=6", "model.width=16", "model.heads=2", "model.ffn_width=20", "model.encoder_depth=2",
    "model.decoder_depth=2", "model.dropout=0.2", "tokenizer.kind=word", "decoding.beam=2", "training.warmup=2",
    "training.lr=1e-2", "training.batch_tokens=128", "training.accumulate=6", "training.clip=0.5", "training.ema=0.8",
    f"training.steps={STEPS}", f"training.validate_every={STEPS // 2}", f"training.checkpoint_every={STEPS // 2}",
    "training.log_every=1", "training.validate_sentences=4", "training.device=cpu", "training.metric=loss",
    "decoding.max_length=8",
)  # fmt: skip


def in_ranks(count: int, work: Callable[..., None], *arguments: object, machines: int = 1) -> list[BaseProcess]:
    """Start `work` in processes with torchrun's environment, without waiting for them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sizes = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count // machines)}
    place = {**sizes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        PROCESSES.Process(target=as_rank, args=({**place, "RANK": str(rank), "LOCAL_RANK": str(rank)}, work, arguments))
        for rank in range(count)
    ]
    for process in started:
        process.start()
    return started


def as_rank(place: dict[str, str], work: Callable[..., None], arguments: tuple[object, ...]) -> None:
    os.environ |= place
    faulthandler.dump_traceback_later(300, exit=True)  # prints the stack if ranks wait for each other forever
    torch.set_num_threads(1)
    work(*arguments)


def ended(processes: list[BaseProcess]) -> list[int | None]:
    for process in processes:
        process.join(330)
        process.kill()
    return [process.exitcode for process in processes]


def train_tiny(out: Path, *changes: str, recipe: str = "phrasebook", base: tuple[str, ...] = TINY) -> None:
    train(load_recipe(recipe, [*base, *changes]), out, resume=out.exists())


def command(complaint: Path, *words: str) -> None:
    with complaint.open("a") as sys.stderr:
        code = run(list(words))
    sys.exit(code)


def curve(out: Path, *, after: int = 0) -> list[float]:
    return [row["loss"] for row in read_metrics(out / "metrics.jsonl") if "loss" in row and row["step"] > after]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone") / "run"
    train_tiny(out)
    return out


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def two_ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp(request.param) / "run"
    assert ended(in_ranks(2, train_tiny, out, f"training.parallel={request.param}")) == [0, 0]
    return out


def test_two_ranks_have_the_loss_curve_of_one_process(alone, two_ranks):
    assert len(curve(alone)) == STEPS + 3  # two validations, one test
    assert curve(two_ranks) == pytest.approx(curve(alone), abs=1e-5)
    ours, theirs = (
        [row for row in read_metrics(out / "metrics.jsonl") if row["kind"] == "train"] for out in (two_ranks, alone)
    )
    assert [row["tokens"] for row in ours] == [row["tokens"] for row in theirs]
    assert all(0 < row["waiting"] < 1 for row in [*ours, *theirs])  # the share of time spent waiting for the loader


def test_two_ranks_publish_the_weights_of_one_process(alone, two_ranks):
    ours, theirs = (load_file(out / "model.safetensors") for out in (two_ranks, alone))
    assert ours.keys() == theirs.keys()
    for name in (name for name in ours if not name.endswith("key.bias")):  # a softmax ignores it: its gradient is noise
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-5, rtol=1e-4)


def train_and_look_around(out: Path, *changes: str) -> None:
    """Exits with 3 if threads of the process group are left: they could crash the exiting interpreter."""
    with suppress(TrainingError):
        train_tiny(out, *changes)
    names = []
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has just ended
            names.append((thread / "comm").read_text())
    sys.exit(3 if any("gloo" in name for name in names) else 0)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads have names to be read on Linux only")
@pytest.mark.parametrize("change", ["training.steps=4", "training.lr=1e30"], ids=["finished", "failed"])
def test_no_thread_of_the_process_group_outlives_training(tmp_path, change):
    assert ended(in_ranks(2, train_and_look_around, tmp_path / "run", "training.parallel=ddp", change)) == [0, 0]


def test_what_two_ranks_saved_one_and_three_continue(alone, two_ranks, tmp_path):
    """Each also changes the engine: from sharded to replicated or a single process, and from replicated to sharded."""
    other = "ddp" if "fsdp" in str(two_ranks) else "fsdp"
    for count in (1, 3):
        out = tmp_path / str(count)
        shutil.copytree(two_ranks, out)
        shutil.rmtree(out / "checkpoints" / f"step-{STEPS:08d}")
        if count == 1:
            train_tiny(out)
        else:
            assert ended(in_ranks(count, train_tiny, out, f"training.parallel={other}")) == [0] * count
        assert curve(out, after=STEPS // 2) == pytest.approx(curve(alone, after=STEPS // 2), abs=1e-5)


def test_pieces_within_and_copies_between_machines(alone, tmp_path):
    """Four ranks as if on two machines (hybrid sharding); one process resumes from their checkpoint."""
    out, sets = tmp_path / "run", ("training.accumulate=4", "training.parallel=hsdp")
    assert ended(in_ranks(4, train_tiny, out, *sets, machines=2)) == [0] * 4
    train_tiny(tmp_path / "alone", *sets)
    assert curve(out) == pytest.approx(curve(tmp_path / "alone"), abs=1e-5)
    shutil.rmtree(out / "checkpoints" / f"step-{STEPS:08d}")
    train_tiny(out, *sets)
    assert curve(out) == pytest.approx(curve(tmp_path / "alone"), abs=1e-5)


def test_what_one_process_saved_two_ranks_continue(alone, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(alone, out)
    shutil.rmtree(out / "checkpoints" / f"step-{STEPS:08d}")
    assert ended(in_ranks(2, train_tiny, out, "training.parallel=fsdp")) == [0, 0]
    assert curve(out, after=STEPS // 2) == pytest.approx(curve(alone, after=STEPS // 2), abs=1e-5)


def test_a_checkpoint_of_ranks_is_in_pieces_and_no_pickle(two_ranks):
    state = newest_complete(two_ranks) / "train_state"
    assert len(list(state.glob("shard-*.safetensors"))) == 2
    assert {path.suffix for path in state.iterdir()} == {".safetensors", ".json"}


def test_prepared_data_are_what_training_would_have_made(alone, tmp_path, capsys):
    out = tmp_path / "run"
    sets = [word for change in TINY for word in ("--set", change)]
    assert run(["data", "prepare", "phrasebook", *sets, "-o", str(out)]) == 0
    assert "300 sentence pairs" in capsys.readouterr().err
    made = (out / "data" / "manifest.json").stat().st_mtime_ns
    assert (out / "data" / "manifest.json").read_bytes() == (alone / "data" / "manifest.json").read_bytes()
    train_tiny(out)
    assert curve(out) == curve(alone)
    assert (out / "data" / "manifest.json").stat().st_mtime_ns == made


def test_a_signal_to_one_rank_stops_and_saves_all(tmp_path):
    out = tmp_path / "run"
    sets = [word for change in (*TINY, "training.steps=100000") for word in ("--set", change)]
    ranks = in_ranks(2, command, tmp_path / "stderr", "train", "phrasebook", *sets, "-o", str(out))
    while not (out / "metrics.jsonl").exists() or len(read_metrics(out / "metrics.jsonl")) < 3:
        assert all(rank.is_alive() for rank in ranks)
        time.sleep(0.05)
    os.kill(ranks[1].pid, signal.SIGTERM)
    assert ended(ranks) == [143, 143]
    saved = newest_complete(out)
    rows = read_metrics(out / "metrics.jsonl")
    assert json.loads((saved / "train_state" / "progress.json").read_text())["step"] == rows[-1]["step"]


@pytest.mark.parametrize(
    ("recipe", "changes", "words"),
    [
        ("phrasebook", (*TINY, "training.accumulate=3"), "set it to 2 or a multiple"),
        ("phrasebook", (*TINY, "training.parallel=none"), "use 'ddp' or 'fsdp'"),
        (
            "tinyshakespeare-lstm",
            ("data.train=phrasebook", "data.sentences=50", "training.accumulate=2"),
            "by one process",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused(tmp_path, recipe, changes, words):
    sets = [word for change in changes for word in ("--set", change)]
    complaint = tmp_path / "stderr"
    ranks = in_ranks(2, command, complaint, "train", recipe, *sets, "-o", str(tmp_path / "run"))
    assert ended(ranks) == [2, 2]
    assert words in complaint.read_text()
