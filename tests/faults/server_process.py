"""`regard serve` in a separate process, with well-behaved and misbehaving clients."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

import forked

REGARD = (sys.executable, "-m", "regard")
ASKED = {"q": "we are eating bread", "source": "en", "target": "es"}


@dataclass(frozen=True)
class Server:
    """A running server process."""

    process: subprocess.Popen[str] | BaseProcess
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, trust_env=False)

    def memory(self, which: str = "VmRSS") -> int:
        """The bytes in memory now, or the peak (VmHWM)."""
        found = re.search(rf"{which}:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        assert found
        return 1024 * int(found[1])

    def connections(self) -> int:
        """The number of open sockets of the process."""
        count = 0
        for each in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed in the meantime
                count += str(each.readlink()).startswith("socket:")
        return count

    def waiting(self) -> int:
        """The number of queued requests, according to /metrics."""
        text = httpx.get(f"{self.url}/metrics", trust_env=False, timeout=30).text
        return int(float(re.findall(r"^regard_queue_jobs (\S+)", text, re.MULTILINE)[0]))


@contextmanager
def running(folder: Path, *options: str, program: Sequence[str] = REGARD) -> Iterator[Server]:
    """Start a server with one model; the process is ended in any case."""
    with prepared(folder, *options) as (arguments, log):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with log.open("w") as errors:
            command = [*program, *arguments]
            process = subprocess.Popen(command, stderr=errors, env=environment, text=True, start_new_session=True)
        try:
            yield Server(process, listening_port(log, lambda: process.poll() is None), log)
        finally:
            process.kill()
            process.wait()


@contextmanager
def running_forked(folder: Path, *options: str) -> Iterator[Server]:
    """The same in a forked process, for tests that need neither its signals nor the memory of a fresh one."""
    with prepared(folder, *options) as (arguments, log):
        process = forked.start_regard(arguments, log)
        try:
            yield Server(process, listening_port(log, process.is_alive), log)
        finally:
            process.kill()
            process.join()


@contextmanager
def prepared(folder: Path, *options: str) -> Iterator[tuple[list[str], Path]]:
    """The arguments of a server, and the file of its messages."""
    with TemporaryDirectory(prefix="regard-test-") as place:
        arguments = ["serve", "-m", str(folder), "--port", "0", "--quiet", "--runs", f"{place}/runs", *options]
        yield arguments, Path(place) / "log"


def listening_port(log: Path, alive: Callable[[], bool]) -> int:
    """Wait until a server says where it listens."""
    while not log.exists() or (found := re.search(r"at http://[\d.]+:(\d+)", log.read_text())) is None:
        assert alive(), log.read_text() if log.exists() else ""
        time.sleep(0.05)
    return int(found[1])


@dataclass
class Answer:
    """The response to one request, and its time."""

    status: int = 0  # 0: no response
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0


def head(path: str, length: int, kind: str = "application/json") -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Type: {kind}", f"Content-Length: {length}")
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode()


@asynccontextmanager
async def connected(server: Server, content: bytes) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection on which `content` has been sent; it is closed at the end of the block."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(content)
        await writer.drain()
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def ask(server: Server, path: str = "/translate", asked: object = ASKED) -> Answer:
    """Send one request on a new connection, with a minimal client, since it shares the server's cores."""
    began, body = time.monotonic(), json.dumps(asked).encode()
    async with connected(server, head(path, len(body)) + body) as (reader, _):
        answer = await read_answer(reader)
    answer.seconds = time.monotonic() - began
    return answer


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    top, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
    if not top:
        return Answer()
    first, *lines = top.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return Answer(int(first.split()[1]), headers, body)


async def until(reached: Callable[[], bool], seconds: float) -> float:
    """Wait for a condition, checked in a thread; returns the time that it took. Fails if it does not become true."""
    began = time.monotonic()
    while not await asyncio.to_thread(reached):
        assert time.monotonic() - began < seconds, "not reached in time"
        await asyncio.sleep(0.05)
    return time.monotonic() - began
