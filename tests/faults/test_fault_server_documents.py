"""Row 33: documents that are small to send and much work to read, and a server that ends while it reads them."""

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from server_process import ASKED, Server, ask, connected, head, running, until

from hostile_documents import TEXTS, many_paragraphs

LARGEST = 1.5 * 2**30  # bytes of a server and its processes
SLOW = TEXTS["brackets.md"](400_000)  # minutes of computing if nothing ends it
FORM = {"source": "en", "target": "es"}


@pytest.fixture
def server(translator_folder: Path) -> Iterator[Server]:
    with running(translator_folder) as server:
        asyncio.run(ask(server))
        yield server


def readers(server: Server) -> list[int]:
    """The processes in which the server reads documents."""
    tasks = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    return [int(number) for task in tasks for number in task.read_text().split()]


def peak(server: Server) -> int:
    statuses = [Path(f"/proc/{number}/status") for number in readers(server)]
    lines = [line for status in statuses for line in status.read_text().splitlines() if line.startswith("VmHWM")]
    return server.memory("VmHWM") + sum(1024 * int(line.split()[1]) for line in lines)


def send(server: Server, name: str, content: bytes) -> httpx.Response:
    with server.client() as client:
        return client.post("/translate_file", data=FORM, files={"file": (name, content)})


def outcome(server: Server, name: str, content: bytes) -> dict[str, str]:
    """What is said of a document in the end."""
    answer = send(server, name, content)
    while "job" in answer.json():
        time.sleep(0.2)
        answer = httpx.get(answer.json()["job"], trust_env=False, timeout=60)
    return dict(answer.json())


async def leave_while_it_is_read(server: Server) -> None:
    fields = {'"source"': "en", '"target"': "es", '"file"; filename="a.md"': SLOW}
    parts = [f"--x\r\nContent-Disposition: form-data; name={name}\r\n\r\n{fields[name]}\r\n" for name in fields]
    body = "".join([*parts, "--x--\r\n"]).encode()
    async with connected(server, head("/translate_file", len(body), "multipart/form-data; boundary=x") + body):
        await until(lambda: bool(readers(server)), 60)
        assert (await ask(server)).status == 200


def test_millions_of_paragraphs_are_refused_by_their_count(server: Server) -> None:
    answer = send(server, "a.docx", many_paragraphs())
    assert answer.status_code == 400 and answer.json()["error"].startswith("a.docx: has more than 1,048,576 tags")
    assert peak(server) < LARGEST
    print(f"\n1.5 million paragraphs: {peak(server) / 2**20:.0f} MiB at the peak")


def test_what_takes_more_than_its_time_is_refused(translator_folder: Path) -> None:
    with running(translator_folder, "--seconds", "3") as server:
        told = outcome(server, "a.md", SLOW.encode())
        assert told["error"] == "a.md: takes longer than 3 s to read; send it in parts"


def test_a_client_that_leaves_ends_the_reading(server: Server) -> None:
    asyncio.run(leave_while_it_is_read(server))
    asyncio.run(until(lambda: not readers(server), 20))
    assert asyncio.run(ask(server, asked=ASKED)).status == 200


def test_a_server_ends_in_time_while_it_reads(server: Server) -> None:
    reading = asyncio.run(stop_while_it_is_read(server))
    began = time.monotonic()
    code = server.process.wait(60)
    print(f"\nended {time.monotonic() - began:.1f} s after SIGTERM")
    assert code == 143
    assert not any(Path(f"/proc/{number}").exists() for number in reading)
    assert "Traceback" not in server.log.read_text()


async def stop_while_it_is_read(server: Server) -> list[int]:
    """Tell the server to stop while a document is read and its client waits."""
    asking = asyncio.create_task(asyncio.to_thread(_try_to_send, server))
    await until(lambda: bool(readers(server)), 60)
    await asyncio.sleep(0.5)
    reading = readers(server)
    server.process.send_signal(signal.SIGTERM)  # type: ignore[union-attr]
    await asking
    return reading


def _try_to_send(server: Server) -> None:
    with suppress(httpx.TransportError):
        answer = send(server, "a.md", SLOW.encode())
        assert answer.status_code in (200, 503), answer.text  # 200: it was read within the time of grace
