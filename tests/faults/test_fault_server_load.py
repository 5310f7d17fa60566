"""Rows 18 and 19: a thousand clients at once, slow clients, and clients that disconnect.

REGARD_FAULT_COUNT=200 gives the full counts. Figures are printed (`pytest -s`).
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import quantiles

import pytest
from server_process import ASKED, Answer, Server, ask, connected, head, read_answer, running, until

COUNT = int(os.environ.get("REGARD_FAULT_COUNT", "2"))
FULL = COUNT >= 200
AT_ONCE = max(150, 5 * COUNT)
LEAVING = max(60, 5 * COUNT // 2)
REQUESTS = max(100, 50 * COUNT)
QUEUE = 256 if FULL else 16
FREED = 2.0 if FULL else 20.0  # seconds; `make test` runs beside other tests
LONG = " ".join(["We are eating bread.", "She reads a book."] * 200)


@pytest.fixture(scope="module")
def server(translator_folder: Path) -> Iterator[Server]:
    with running(translator_folder, "--queue", str(QUEUE)) as server:
        asyncio.run(ask(server))  # loads the model
        yield server


def idle(server: Server, connections: int) -> bool:
    return server.connections() <= connections and server.waiting() == 0


# 18: many at once


def test_many_at_once_are_answered_or_told_when_to_come_back(server: Server) -> None:
    async def crowd() -> tuple[list[Answer], list[int]]:
        asking = asyncio.gather(*(ask(server, asked={**ASKED, "q": f"we are eating {i}"}) for i in range(AT_ONCE)))
        lines = []
        while not asking.done():
            lines.append(await asyncio.to_thread(server.waiting))
            await asyncio.sleep(0.05)
        return await asking, lines

    before = server.memory()
    answers, lines = asyncio.run(crowd())
    statuses = Counter(answer.status for answer in answers)
    assert set(statuses) <= {200, 503} and statuses[200] >= QUEUE
    assert max(lines) <= QUEUE
    for answer in answers:
        if answer.status == 503:
            assert int(answer.headers["retry-after"]) >= 1 and json.loads(answer.body)["error"]
        else:
            assert json.loads(answer.body)["translatedText"]
    cuts = quantiles([answer.seconds for answer in answers], n=100)
    served = quantiles([answer.seconds for answer in answers if answer.status == 200], n=100)
    print(
        f"\n{AT_ONCE} at once, queue {QUEUE}: {dict(statuses)}; p50 {cuts[49]:.2f} s, p99 {cuts[98]:.2f} s "
        f"(answered with 200: {served[49]:.2f}, {served[98]:.2f}); at most {max(lines)} waiting; "
        f"RSS {before / 1e6:.0f} -> {server.memory() / 1e6:.0f} MB, at most {server.memory('VmHWM') / 1e6:.0f} MB"
    )


# 19: slow clients


async def start_stream(server: Server, stack: AsyncExitStack) -> None:
    """A long streamed translation, read up to its first words."""
    body = json.dumps({"text": LONG, "to": "es", "beam": 4}).encode()
    reader, _ = await stack.enter_async_context(connected(server, head("/api/translate/stream", len(body)) + body))
    assert b" 200 " in await reader.readline()
    await reader.readuntil(b"data: ")


def test_slow_clients_keep_nobody_waiting(server: Server) -> None:
    body = json.dumps(ASKED).encode()

    async def drip(others_are_done: asyncio.Event) -> Answer:
        async with connected(server, head("/translate", len(body))) as (reader, writer):
            for place in range(len(body)):
                writer.write(body[place : place + 1])
                await asyncio.sleep(0.02)
                if place == len(body) // 2:
                    await others_are_done.wait()
            return await read_answer(reader)

    async def main() -> None:
        quick_ones = asyncio.Event()
        async with AsyncExitStack() as deaf:
            slow = [asyncio.create_task(drip(quick_ones)) for _ in range(40)]
            await asyncio.gather(*(start_stream(server, deaf) for _ in range(8)))  # clients that never read on
            assert {(await ask(server)).status for _ in range(3)} == {200}
            quick_ones.set()
            assert {answer.status for answer in await asyncio.gather(*slow)} <= {200, 503}

    before = server.connections()
    asyncio.run(main())
    asyncio.run(until(lambda: idle(server, before), FREED))


# 19: clients that disconnect


async def leave_a_stream(server: Server) -> None:
    async with AsyncExitStack() as stack:
        await start_stream(server, stack)


async def leave_the_line(server: Server) -> None:
    await send_and_leave(server, "/translate", json.dumps({**ASKED, "q": LONG}))


async def leave_a_page(server: Server) -> None:
    await send_and_leave(server, "/translate", json.dumps({**ASKED, "q": f"<p>{LONG}</p>", "format": "html"}))


async def leave_a_document(server: Server) -> None:
    fields = {'"source"': "en", '"target"': "es", '"file"; filename="a.txt"': LONG}
    parts = [f"--x\r\nContent-Disposition: form-data; name={name}\r\n\r\n{fields[name]}\r\n" for name in fields]
    await send_and_leave(server, "/translate_file", "".join([*parts, "--x--\r\n"]), "multipart/form-data; boundary=x")


async def send_and_leave(server: Server, path: str, body: str, kind: str = "application/json") -> None:
    async with connected(server, head(path, len(body), kind) + body.encode()):
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("leave", [leave_a_stream, leave_the_line, leave_a_document, leave_a_page])
def test_who_leaves_frees_a_slot(server: Server, leave) -> None:
    async def main() -> tuple[float, Answer]:
        for _ in range(LEAVING // 10):
            await asyncio.gather(*(leave(server) for _ in range(10)))
        freed = await until(lambda: idle(server, before), FREED)
        return freed, await ask(server)

    before = server.connections()
    freed, answer = asyncio.run(main())
    assert answer.status == 200
    print(f"\n{LEAVING} x {leave.__name__}: free again after {freed:.2f} s, next answer in {answer.seconds:.2f} s")


# 19: memory


def test_memory_does_not_grow_with_requests(server: Server) -> None:
    async def client(numbers: Iterator[int]) -> None:
        for number in numbers:
            text = f"we are eating {number}"
            path, asked = (
                ("/api/translate", {"text": text, "to": "es", "n_best": 2}),
                ("/translate", ASKED | {"q": f"<b>we</b> {text}", "format": "html"}),
                ("/v1/completions", {"model": f"{name}:es", "prompt": text}),
                ("/translate", ASKED | {"q": text}),
            )[number % 4]
            statuses[(await ask(server, path, asked)).status] += 1

    async def clients(numbers: Iterator[int]) -> int:
        await asyncio.gather(*(client(numbers) for _ in range(16)))
        return server.memory()

    with server.client() as asking:
        name = asking.get("/api/models").json()["default"]
    statuses: Counter[int] = Counter()
    before = asyncio.run(clients(iter(range(REQUESTS // 5))))  # fills buffers and caches
    after = asyncio.run(clients(iter(range(REQUESTS))))
    print(
        f"\n{REQUESTS} requests: RSS {before / 1e6:.1f} -> {after / 1e6:.1f} MB ({100 * (after / before - 1):+.1f} %)"
    )
    assert set(statuses) <= {200, 503} and statuses[200] > statuses.total() / 2
    assert after / before < (1.05 if FULL else 1.2)
