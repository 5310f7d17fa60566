"""Starting and stopping: signals while requests are in flight, a port in use, no network (row 22)."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import (
    ASKED,
    REGARD,
    Answer,
    Server,
    ask,
    connected,
    head,
    read_answer,
    running,
    running_forked,
    until,
)

LONG = " ".join(["We are eating bread.", "She reads a book."] * 200)
ALONE = """
import sys

HERE = ("127.0.0.1", "localhost", "::1", None)

def watch(event, arguments):
    place = {"socket.connect": 1, "socket.getaddrinfo": 0, "socket.gethostbyname": 0}.get(event)
    if place is None or isinstance(arguments[place], str) and event == "socket.connect":  # a path of this machine
        return
    host = arguments[place][0] if event == "socket.connect" else arguments[place]
    if host not in HERE:
        raise OSError(f"NETWORK: {host}")

sys.addaudithook(watch)
from regard.cli.main import main
main()
"""


@pytest.fixture
def server(translator_folder: Path) -> Iterator[Server]:
    with running(translator_folder, "--grace", "60") as server:  # beside other tests, 8 s are too few for all answers
        asyncio.run(ask(server))
        yield server


async def stopped_in_flight(server: Server, *signals: signal.Signals) -> list[Answer | BaseException]:
    """The responses to requests that are being computed, or still being sent, when the signals arrive."""
    body = json.dumps(ASKED).encode()
    async with connected(server, head("/translate", len(body)) + body[:10]) as (reader, writer):
        asking = [asyncio.create_task(ask(server, asked={**ASKED, "q": LONG})) for _ in range(3)]
        await until(lambda: server.waiting() > 0, 20)
        for number, each in enumerate(signals):
            if number:
                await asyncio.sleep(0.5)
            server.process.send_signal(each)
        await until(lambda: refuses(server), 20)
        writer.write(body[10:])
        return await asyncio.gather(*asking, read_answer(reader), return_exceptions=True)


def refuses(server: Server) -> bool:
    try:
        socket.create_connection(("127.0.0.1", server.port), timeout=5).close()
    except ConnectionError:
        return True
    return False


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_what_was_accepted_is_answered_before_the_server_ends(
    server: Server, number: signal.Signals, code: int
) -> None:
    answers = asyncio.run(stopped_in_flight(server, number))
    assert all(isinstance(answer, Answer) and answer.status == 200 for answer in answers), answers
    assert server.process.wait(60) == code
    assert "Traceback" not in server.log.read_text()


def test_a_second_interrupt_ends_at_once(server: Server) -> None:
    began = time.monotonic()
    asyncio.run(stopped_in_flight(server, signal.SIGINT, signal.SIGINT))
    assert server.process.wait(60) == 130
    assert time.monotonic() - began < 30  # less than the 60 s limit of a request
    assert "Traceback" not in server.log.read_text()


def test_a_taken_port_is_told_in_one_line(translator_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [*REGARD, "serve", "-m", str(translator_folder), "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert port in line and "--port" in line


def sent_document(server: Server) -> str:
    """The address of a translated document."""
    with server.client() as client:
        sent = {"data": {"source": "en", "target": "es"}, "files": {"file": ("a.txt", b"we eat")}}
        return str(client.post("/translate_file", **sent).json()["translatedFileUrl"])


def test_documents_left_by_a_killed_server_are_removed_by_the_next(
    translator_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with running_forked(translator_folder) as alive:
        address = sent_document(alive)
        with running_forked(translator_folder) as killed:
            sent_document(killed)
        assert len(list(tmp_path.rglob("document.txt"))) == 2
        with running_forked(translator_folder), alive.client() as client:
            assert len(list(tmp_path.rglob("document.txt"))) == 1
            assert client.get(address).status_code == 200


# 22: no network at all


def test_a_server_needs_no_network(translator_folder: Path) -> None:
    with running(translator_folder, program=(sys.executable, "-c", ALONE)) as server, server.client() as client:
        for asked in (ASKED, {**ASKED, "source": "auto"}, {**ASKED, "format": "html"}):
            assert client.post("/translate", json=asked).json()["translatedText"]
        assert client.post("/api/look", json={"text": "we eat", "to": "es"}).status_code == 200
        assert client.get("/").status_code == client.get("/lens/main.js").status_code == 200
        assert "NETWORK" not in server.log.read_text()
