"""Rows 26 and 35: behind nginx and Caddy with TLS, at the root of a site and below a path, with the configurations that
docs/server.md shows."""

import json
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from playwright.sync_api import expect, sync_playwright
from server_process import ASKED, Server, running_forked

NAME = "translate.example.org"
DOCS = Path(__file__).parents[2] / "docs" / "server.md"
NGINX = """
daemon off; pid {place}/nginx.pid; error_log stderr; worker_processes 1;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {place}/body; proxy_temp_path {place}/proxy;
    fastcgi_temp_path {place}/fastcgi; uwsgi_temp_path {place}/uwsgi; scgi_temp_path {place}/scgi;
    {site}
}}
"""
CADDY = """
{{
    admin off
    auto_https disable_redirects
    storage file_system {place}
}}
{site}
"""
OPTIONS = ("--allowed-host", NAME, "--trusted-proxy", "127.0.0.1")
EVIL = "evil.example"


def documented(program: str, path: str) -> str:
    """The configuration that the documentation shows, for the root of a site or for a path."""
    language = {"nginx": "nginx", "caddy": "caddyfile"}[program]
    root, below = re.findall(rf"```{language}\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    if not path:
        return str(root)
    if program == "caddy":
        return str(below)
    return re.sub(r" *location / \{.*?\}\n", lambda _: below, root, flags=re.DOTALL)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Proxy:
    """A running proxy, and clients that connect to it by its name."""

    def __init__(self, port: int, certificate: Path, server: Server, path: str) -> None:
        self.port, self.server, self.certificate, self.path = port, server, certificate, path
        self.origin = f"https://{NAME}:{port}"

    def client(self, **headers: str) -> httpx.Client:
        context = ssl.create_default_context(cafile=str(self.certificate))
        return httpx.Client(
            base_url=f"https://127.0.0.1:{self.port}{self.path}",
            headers={"host": f"{NAME}:{self.port}", **headers},
            transport=Named(verify=context, trust_env=False),
            timeout=60,
        )


class Named(httpx.HTTPTransport):
    """Connects to this machine but verifies the certificate of the name."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.extensions = {**request.extensions, "sni_hostname": NAME}
        request.url = request.url.copy_with(host="127.0.0.1")
        return super().handle_request(request)


@pytest.fixture(scope="module")
def server(translator_folder: Path) -> Iterator[Server]:
    with running_forked(translator_folder, *OPTIONS) as server:
        yield server


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on this machine; install the package openssl to test the server behind a proxy")
    place = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={NAME}"]
    files = ["-addext", f"subjectAltName=DNS:{NAME}", "-keyout", place / "key.pem", "-out", place / "certificate.pem"]
    subprocess.run([*command, *files], check=True, capture_output=True)
    return place / "certificate.pem"


@pytest.fixture(scope="module", params=[("nginx", ""), ("nginx", "/mt"), ("caddy", ""), ("caddy", "/mt")], ids="".join)
def proxy(request: Any, server: Server, certificate: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    name, path = request.param
    program = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip(f"no {name} on this machine; install the package {name} to test the server behind it")
    port, place = free_port(), tmp_path_factory.mktemp(name)
    key, site = certificate.with_name("key.pem"), documented(name, path)
    if name == "nginx":
        site = site.replace("listen 443", f"listen 127.0.0.1:{port}")
        site = re.sub(r"(ssl_certificate) .*;", rf"\1 {certificate};", site)
        site = re.sub(r"(ssl_certificate_key) .*;", rf"\1 {key};", site)
        config = NGINX.format(place=place, site=site.replace("127.0.0.1:5000", f"127.0.0.1:{server.port}"))
        command = [program, "-p", str(place), "-c", str(place / "config"), "-e", "stderr"]
    else:
        site = site.replace(f"{NAME} {{", f"{NAME}:{port} {{\n    tls {certificate} {key}", 1)
        config = CADDY.format(place=place, site=site.replace("127.0.0.1:5000", f"127.0.0.1:{server.port}"))
        command = [program, "run", "--adapter", "caddyfile", "--config", str(place / "config")]
    (place / "config").write_text(config)
    with started(command, port, place / "log"):
        yield Proxy(port, certificate, server, path)


@contextmanager
def started(command: list[str], port: int, log: Path) -> Iterator[None]:
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=errors, stderr=errors)
    try:
        while not listens(port):
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def test_the_page_and_the_apis_work(proxy: Proxy) -> None:
    with (
        proxy.client(origin=proxy.origin, **{"sec-fetch-site": "same-origin"}) as client,
        proxy.server.client() as inside,
    ):
        page = client.get("/").text
        assert "<title>Regard</title>" in page
        for address in re.findall(r'(?:src|href)="([^"#]+)"', page):
            assert client.get(address).status_code == 200, address
        assert client.head("/languages").status_code == 200
        assert client.get("/api/models").json()["models"]
        expected = inside.post("/translate", json=ASKED).json()
        assert client.post("/translate", json=ASKED).json() == expected
        assert client.post("/api/translate", json={"text": ASKED["q"], "to": "es"}).status_code == 200


def test_a_browser_translates(proxy: Proxy) -> None:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium on this machine; install the package chromium to test the page")
    arguments = ["--no-sandbox", "--disable-gpu", f"--host-resolver-rules=MAP {NAME} 127.0.0.1"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        page = browser.new_page(ignore_https_errors=True)
        page.goto(f"{proxy.origin}{proxy.path}/#translate", timeout=60_000)
        page.fill("#translate-text", ASKED["q"])
        expect(page.locator("#translation")).to_have_attribute("data-state", "done", timeout=60_000)
        said = page.locator("#translation").inner_text()
        page.goto(f"{proxy.origin}{proxy.path}/#documents")
        page.set_input_files("#document-file", [{"name": "a.txt", "mimeType": "text/plain", "buffer": b"we eat"}])
        with page.expect_download() as fetched:
            page.click("#document-list li[data-state=done] button:has-text('Download')")
        assert fetched.value.failure() is None
        browser.close()
    with proxy.server.client() as inside:
        assert said.strip() and inside.post("/translate", json=ASKED).json()["translatedText"] in said


def test_a_stream_arrives_as_it_is_written(proxy: Proxy) -> None:
    asked = {"text": "We are eating bread. She reads a book. The old house is red.", "to": "es"}
    with (
        proxy.client(origin=proxy.origin) as client,
        client.stream("POST", "/api/translate/stream", json=asked) as answer,
    ):
        pieces = list(answer.iter_raw())
    events = [json.loads(line.removeprefix("data: ")) for line in b"".join(pieces).decode().splitlines() if line]
    assert len(events) > 2 and events[-1]["done"]
    assert len(pieces) > 1  # a buffering proxy would send one piece


def test_documents_are_sent_and_fetched_by_the_public_address(proxy: Proxy) -> None:
    forged = {
        "x-forwarded-host": EVIL,
        "x-forwarded-proto": "http",
        "x-forwarded-for": "203.0.113.5",
        "forwarded": f"host={EVIL}",
    }
    for headers in ({}, forged):
        with proxy.client(origin=proxy.origin, **headers) as client:
            sent = client.post(
                "/translate_file", data={"source": "auto", "target": "es"}, files={"file": ("a.txt", b"we eat")}
            )
            address = sent.json()["translatedFileUrl"]
            assert address.startswith(f"{proxy.origin}{proxy.path}/download_file/")
            assert client.get(address.removeprefix(proxy.origin + proxy.path)).text


def test_the_openai_client_works(proxy: Proxy) -> None:
    with proxy.client() as client, openai.OpenAI(
        base_url=f"https://127.0.0.1:{proxy.port}{proxy.path}/v1", api_key="none", max_retries=0, http_client=client
    ) as asking:  # fmt: skip
        (name, *_) = [model.id for model in asking.models.list()]
        messages = [{"role": "user", "content": ASKED["q"]}]
        whole = asking.chat.completions.create(model=name, messages=messages).choices[0].message.content
        pieces = asking.chat.completions.create(model=name, messages=messages, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in pieces) == whole


def test_forgeries_are_refused(proxy: Proxy) -> None:
    with proxy.client(host=EVIL) as client:
        for answer in (client.get("/"), client.post("/translate", json=ASKED)):
            assert answer.status_code == 403 or not answer.content  # Caddy itself answers for other sites
    with proxy.client() as client:
        for origin in (f"https://{EVIL}", f"https://{NAME}:{proxy.port + 1}", f"http://{NAME}:{proxy.port}", "null"):
            assert client.post("/translate", json=ASKED, headers={"origin": origin}).status_code == 403, origin
        assert client.post("/translate", json=ASKED, headers={"sec-fetch-site": "cross-site"}).status_code == 403


def test_forgeries_that_go_around_the_proxy_are_refused(server: Server) -> None:
    with server.client() as client:
        for header in ("host", "x-forwarded-host"):
            assert client.get("/", headers={header: EVIL}).status_code == 403
        sent = {"data": {"source": "en", "target": "es"}, "files": {"file": ("a.txt", b"we eat")}}
        assert client.post("/translate_file", **sent, headers={"x-forwarded-host": EVIL}).status_code == 403
        assert client.post("/translate_file", **sent).json()["translatedFileUrl"].startswith(server.url)


# Access without a proxy


def test_a_server_that_others_reach_without_a_key_says_so(translator_folder: Path) -> None:
    with running_forked(translator_folder, "--host", "0.0.0.0") as server:
        with server.client() as client:
            assert client.get("/health").status_code == 200
            assert client.get("/health", headers={"host": EVIL}).status_code == 403
        assert "no API key is set" in server.log.read_text()
    with running_forked(translator_folder, "--host", "0.0.0.0", "--api-key", "sesame") as server:
        assert "no API key" not in server.log.read_text()
