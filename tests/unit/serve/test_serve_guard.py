"""The request guard between the network and the routes."""

import json
import logging
import socket
import time
from urllib.parse import urlsplit

import pytest

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
