"""Throughput of `regard serve`: many clients at once against one client that asks the same sentences one after another.

python bench/serve_clients.py [MODEL] [--to es] [--clients 32] [--sentences 256] [--rounds 5] [--json FILE]

MODEL is a folder; without one, the model of `regard demo`. Real HTTP to a server in a process of its own; the clients
share the machine with it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch

from regard.cli.demo import learner_folder
from regard.data.synthetic.phrasebook import phrases

LONGEST = 12  # words


@dataclass(frozen=True)
class Result:
    """Sentences per second, medians over the rounds; the ratio is the median over neighbouring rounds."""

    clients: int
    sentences: int
    rounds: int
    one: float
    many: float
    ratio: float
    identical: bool
    load_before: float

    def __str__(self) -> str:
        same = "the same answers" if self.identical else "DIFFERENT ANSWERS"
        return (
            f"one after another {self.one:.1f} sentences/s, {self.clients} clients at once {self.many:.1f} "
            f"sentences/s: {self.ratio:.2f}x, {same}"
        )


def main(options: argparse.Namespace) -> None:
    pairs = phrases(options.to, part="test", count=options.sentences, seed=5, max_words=LONGEST)
    sources = [pair.source for pair in pairs]
    load = os.getloadavg()[0]
    print(
        f"python {platform.python_version()}; torch {torch.__version__}; {os.cpu_count()} processors; "
        f"load {load:.1f}; {len(sources)} sentences of up to {LONGEST} words"
    )
    with server(options.model) as port:
        result = asyncio.run(compare(port, sources, options, load))
    print(result)
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(result), indent=2) + "\n")


async def compare(port: int, sources: list[str], options: argparse.Namespace, load: float) -> Result:
    await translate(port, sources, options.to, clients=options.clients)  # warm up
    ones, manys, identical = [], [], True
    for _ in range(options.rounds):
        alone, expected = await translate(port, sources, options.to, clients=1)
        together, answers = await translate(port, sources, options.to, clients=options.clients)
        ones.append(len(sources) / alone)
        manys.append(len(sources) / together)
        identical &= answers == expected
        print(f"  {ones[-1]:7.1f} {manys[-1]:7.1f} sentences/s", flush=True)
    ratio = median(many / one for one, many in zip(ones, manys, strict=True))
    return Result(options.clients, len(sources), options.rounds, median(ones), median(manys), ratio, identical, load)


async def translate(port: int, sources: list[str], to: str, *, clients: int) -> tuple[float, dict[str, str]]:
    """The seconds until this many clients have all sentences translated, and the translations."""
    waiting, answers = iter(sources), dict[str, str]()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for source in waiting:
            answers[source] = await ask(reader, writer, source, to)
        writer.close()
        await writer.wait_closed()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return time.perf_counter() - began, answers


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: str, to: str) -> str:
    """Send one request on an open connection; a client library would take more time than the server."""
    body = json.dumps({"q": source, "source": "en", "target": to}).encode()
    lines = ("POST /translate HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json")
    writer.write("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body)
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    content = await reader.readexactly(int(re.findall(r"content-length: (\d+)", head)[0]))
    if " 200 " not in head.splitlines()[0]:
        raise SystemExit(f"the server answered {head.splitlines()[0]}: {content.decode()}")
    return json.loads(content)["translatedText"]


@contextmanager
def server(model: Path) -> Iterator[int]:
    """Start a server with one model; yields its port."""
    with tempfile.TemporaryDirectory() as runs:
        command = [sys.executable, "-m", "regard", "serve", "-m", str(model), "--port", "0", "--quiet", "--runs", runs]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            if (found := re.search(r":(\d+) ", line)) is None:
                raise SystemExit(f"no server: {line.strip()}")
            yield int(found[1])
        finally:
            process.terminate()
            process.communicate()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=learner_folder(), help="default: that of `regard demo`")
    parser.add_argument("--to", default="es", choices=("es", "pt"))
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    main(parser.parse_args())
