"""Checkpoints against kill -9, full disks, damaged bytes, hostile headers and pickles (rows 1, 9, 10, 11, 12).

REGARD_FAULT_COUNT sets how often each random fault is tried; `make faults` raises it.
"""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from forked import PROCESSES
from regard import checkpoints
from regard.errors import CheckpointError
from regard.families.translation.transformer import Transformer, TransformerConfig

COUNT = int(os.environ.get("REGARD_FAULT_COUNT", "10"))
SMALL = TransformerConfig(
    source_vocab=9, target_vocab=9, width=8, heads=2, encoder_depth=1, decoder_depth=1, ffn_width=8
)


def write_step(folder, step):
    """A checkpoint in which every number identifies its step."""

    def write(temporary):
        checkpoints.write_tensors(temporary / "model.safetensors", {"w": torch.full((200_000,), float(step))})
        (temporary / "train_state").mkdir()
        (temporary / "train_state" / "step.json").write_text(json.dumps(step))

    checkpoints.write_folder(folder, write)


def read_step(folder):
    checkpoints.verify(folder)
    step = json.loads((folder / "train_state" / "step.json").read_text())
    assert torch.equal(checkpoints.read_tensors(folder / "model.safetensors")["w"], torch.full((200_000,), float(step)))
    return step


def write_steps(run, done):
    """Resume from the newest checkpoint and write new ones until killed; `done` is the last that was finished."""
    newest = checkpoints.newest_complete(run)
    step = 0 if newest is None else read_step(newest)
    while True:
        step += 1
        write_step(run / "checkpoints" / f"step-{step:08}", step)
        done.value = step
        if step > 3:
            shutil.rmtree(run / "checkpoints" / f"step-{step - 3:08}", ignore_errors=True)


def rewrite_folder(folder, done):
    """Replace the same folder until killed."""
    step = read_step(checkpoints.resolve(folder)) if done.value else 0
    while True:
        step += 1
        write_step(folder, step)
        done.value = step


def kill_after_a_moment(target, place, done):
    """Run a writer until it has written once more, then kill it at a random moment."""
    before = done.value
    process = PROCESSES.Process(target=target, args=(place, done))
    process.start()
    while done.value == before and process.is_alive():
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.05))
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_row_1_killed_writers_never_cost_a_finished_checkpoint(tmp_path):
    done = PROCESSES.Value("q", 0, lock=False)  # not locked: a writer may be killed while it holds the lock
    for _ in range(COUNT):
        kill_after_a_moment(write_steps, tmp_path, done)
        listed = checkpoints.complete_checkpoints(tmp_path)
        steps = [read_step(folder) for folder in listed]
        assert steps == sorted(steps, reverse=True)
        assert steps[0] >= done.value
        assert checkpoints.newest_complete(tmp_path) == listed[0]
        done.value = steps[0]


def test_row_1_a_folder_being_replaced_is_whole_at_every_moment(tmp_path):
    done = PROCESSES.Value("q", 0, lock=False)  # not locked: a writer may be killed while it holds the lock
    for _ in range(COUNT):
        kill_after_a_moment(rewrite_folder, tmp_path / "m", done)
        step = read_step(checkpoints.resolve(tmp_path / "m"))
        assert step >= done.value
        done.value = step
    write_step(tmp_path / "m", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


FILL_THE_DISK = """
import resource, sys
from pathlib import Path
import torch
from regard import checkpoints
from regard.errors import CheckpointError

folder, how = Path(sys.argv[1]), sys.argv[2]
write = {
    "safetensors": lambda t: checkpoints.write_tensors(t / "model.safetensors", {"w": torch.zeros(2_000_000)}),
    "python": lambda t: (t / "log.txt").write_bytes(bytes(8_000_000)) and None,
}[how]
if sys.argv[3] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000_000, 4_000_000))
try:
    checkpoints.write_folder(folder, write)
except CheckpointError as error:
    print(error)
    sys.exit(error.exit_code)
"""


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 4 MB if mounting is permitted; otherwise the writer limits the size of its own files."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    mounted = shutil.which("mount") is not None and subprocess.run(command, capture_output=True).returncode == 0
    yield place, "mounted" if mounted else "limit"
    if mounted:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("how", ["safetensors", "python"])
def test_row_9_a_full_disk_leaves_the_old_checkpoint_and_says_so(how, small_disk):
    place, kind = small_disk
    write_step(place / "m", 7)
    ended = subprocess.run(
        [sys.executable, "-c", FILL_THE_DISK, place / "m", how, kind], capture_output=True, text=True
    )
    assert ended.returncode == 1, ended.stderr
    assert "is full: needed" in ended.stdout
    assert read_step(place / "m") == 7
    assert [path.name for path in place.iterdir()] == ["m"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    def extras(folder):
        (folder / "train_state").mkdir()
        (folder / "train_state" / "optimiser.bin").write_bytes(random.randbytes(500))

    folder = tmp_path_factory.mktemp("saved") / "m"
    checkpoints.save_model(folder, "transformer", Transformer(SMALL), extras)
    checkpoints.load_model(folder)
    return folder


FILES = ["model.safetensors", "config.json", "manifest.json", "train_state/optimiser.bin"]


def refused(folder, name, damaged):
    """Whether a folder with these bytes in one file is refused by name; a damaged manifest may name a file that it
    lists."""
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(damaged)
    try:
        with pytest.raises(CheckpointError) as caught:
            checkpoints.load_model(folder)
    finally:
        (folder / name).write_bytes(whole)
    return name in str(caught.value) or name == "manifest.json"


@pytest.mark.parametrize("name", FILES)
def test_row_10_a_truncated_file_is_never_loaded(name, saved):
    whole = (saved / name).read_bytes()
    for length in random.sample(range(len(whole)), min(100, len(whole))):
        assert refused(saved, name, whole[:length])


@pytest.mark.parametrize("name", FILES)
def test_row_10_a_flipped_bit_is_never_loaded(name, saved):
    whole = (saved / name).read_bytes()
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[random.randrange(len(whole))] ^= 1 << random.randrange(8)
        assert refused(saved, name, bytes(damaged))


def header(entries, data=b"", length=None):
    raw = json.dumps(entries).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def entry(begin, end):
    return {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}


HOSTILE = {
    "a length of 2^63": lambda: header({}, length=2**63),
    "a length of 2^64 - 1": lambda: header({}, length=2**64 - 1),
    "overlapping tensors": lambda: header({"a": entry(0, 6), "b": entry(4, 10)}, bytes(10)),
    "a gap": lambda: header({"a": entry(0, 4), "b": entry(6, 10)}, bytes(10)),
    "data beyond the end": lambda: header({"a": entry(0, 2**62)}, bytes(10)),
    "a shape larger than its data": lambda: header({"a": {**entry(0, 4), "shape": [2**40, 2**40]}}, bytes(4)),
    "100,000 entries": lambda: header({f"tensor.{n}": entry(0, 0) for n in range(100_000)}),
    "100,000 nothings": lambda: header({f"tensor.{n}": None for n in range(100_000)}),
    "nested lists": lambda: (8_000_000).to_bytes(8, "little") + b"[" * 8_000_000,
    "three million dimensions": lambda: header({"a": {**entry(0, 0), "shape": [0] * 3_000_000}}),
}


def read_hostile(file, answer):
    """Runs in a separate process: the error message, the CPU time and the memory of reading a hostile file."""
    time_before, memory_before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        checkpoints.read_tensors(file)
        said = "accepted"
    except CheckpointError as error:
        said = str(error)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_before
    answer.put((said, time.process_time() - time_before, memory * 1024))


@pytest.mark.parametrize("kind", HOSTILE)
def test_row_11_a_hostile_header_is_refused_cheaply(kind, tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(HOSTILE[kind]())
    answer = PROCESSES.SimpleQueue()
    process = PROCESSES.Process(target=read_hostile, args=(file, answer))
    process.start()
    said, seconds, memory = answer.get()
    process.join()
    assert said.startswith(f"the safetensors header of {file}")
    assert len(said) < 1000
    assert seconds < 1
    assert memory < 200e6


class Payload:
    """An attacker's pickle: unpickling it runs a command."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("allow_pickle", [True, False])
def test_row_12_nothing_in_a_pickle_is_executed(zipped, allow_pickle, tmp_path):
    marker = tmp_path / "executed"
    payload = {"w": torch.zeros(1), "x": Payload(f"touch {marker}")}
    torch.save(payload, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    marian = {"model_type": "marian", "vocab_size": 5, "d_model": 4, "encoder_layers": 1, "decoder_layers": 1}
    sizes = {"encoder_attention_heads": 1, "encoder_ffn_dim": 4, "pad_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps({**marian, **sizes}))
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
        checkpoints.load_model(tmp_path, allow_pickle=allow_pickle)
    assert not marker.exists()
