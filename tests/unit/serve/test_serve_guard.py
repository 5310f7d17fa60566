"""The request guard between the network and the routes."""

import asyncio
import json
import logging
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest
import uvicorn

from regard.errors import ConfigError
from regard.serve.http import connections, guard
from regard.serve.http.guard import FREE_GUESSES, LONGEST_DELAY, ApiKeys
from regard.serve.http.responses import TooManyRequestsError
from regard.serve.settings import ServeSettings

ASKED = {"q": "we eat", "source": "en", "target": "es"}


@pytest.mark.parametrize("path", ["/", "/health", "/lens/main.js", "/api/models", "/v1/models", "/nothing", "/metrics"])
def test_every_answer_has_the_policy(served, path):
    answer = served.client.get(path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "path", ["/nothing", "/lens/../app.py", "/lens/%2e%2e/app.py", "/lens/..%2fapp.py", "/lens//etc/passwd"]
)
def test_no_path_leads_out_of_the_page(served, path):
    with socket.create_connection(urlsplit(served.url).netloc.split(":")) as raw:
        raw.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: raw.recv(65536), b"")).decode()
    assert " 404 " in answer.splitlines()[0] and "import" not in answer and "root:" not in answer


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:80"])
def test_other_names_for_this_machine_are_refused(served, host):
    answer = served.client.get("/api/models", headers={"host": host})
    assert answer.status_code == 403 and "error" in answer.json()


@pytest.mark.parametrize(
    "headers", [{"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}]
)
def test_pages_of_other_sites_may_not_ask(served, headers):
    assert served.client.post("/translate", json=ASKED, headers=headers).status_code == 403
    assert served.client.post("/translate", json=ASKED, headers={"origin": served.url}).status_code == 200


def test_a_large_body_is_refused_before_it_is_read(served):
    body = b'{"q": "' + b"x" * 10_000_000 + b'"}'
    for path in ("/translate", "/api/translate", "/v1/completions"):
        answer = served.client.post(path, content=body)
        assert answer.status_code == 413 and answer.json()["error"]


@pytest.mark.parametrize("path", ["/translate", "/api/translate", "/v1/completions"])
def test_a_body_that_grows_without_saying_so_is_refused(served, path):
    def chunks():
        for _ in range(100):
            yield b"x" * 65_536

    answer = served.client.post(path, content=chunks(), headers={"content-type": "application/json"})
    assert answer.status_code == 413


def test_limits_can_be_set(locked):
    key = {"authorization": "Bearer sesame"}
    assert locked.client.post("/translate", json={**ASKED, "q": "x" * 201}, headers=key).status_code == 400
    assert locked.client.post("/translate", json={**ASKED, "q": ["x"] * 4}, headers=key).status_code == 400
    assert locked.client.post("/translate", content=b"x" * 20_001, headers=key).status_code == 413


def test_keys_guard_everything_but_the_page(locked):
    for path in ("/", "/health", "/lens/main.js", "/languages"):
        assert locked.client.get(path).status_code == 200
    for path in ("/api/models", "/v1/models", "/metrics", "/api/train", "/api/recipes"):
        assert locked.client.get(path).status_code == 401
        assert locked.client.get(path, headers={"authorization": "Basic sesame"}).status_code == 401
        assert locked.client.get(path, headers={"authorization": "Bearer sesame"}).status_code == 200


def test_metrics_count(served):
    def count() -> float:
        lines = served.client.get("/metrics").text.splitlines()
        wanted = 'regard_requests_total{route="/translate",status="200"}'
        return next((float(line.split()[-1]) for line in lines if line.startswith(wanted)), 0.0)

    before = count()
    served.client.post("/translate", json=ASKED)
    assert count() == before + 1


def test_the_access_log_is_json(served, caplog):
    with caplog.at_level(logging.INFO, logger="regard.access"):
        served.client.get("/health?api_key=secret")
        while not caplog.records:
            time.sleep(0.01)
    line = json.loads(caplog.records[-1].message)
    assert (line["method"], line["path"], line["status"]) == ("GET", "/health", 200)
    assert "secret" not in caplog.text and line["bytes"] == 15


def test_wrong_methods_and_routes_are_told_in_the_apis_shape(served):
    assert served.client.get("/translate").json()["error"]
    assert set(served.client.post("/v1/nothing").json()["error"]) == {"message", "type", "param", "code"}
    answer = served.client.post("/v1/completions", content=b"{", headers={"content-type": "application/json"})
    assert answer.status_code == 400 and "JSON" in answer.json()["error"]["message"]


# Connections, wrong keys and rates


def test_a_head_that_never_ends_ends_the_connection(monkeypatch):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    config = uvicorn.Config(app, log_config=None, http=connections.TimedConnection, lifespan="off")
    server = uvicorn.Server(config)
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        whole = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
        for sent in (b"", whole[:10], whole + whole[:10]):
            with socket.create_connection(listening.getsockname(), timeout=20) as client:
                client.sendall(sent)
                told = b"".join(iter(lambda client=client: client.recv(65536), b""))  # until the server closes it
            assert told.count(b" 200 ") == sent.count(whole)
    finally:
        server.should_exit = True
        thread.join()


def test_wrong_keys_are_answered_late_and_at_last_not_looked_at(monkeypatch):
    pauses = list[float]()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def guesses() -> None:
        keys = ApiKeys(["sesame"])
        for _ in range(20):
            assert not await keys.accept("guess", asked)
        assert await keys.accept("sesame", asked)
        assert not await keys.accept("", asked)  # no guess

    async def many_at_once() -> None:
        keys = ApiKeys(["sesame"])
        waiting = [asyncio.create_task(keys.accept("guess", asked)) for _ in range(30)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequestsError):
            await keys.accept("sesame", asked)
        assert await keys.accept("sesame", {**asked, "client": ("192.0.2.8", 1)})
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert await keys.accept("sesame", asked)

    asked = {"client": ("192.0.2.7", 1), "method": "POST"}
    asyncio.run(many_at_once())
    monkeypatch.setattr(asyncio, "sleep", pause)
    asyncio.run(guesses())
    assert pauses[:3] == [0.25, 0.5, 1.0] and pauses[-1] == LONGEST_DELAY and len(pauses) == 20 - FREE_GUESSES


def test_counting_wrong_keys_takes_bounded_memory(monkeypatch):
    async def guess() -> None:
        for number in range(50):
            await keys.accept("guess", {"client": (f"2001:db8:{number:x}::1", 1), "method": "POST"})
            await keys.accept("guess", {"client": (f"2001:db8:{number:x}::2", 1), "method": "POST"})

    keys = ApiKeys(["sesame"])
    monkeypatch.setattr(guard, "MOST_CLIENTS", 10)
    asyncio.run(guess())
    assert len(keys._guesses) == 10 and {each.count for each in keys._guesses.values()} == {2}


def test_a_key_may_have_a_rate(start_server, translator_folder):
    with pytest.raises(ConfigError, match="--api-key with --per-key"):
        ServeSettings(per_key=3)
    client = start_server([translator_folder], api_keys=["one", "two"], per_key=3).client
    keys = [{"authorization": f"Bearer {key}"} for key in ("one", "two")]
    statuses = [client.post("/translate", json=ASKED, headers=keys[0]).status_code for _ in range(4)]
    assert statuses == [200, 200, 200, 429]
    answer = client.post("/api/translate", json={"text": "we eat", "to": "es"}, headers=keys[0])
    assert answer.status_code == 429 and 1 <= int(answer.headers["retry-after"]) <= 20
    assert client.get("/api/models", headers=keys[0]).status_code == 200
    assert client.post("/translate", json=ASKED, headers=keys[1]).status_code == 200


def test_files_of_the_page_are_counted_as_such(served):
    served.client.get("/lens/main.js")
    while 'route="static files",status="200"' not in served.client.get("/metrics").text:  # counted after the answer
        time.sleep(0.01)
