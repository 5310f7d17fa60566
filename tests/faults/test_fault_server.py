"""Rows 16, 17 and 20: enormous, hostile and odd requests.

REGARD_FAULT_COUNT=200 gives the full million tokens.
"""

import gzip
import io
import json
import os
import socket
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

import httpx
import pytest
from server_process import ASKED, Server, head, running_forked
from test_fault_text_files import BODIES, LAUGHS, QUADRATIC

from regard.data.synthetic.phrasebook import phrases

COUNT = int(os.environ.get("REGARD_FAULT_COUNT", "1"))
WORDS = 5_000 * COUNT
TRAINING = {"name": "bomb", "recipe": "pairs-transformer", "source": "en", "target": "de"}


@pytest.fixture(scope="module")
def server(translator_folder: Path) -> Iterator[Server]:
    with running_forked(translator_folder) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        client.post("/translate", json=ASKED)  # loads the model
        yield client


# 16: a million tokens


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    """This many words in sentences, of which a few hundred differ."""
    pairs = phrases("es", part="test", count=200, seed=4, max_words=8, min_words=3)
    different = [f"{pair.source[0].upper()}{pair.source[1:].rstrip('?')}." for pair in pairs]
    lengths = [len(each.split()) for each in different]
    return list(islice(cycle(different), WORDS * len(different) // sum(lengths)))


def test_a_million_tokens_are_refused_by_a_server_for_strangers(client: httpx.Client) -> None:
    for path, asked in (
        ("/translate", ASKED | {"q": "bread " * 1_000_000}),
        ("/api/translate", {"text": "bread " * 1_000_000, "to": "es"}),
        ("/v1/completions", {"model": "run:es", "prompt": "bread " * 1_000_000}),
    ):
        answer = client.post(path, json=asked)
        assert answer.status_code == 413 and "bytes" in str(answer.json()["error"])
    answer = client.post("/translate", json=ASKED | {"q": "x" * 10_001})
    assert answer.status_code == 400 and "10001 characters" in answer.json()["error"]


@pytest.mark.parametrize("gap", ["\n", " "], ids=["lines", "one-line"])
def test_a_million_tokens_are_translated_whole_by_a_server_that_takes_them(
    roomy, monkeypatch, sentences: list[str], gap: str
) -> None:
    translator = roomy.registry.translator(roomy.registry.find().id)
    monkeypatch.setattr(translator, "settings", translator.settings.replace(beam=1, max_length=4))
    different = sorted({*sentences})
    expected = dict(zip(different, translator.translate(different, to="es"), strict=True))
    answer = roomy.client.post("/translate", json=ASKED | {"q": gap.join(sentences)}, timeout=None).json()
    assert answer["translatedText"] == gap.join(expected[sentence].text for sentence in sentences)
    assert answer.get("truncated", False) == any(each.truncated for each in expected.values())


def test_a_sentence_too_long_for_the_model_is_refused_in_words(roomy) -> None:
    answer = roomy.client.post("/translate", json=ASKED | {"q": "a b c d " * 250_000})
    assert answer.status_code == 400 and "tokens" in answer.json()["error"]


def test_what_the_length_limit_cut_is_told_by_every_api(roomy, monkeypatch) -> None:
    name = roomy.registry.find().id
    translator = roomy.registry.translator(name)
    monkeypatch.setattr(translator, "settings", translator.settings.replace(max_length=2))
    client, text = roomy.client, "we are eating bread and reading a book"
    assert client.post("/translate", json=ASKED | {"q": text}).json()["truncated"] is True
    assert client.post("/translate", json=ASKED | {"q": [text, ""]}).json()["truncated"] == [True, False]
    assert client.post("/translate", json=ASKED | {"q": f"<p>{text}", "format": "html"}).json()["truncated"] is True
    document = {"file": ("a.txt", text.encode())}
    sent = client.post("/translate_file", data={"source": "en", "target": "es"}, files=document)
    assert sent.json()["truncated"] is True
    asked = {"text": text, "to": "es"}
    assert client.post("/api/translate", json=asked).json()["translations"][0]["truncated"] is True
    last = client.post("/api/translate/stream", json=asked).text.strip().splitlines()[-1]
    told = json.loads(last.removeprefix("data: "))
    assert (told["done"], told["truncated"], told["answer"]["translations"][0]["truncated"]) == (True, True, True)
    completed = client.post("/v1/completions", json={"model": f"{name}:es", "prompt": text}).json()
    assert completed["choices"][0]["finish_reason"] == "length"


# 17: decompression bombs


def bomb(suffix: str, doctype: str, entity: str) -> bytes:
    return (doctype.format(root="tmx", secret="/etc/hostname") + BODIES[suffix].format(e=entity)).encode()


@pytest.mark.parametrize("suffix", ["tmx", "xlf", "tmx.gz"])
@pytest.mark.parametrize(
    ("doctype", "entity"), [(LAUGHS, "&l11;"), (QUADRATIC, "&a;" * 20_000)], ids=["billion-laughs", "quadratic"]
)
def test_entity_bombs_in_uploads_are_refused(
    server: Server, client: httpx.Client, suffix: str, doctype: str, entity: str
) -> None:
    content = bomb(suffix.removesuffix(".gz"), doctype, entity)
    content = gzip.compress(content) if suffix.endswith(".gz") else content
    before, began = server.memory("VmHWM"), time.monotonic()
    trained = client.post("/api/train", data=TRAINING, files={"files": (f"a.{suffix}", content)})
    translated = client.post(
        "/translate_file", data={"source": "en", "target": "es"}, files={"file": (f"a.{suffix}", content)}
    )
    seconds, grown = time.monotonic() - began, server.memory("VmHWM") - before
    assert trained.status_code == translated.status_code == 400, (trained.text, translated.text)
    assert "entit" in trained.json()["error"]
    assert ("not supported" if suffix == "tmx.gz" else "entit") in translated.json()["error"]
    assert grown < 200e6
    print(f"\n{suffix}: both refused after {seconds:.2f} s, RSS + {grown / 1e6:.1f} MB")


def test_a_gzip_bomb_is_refused(server: Server, client: httpx.Client) -> None:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as file:
        for _ in range(300):
            file.write(bytes(2**20))
    before, began = server.memory("VmHWM"), time.monotonic()
    answer = client.post("/api/train", data=TRAINING, files={"files": ("a.tsv.gz", packed.getvalue())})
    seconds, grown = time.monotonic() - began, server.memory("VmHWM") - before
    assert answer.status_code == 413 and "unpacked" in answer.json()["error"]
    assert grown < 200e6
    print(
        f"\n300 MiB in {len(packed.getvalue()) / 1e6:.1f} MB: refused after {seconds:.2f} s, RSS + {grown / 1e6:.1f} MB"
    )


# 20: malformed requests


def raw(server: Server, content: bytes) -> int:
    """The status of the response to exactly these bytes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(content)
        return int(connection.makefile("rb").readline().split()[1])


@pytest.mark.parametrize("header", ["Host: [", "Host: [::1", "Host: 127.0.0.1\r\nOrigin: http://["])
def test_odd_addresses_are_refused(server: Server, header: str) -> None:
    content = f"POST /translate HTTP/1.1\r\n{header}\r\nContent-Length: 2\r\n\r\n{{}}".encode()
    assert raw(server, content) == 403


@pytest.mark.parametrize(
    "body",
    [
        '{"q": ' + "9" * 5000 + "}",
        '{"q": "a", "source": "en", "target": "\\ud800"}',
        '{"q": "a", "source": "\\ud800", "target": "es"}',
        '{"q": "a", "source": "en", "target": "es", "format": "\\ud800"}',
        '{"q": {"a": 1}, "source": "en", "target": "es"}',
        "[" * 100_000,
        '{"q": "a", "source": "en", "target": "es", "alternatives": 1e999}',
        "\\xff\\xfe",
    ],
)
@pytest.mark.parametrize("path", ["/translate", "/api/translate", "/v1/completions", "/api/look"])
def test_odd_bodies_are_refused(server: Server, path: str, body: str) -> None:
    content = body.encode()
    assert raw(server, head(path, len(content)) + content) in (400, 404)
