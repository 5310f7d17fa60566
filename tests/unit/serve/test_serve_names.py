"""Host names, origins and proxies of a server, and the requests that it refuses."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from regard.errors import ConfigError
from regard.serve.app import create_app
from regard.serve.http.guard import TrustedProxies
from regard.serve.jobs.runner import TrainingJobs
from regard.serve.models.registry import ModelRegistry
from regard.serve.settings import ServeSettings

NAME = "translate.example.org"
ASKED = {"q": "hello", "source": "en", "target": "en"}  # is returned unchanged without a model
Start = Callable[..., TestClient]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A server without models: `start(host=…)`; requests come from `client` and go to the address `to`."""
    with ExitStack() as stack:

        def begin(*, client: str = "192.0.2.9", to: str = "http://127.0.0.1:5000", **settings: object) -> TestClient:
            app = create_app(ModelRegistry(), TrainingJobs(tmp_path / "runs"), ServeSettings.parse(settings))
            return stack.enter_context(TestClient(app, base_url=to, client=(client, 4321)))

        yield begin


def status(client: TestClient, **headers: str) -> int:
    found = client.post(
        "/translate", json=ASKED, headers={key.replace("_", "-"): value for key, value in headers.items()}
    )
    assert found.status_code in (200, 403), found.text
    return found.status_code


# Hosts


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:5000", "[::1]:5000", "LOCALHOST"])
def test_the_machine_itself_is_always_answered(start: Start, host: str) -> None:
    for settings in ({}, {"host": "0.0.0.0"}, {"allowed_hosts": [NAME]}):
        assert status(start(**settings), host=host) == 200


@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0", "::", "192.0.2.1"])
@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:5000", "127.0.0.1.evil.example", "evil.example@127.0.0.1",
        "127.0.0.1@evil.example",
        "127.0.0.1/evil", "127.0.0.1#", "", " ", "203.0.113.7", f"not-{NAME}", f"{NAME}.evil.example", "[", "[::1",
    ],
)  # fmt: skip
def test_other_names_are_refused_wherever_the_server_listens(start: Start, bind: str, host: str) -> None:
    client = start(host=bind, allowed_hosts=[NAME])
    assert status(client, host=host) == 403
    assert client.get("/", headers={"host": host}).status_code == 403


def test_names_that_were_given_are_answered(start: Start) -> None:
    client = start(allowed_hosts=[NAME, "*.example.net", "192.0.2.7", "[2001:db8::1]"])
    for host in (NAME, f"{NAME}:8443", NAME.upper(), "a.example.net", "192.0.2.7", "[2001:db8::1]:80"):
        assert status(client, host=host) == 200, host
    assert status(client, host="example.net") == 403


def test_a_server_for_others_answers_to_the_address_it_was_reached_at(start: Start) -> None:
    assert status(start(host="0.0.0.0", to="http://192.0.2.1:5000")) == 200
    assert status(start(host="0.0.0.0", to="http://192.0.2.1:5000"), host="192.0.2.2") == 403
    assert status(start(to="http://192.0.2.1:5000")) == 403  # a loopback server cannot be reached by this address


def test_any_name_needs_a_key(start: Start) -> None:
    for setting in ("allowed_hosts", "origins"):
        with pytest.raises(ConfigError, match="key"):
            ServeSettings.parse({setting: ["*"]})
    client = start(allowed_hosts=["*"], api_keys=["sesame"])
    assert client.get("/health", headers={"host": "anything.example"}).status_code == 200


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"allowed_hosts": ["https://example.org"]}, "without scheme"),
        ({"allowed_hosts": ["a b"]}, "name of a host"),
        ({"origins": ["example.org"]}, "https://example.org"),
        ({"origins": ["https://example.org/path"]}, "https://example.org"),
        ({"trusted_proxies": ["proxy"]}, "127.0.0.1"),
        ({"trusted_proxies": ["10.0.0.1/8"]}, "10.0.0.0/8"),
    ],
)
def test_what_is_no_name_is_told(settings: dict[str, list[str]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ServeSettings.parse(settings)


# Origins


def test_a_page_behind_a_proxy_with_tls_may_ask(start: Start) -> None:
    client = start(allowed_hosts=[NAME])
    for origin in (f"https://{NAME}", f"http://{NAME}"):  # the scheme that the browser used is unknown
        assert status(client, host=NAME, origin=origin, sec_fetch_site="same-origin") == 200
    for origin in ("https://evil.example", f"https://{NAME}:444", f"https://{NAME}.evil.example", "null", ""):
        assert status(client, host=NAME, origin=origin) == 403, origin


def test_pages_of_named_sites_may_ask_and_read(start: Start) -> None:
    client = start(origins=["https://app.example.org"])
    asked = {"origin": "https://app.example.org", "sec-fetch-site": "cross-site"}
    answer = client.post("/translate", json=ASKED, headers=asked)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example.org"
    assert answer.headers["vary"] == "Origin"
    assert "access-control-allow-origin" not in client.post("/translate", json=ASKED).headers
    other = client.post("/translate", json=ASKED, headers={"origin": "https://evil.example"})
    assert other.status_code == 403 and "access-control-allow-origin" not in other.headers
    assert client.post("/translate", json={}, headers=asked).headers["access-control-allow-origin"]  # errors too


def test_browsers_that_ask_first_are_answered(start: Start) -> None:
    client = start(origins=["https://app.example.org"], api_keys=["sesame"])
    asked = {"origin": "https://app.example.org", "access-control-request-method": "POST"}
    answer = client.options("/v1/chat/completions", headers=asked)
    assert answer.status_code == 204 and "authorization" in answer.headers["access-control-allow-headers"]
    assert client.options("/translate", headers={**asked, "origin": "https://evil.example"}).status_code == 403
    assert client.options("/translate", headers={**asked, "host": "evil.example"}).status_code == 403


# Trusted proxies

FORWARDED = {
    "x-forwarded-host": NAME, "x-forwarded-proto": "https", "x-forwarded-for": "198.51.100.4, 192.0.2.9",
}  # fmt: skip


def unwrapped(proxies: TrustedProxies, client: str, **headers: str) -> tuple[str, str, str]:
    """The scheme, host and client of a request as the server sees them."""
    raw = [(key.replace("_", "-").encode(), value.encode()) for key, value in {"host": "inner", **headers}.items()]
    scope = proxies.unwrap({"type": "http", "scheme": "http", "client": (client, 1), "headers": raw})
    return scope["scheme"], dict(scope["headers"])[b"host"].decode(), scope["client"][0]


def test_proxies_are_believed_if_they_were_named() -> None:
    told = {
        "x_forwarded_host": "outer",
        "x_forwarded_proto": "https",
        "x_forwarded_for": "forged, 198.51.100.4, 10.1.1.1",
    }
    proxies = TrustedProxies(["192.0.2.9", "10.0.0.0/8"])
    assert unwrapped(proxies, "192.0.2.9", **told) == ("https", "outer", "198.51.100.4")
    assert unwrapped(proxies, "::ffff:192.0.2.9", **told) == ("https", "outer", "198.51.100.4")
    assert unwrapped(proxies, "192.0.2.8", **told) == ("http", "inner", "192.0.2.8")
    assert unwrapped(TrustedProxies([]), "127.0.0.1", **told) == ("http", "inner", "127.0.0.1")


def test_only_the_last_word_is_the_proxys_own() -> None:
    told = {
        "x_forwarded_host": "forged, outer",
        "x_forwarded_proto": "forged, https",
        "x_forwarded_for": "forged, 1.2.3.4",
    }
    assert unwrapped(TrustedProxies(["192.0.2.9"]), "192.0.2.9", **told) == ("https", "outer", "1.2.3.4")
    assert unwrapped(TrustedProxies(["192.0.2.9"]), "192.0.2.9", x_forwarded_proto="gopher")[0] == "http"


def test_a_host_told_by_a_proxy_must_be_allowed_too(start: Start) -> None:
    client = start(trusted_proxies=["192.0.2.9"], allowed_hosts=[NAME])
    assert client.get("/", headers=FORWARDED).status_code == 200
    assert client.get("/", headers={**FORWARDED, "x-forwarded-host": "evil.example"}).status_code == 403
    assert client.post("/translate", json=ASKED, headers={**FORWARDED, "origin": f"https://{NAME}"}).status_code == 200
    assert client.post("/translate", json=ASKED, headers={**FORWARDED, "origin": f"http://{NAME}"}).status_code == 403


def test_what_others_forward_is_ignored(start: Start) -> None:
    client = start(trusted_proxies=["192.0.2.1"], allowed_hosts=[NAME])
    answer = client.get("/docs", headers=FORWARDED)  # its examples contain the server's address
    assert answer.status_code == 200 and "http://127.0.0.1:5000/translate" in answer.text and NAME not in answer.text


# What unknown clients may not do


def test_training_can_be_switched_off(start: Start) -> None:
    client = start(training=False)
    for method, path in (
        ("POST", "/api/train"), ("POST", "/api/train/demo"), ("POST", "/api/train/stop"), ("POST", "/api/train/resume"),
        ("DELETE", "/api/train"), ("DELETE", "/api/train/runs/x"), ("POST", "/api/train/runs/x/use"),
    ):  # fmt: skip
        answer = client.request(method, path)
        assert answer.status_code == 403 and "--no-training" in answer.json()["error"], path
    assert client.get("/api/train").status_code == client.get("/api/train/runs").status_code == 200


def test_the_number_of_trainings_and_their_data_are_bounded(start: Start, tmp_path: Path) -> None:
    kept = tmp_path / "runs" / "old"
    (kept / "upload").mkdir(parents=True)
    (kept / "upload" / "pairs.tsv").write_text("x" * 1000)
    (kept / "job.json").write_text('{"name": "old", "recipe": "pairs-transformer", "steps": 1, "code": 1}')
    form = {"data": {"name": "new", "recipe": "pairs-transformer"}, "files": {"files": ("a.tsv", b"a\tb\n")}}
    answer = start(runs=1).post("/api/train", **form)
    assert answer.status_code == 409 and "delete one" in answer.json()["error"]
    answer = start(uploads=1000).post("/api/train", **form)
    assert answer.status_code == 507 and "delete a run" in answer.json()["error"]


def test_who_can_be_reached_by_others_is_public() -> None:
    for settings in (
        {"host": "0.0.0.0"},
        {"host": "192.0.2.1"},
        {"allowed_hosts": [NAME]},
        {"trusted_proxies": ["::1"]},
    ):
        assert ServeSettings.parse(settings).public, settings
    for settings in ({}, {"host": "localhost"}, {"host": "::1"}, {"allowed_hosts": ["localhost"]}):
        assert not ServeSettings.parse(settings).public, settings


# Pages that LibreTranslate's clients and people request


def test_every_get_route_answers_head(start: Start) -> None:
    client = start()
    paths = [path for path, operations in client.get("/spec").json()["paths"].items() if "get" in operations]
    for path in ["/", "/docs", "/lens/main.js", *paths]:
        if path == "/metrics":  # its values change
            continue
        whole, head = client.get(path), client.head(path)
        assert (head.status_code, head.content) == (whole.status_code, b""), path
        assert head.headers["content-length"] == whole.headers["content-length"], path


def test_the_apis_are_described_without_anything_from_elsewhere(start: Start) -> None:
    client = start()
    assert client.get("/spec").json() == client.get("/openapi.json").json()
    page = client.get("/docs").text
    assert "/translate" in page and "/v1/chat/completions" in page
    outside = [part for part in page.split('"') if part.startswith(("http:", "https:", "//"))]
    assert outside == [] and "<script" not in page
