"""Work in parts: the output equals that of one process, for any processes in any order, even if some are killed."""

import os
import signal
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forked import PROCESSES
from regard.cli.main import run
from regard.data.files import Parts
from regard.documents import translate
from regard.errors import UsageError
from regard.processes import Share
from regard.training.distributed import Ranks

pytestmark = pytest.mark.filterwarnings("default::UserWarning")  # the command line prints them


class KilledError(Exception):
    pass


def nobody_came() -> None:
    raise KilledError


def work(
    output: Path, share: Share, items: list[int], size: int, done: list[int], last: int, wait=lambda: None
) -> None:
    """Write square numbers, one per line; fail after `last` items, before the part is complete."""

    def do(some: list[int]) -> bytes:
        if len(done) + len(some) > last:
            raise KilledError
        done.extend(some)
        return "".join(f"{item**2}\n" for item in some).encode()

    def join(places: list[Path]) -> None:
        output.write_bytes(b"".join(place.read_bytes() for place in places))

    Parts(output, {"items": len(items)}, share).work(items, size, do, join, wait)


@settings(max_examples=40)
@given(
    count=st.integers(0, 40), size=st.integers(1, 7), ranks=st.integers(1, 5), kills=st.lists(st.integers(0, 20)),
    order=st.randoms(),
)  # fmt: skip
def test_nothing_is_lost_or_done_twice(tmp_path_factory, count, size, ranks, kills, order):
    output = tmp_path_factory.mktemp("parts") / "out"
    items, done = list(range(count)), []
    for last in kills:  # successive processes, each of which fails after some items
        share = Share(order.randrange(lives := order.randint(1, 5)), lives)
        with suppress(KilledError):
            work(output, share, items, size, done, len(done) + last, nobody_came)
    for rank in [*order.sample(range(1, ranks), ranks - 1), 0]:
        work(output, Share(rank, ranks), items, size, done, count)
    assert output.read_text() == "".join(f"{item**2}\n" for item in items)
    assert sorted(done) == items
    assert not output.with_name("out.parts").exists()


def killed_in_its_second_part(output: Path, items: list[int]) -> None:
    parts = Parts(output, {"items": len(items)}, Share(0, 2))
    calls = []

    def do(some: list[int]) -> bytes:
        calls.append(some)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return b"".join(b"%d\n" % item**2 for item in some)

    parts.work(items, 3, do, lambda places: None, lambda: None)


def test_a_killed_process_leaves_what_it_finished(tmp_path):
    output, items, done = tmp_path / "out", list(range(20)), []
    process = PROCESSES.Process(target=killed_in_its_second_part, args=(output, items))
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL
    for rank in (1, 0):
        work(output, Share(rank, 2), items, 3, done, 20)
    assert output.read_text() == "".join(f"{item**2}\n" for item in items)
    assert sorted(done) == items[3:]


def test_parts_of_other_work_are_refused(tmp_path):
    with pytest.raises(KilledError):
        work(tmp_path / "out", Share(), [1, 2, 3], 1, [], 2)
    with pytest.raises(UsageError, match="another input or of other options"):
        work(tmp_path / "out", Share(), [1, 2, 3, 4], 1, [], 9)


@pytest.fixture
def as_ranks(monkeypatch):
    """Run a command as each of three processes, the last one first, so that none waits for the others."""
    monkeypatch.setattr("regard.training.distributed.joined", lambda device: nullcontext(Ranks()))

    def launch(command: list[str]) -> None:
        for rank in (2, 1, 0):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", "3")
            assert run(command) == 0
        monkeypatch.delenv("WORLD_SIZE")

    return launch


def test_a_text_is_translated_in_order_whoever_does_it(translator_folder, tmp_path, monkeypatch, as_ranks, capsys):
    monkeypatch.setattr(translate, "BATCH", 4)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"we are eating bread {'and ' * (n % 3)}\n" if n % 5 else "\n" for n in range(70)))
    command = ["translate", "-m", str(translator_folder), "--to", "es", "--beam", "1", "--max-length", "8"]
    assert run([*command, "-i", str(text), "-o", str(tmp_path / "one.txt")]) == 0
    as_ranks([*command, "-i", str(text), "-o", str(tmp_path / "three.txt")])
    assert (tmp_path / "three.txt").read_bytes() == (tmp_path / "one.txt").read_bytes()
    assert len((tmp_path / "one.txt").read_text().splitlines()) == 70
    table = tmp_path / "table.tsv"
    table.write_text("source\ttarget\n")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert run([*command, "-i", str(table), "-o", str(tmp_path / "out.tsv")]) == 2
    assert "plain text only" in capsys.readouterr().err


def test_texts_are_embedded_in_order_whoever_does_it(make_encoder, tmp_path, monkeypatch, as_ranks):
    monkeypatch.setattr("regard.families.language.verbs.PART", 4)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"we are {'eating ' * (n % 4)}bread\n" for n in range(30)))
    command = ["embed", "-m", str(make_encoder()), "-i", str(text), "-o"]
    assert run([*command, str(tmp_path / "one.npy")]) == 0
    as_ranks([*command, str(tmp_path / "three.npy")])
    one, three = (np.load(tmp_path / name) for name in ("one.npy", "three.npy"))
    assert one.shape == (30, 16)
    np.testing.assert_allclose(three, one, atol=1e-6)
    assert not np.allclose(one[0], one[1])
