"""ASGI middleware in front of all routes: hosts, origins, API keys, sizes, timeouts, headers, access log and metrics.

It is plain ASGI, so that streamed responses are not buffered. Who may ask is decided below it: by API keys, accepted
host names, and trusted proxies, whose X-Forwarded-* headers are used.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import math
import re
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serve.http.responses import (
    BusyError,
    ForbiddenError,
    HTTPError,
    TooLargeError,
    TooManyRequestsError,
    UnauthorizedError,
    error_response,
    route_path,
)
from regard.serve.settings import ANY, LOOPBACK, PREFIX, ServeSettings

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "media-src data:; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
CORS = {  # what pages of allowed origins may send
    "access-control-allow-methods": "GET, HEAD, POST, DELETE",
    "access-control-allow-headers": "authorization, content-type",
    "access-control-max-age": "600",
}
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
KEY_PREFIXES = ("/api", "/v1", "/metrics")  # LibreTranslate routes check the key themselves: it may be a form field
# These take training data, images, audio and documents
UPLOAD_PATHS = ("/api/train", "/api/inspect", "/v1/audio/transcriptions", "/api/documents", "/translate_file")
READ_WHEN_REFUSED = 65536  # bytes up to which the body of a refused request is still read
PATIENCE_WHEN_REFUSED = 10  # seconds; one second was too short on a machine with more work than cores
access = logging.getLogger("regard.access")


class Metrics:
    """The metrics of /metrics, in a registry of their own, so that one process can run several servers."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("regard_requests", "Answered requests", ["route", "status"], registry=registry)
        self.seconds = Histogram("regard_request_seconds", "Time to the last byte", ["route"], registry=registry)
        self.sentences = Counter("regard_sentences", "Sentences translated", registry=registry)
        self.batches = Histogram(
            "regard_batch_sentences", "Sentences computed together", registry=registry, buckets=(1, 2, 4, 8, 16, 32, 64)
        )
        self.waiting = Gauge("regard_queue_jobs", "Jobs waiting to be computed", registry=registry)
        self.loaded = Gauge("regard_models_loaded", "Models in memory", registry=registry)

    def record_batch(self, size: int) -> None:
        self.batches.observe(size)
        self.sentences.inc(size)


class Guard:
    """Wraps the application: refuses bad requests, and counts and logs all of them."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, keys: ApiKeys, metrics: Metrics) -> None:
        self.app, self.settings, self.keys, self.metrics = app, settings, keys, metrics
        self.names = AllowedHosts(settings)
        self.proxies = TrustedProxies(settings.trusted_proxies)
        self._receiving = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method, scope = scope["method"], with_prefix(self.proxies.unwrap(scope), self.settings.root_path)
        began = time.monotonic()
        sent = _ResponseSender(send, self._allowed_origin(scope), without_body=method == "HEAD")
        if method == "HEAD":  # routed as GET; the body is dropped
            scope = {**scope, "method": "GET"}
        try:
            await self._check(scope, receive)
            await self._forward(scope, receive, sent)
        except HTTPError as error:
            await self._refuse(scope, receive, sent, error)
        except asyncio.CancelledError:  # the graceful shutdown timed out
            await self._refuse(scope, receive, sent, BusyError("the server is shutting down", retry_after=5))
        finally:
            self._log({**scope, "method": method}, sent, time.monotonic() - began)

    async def _forward(self, scope: Scope, receive: Receive, sent: _ResponseSender) -> None:
        if _is_preflight(scope):
            await Response(status_code=204, headers=CORS)(scope, receive, sent)
            return
        is_large = self._may_be_large(scope)
        if is_large and self._receiving >= self.settings.receiving:
            raise BusyError(f"{self._receiving} uploads are arriving already; try again later", retry_after=10)
        self._receiving += is_large

        def received() -> None:
            nonlocal is_large
            self._receiving -= is_large
            is_large = False

        try:
            await self.app(scope, self._limited(scope, receive, received), sent)
        finally:
            received()

    def _may_be_large(self, scope: Scope) -> bool:
        """Whether a request may have a larger body than most may."""
        length = Headers(scope=scope).get("content-length")
        return self._limit(scope) > self.settings.body and (length is None or int(length) > self.settings.body)

    @staticmethod
    async def _refuse(scope: Scope, receive: Receive, sent: _ResponseSender, error: HTTPError) -> None:
        if not sent.status:
            await error_response(route_path(scope), error)(scope, receive, sent)

    # Checks before the application runs

    async def _check(self, scope: Scope, receive: Receive) -> None:
        try:
            self._check_headers(scope)
            await self._check_key(scope)
        except HTTPError:
            await _read_small_body(scope, receive)
            raise

    def _check_headers(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if not self.names.accept(scope):
            raise ForbiddenError(
                "this server does not answer to the name in the Host header; use its address, or start it with "
                "--allowed-host NAME"
            )
        if (scope["method"] not in SAFE_METHODS or _is_preflight(scope)) and self._is_cross_site(scope, headers):
            raise ForbiddenError(
                "this server does not accept requests from pages of other sites; its operator can allow a site with "
                "--origin"
            )
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._limit(scope):
            raise TooLargeError(f"the request has {length} bytes; the limit is {self._limit(scope)}")

    async def _check_key(self, scope: Scope) -> None:
        needs_key = route_path(scope).startswith(KEY_PREFIXES) and not _is_preflight(scope)
        if needs_key and not await self.keys.accept(bearer_key(Headers(scope=scope)), scope):
            raise UnauthorizedError("a valid API key is needed; send it as Authorization: Bearer KEY")

    def _is_cross_site(self, scope: Scope, headers: Headers) -> bool:
        """Whether the browser's headers say that the request comes from a page of another site that is not allowed."""
        origin, host = headers.get("origin"), headers.get("host", "")
        if origin is not None and self._allowed_origin(scope):
            return False
        # Without a trusted proxy the scheme that the browser used is unknown.
        schemes = [scope["scheme"]] if self.settings.trusted_proxies else ["http", "https"]
        if origin is not None and origin not in [f"{scheme}://{host}" for scheme in schemes]:
            return True
        return headers.get("sec-fetch-site") in ("cross-site", "same-site")

    def _allowed_origin(self, scope: Scope) -> str:
        """The request's Origin header if it is one of the allowed origins, else empty."""
        origin = Headers(scope=scope).get("origin", "")
        return origin if origin and {origin.lower(), ANY} & {*self.settings.origins} else ""

    def _limit(self, scope: Scope) -> int:
        """The most bytes of a body. Where the key may be in the form, a large body needs it in the header."""
        path = route_path(scope)
        may_upload = path in UPLOAD_PATHS and scope["method"] not in SAFE_METHODS
        if may_upload and self.keys and not path.startswith(KEY_PREFIXES):
            may_upload = self.keys.has(bearer_key(Headers(scope=scope)))
        return max(self.settings.upload, self.settings.body) if may_upload else self.settings.body

    def _limited(self, scope: Scope, receive: Receive, received_all: Callable[[], None]) -> Receive:
        """`receive` with limits on size and time that hold whatever the Content-Length header says."""
        limit, received = self._limit(scope), 0
        until = time.monotonic() + self.settings.seconds * (10 if limit > self.settings.body else 1)
        complete = False

        async def limited() -> Message:
            nonlocal received, complete
            if complete:  # later messages only report a disconnect, which has no time limit
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, until - time.monotonic()))
            except TimeoutError:
                raise HTTPException(408, "the request did not arrive in time") from None
            received += len(message.get("body", b""))
            if complete := not message.get("more_body", False):
                received_all()
            if received > limit:  # FastAPI passes on an HTTPException raised while it reads a body, and no other error
                raise HTTPException(413, f"the request has more bytes than the limit of {limit}")
            return message

        return limited

    # After the response

    def _log(self, scope: Scope, sent: _ResponseSender, seconds: float) -> None:
        files = isinstance(scope.get("endpoint"), StaticFiles)
        route = "static files" if files else getattr(scope.get("route"), "path", "other")
        self.metrics.requests.labels(route, str(sent.status)).inc()
        self.metrics.seconds.labels(route).observe(seconds)
        client = (scope.get("client") or ("",))[0]
        line = {
            "time": round(time.time(), 3), "client": client, "method": scope["method"], "path": scope["path"],
            "status": sent.status, "bytes": sent.bytes, "milliseconds": round(1000 * seconds, 1),
        }  # fmt: skip
        access.info(json.dumps(line))


def _is_preflight(scope: Scope) -> bool:
    """Whether this is a CORS preflight request."""
    return scope["method"] == "OPTIONS" and "access-control-request-method" in Headers(scope=scope)


async def _read_small_body(scope: Scope, receive: Receive) -> None:
    """Read the body of a refused request if it is small and arrives soon.

    If the server closes the connection while a proxy is still sending, the proxy may see the closed connection before
    it sees the response.
    """
    length = Headers(scope=scope).get("content-length", "0")
    if not length.isdecimal() or int(length) > READ_WHEN_REFUSED:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_WHEN_REFUSED):
            while (await receive()).get("more_body", False):
                pass


class _ResponseSender:
    """Adds the security headers to a response, and records its status and size."""

    def __init__(self, send: Send, origin: str, *, without_body: bool) -> None:
        self.send, self.status, self.bytes = send, 0, 0
        self._without_body = without_body
        self._headers = HEADERS | ({"access-control-allow-origin": origin, "vary": "Origin"} if origin else {})

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in self._headers.items():
                headers.setdefault(name, value)
        elif self._without_body and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        self.bytes += len(message.get("body", b""))
        await self.send(message)


HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+)(?::[0-9]{1,5})?")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class TrustedProxies:
    """The proxies of a server, by address or network."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._networks = [ipaddress.ip_network(each) for each in addresses]

    def trusts(self, client: str) -> bool:
        address = _address(client)
        return address is not None and any(address in network for network in self._networks)

    def unwrap(self, scope: Scope) -> Scope:
        """The request as the outermost trusted proxy received it; unchanged if it came from no trusted proxy.

        Each proxy appends to these headers, so only the last value was written by the trusted one.
        """
        if not self.trusts(_client(scope)):
            return scope
        headers = Headers(scope=scope)
        unwrapped = {**scope, "headers": list(scope["headers"])}
        if host := _last(headers, "x-forwarded-host"):
            MutableHeaders(scope=unwrapped)["host"] = host
        if (scheme := _last(headers, "x-forwarded-proto").lower()) in ("http", "https"):
            unwrapped["scheme"] = scheme
        if PREFIX.fullmatch(prefix := _last(headers, "x-forwarded-prefix").rstrip("/")):
            unwrapped["root_path"] = prefix
        hops = [hop for value in headers.getlist("x-forwarded-for") for hop in value.split(",") if hop.strip()]
        while hops and self.trusts(_client(unwrapped)):
            unwrapped["client"] = (hops.pop().strip(), 0)
        return unwrapped


def with_prefix(scope: Scope, prefix: str) -> Scope:
    """The request as ASGI describes one below a prefix: `root_path` is the prefix, and `path` begins with it.

    A trusted proxy's own prefix comes first, then that of the settings. Some proxies take the prefix off the path, and
    some leave it there.
    """
    prefix = scope.get("root_path") or prefix
    has_prefix = scope["path"] == prefix or scope["path"].startswith(prefix + "/")
    return {**scope, "root_path": prefix, "path": scope["path"] if has_prefix else prefix + scope["path"]}


class AllowedHosts:
    """The accepted values of the Host header; any other value may be a DNS rebinding attack.

    Accepted are the configured names and the loopback names. A server that is not local also accepts its own host name
    and the address that a connection was made to. In a rebinding attack another site lets its own name resolve to this
    machine, so its Host header is none of these.
    """

    def __init__(self, settings: ServeSettings) -> None:
        self._given = settings.allowed_hosts
        self._own = {*LOOPBACK} if settings.local else {*LOOPBACK, socket.gethostname().lower(), settings.host.lower()}
        self._local = settings.local

    def accept(self, scope: Scope) -> bool:
        hosts = Headers(scope=scope).getlist("host")
        found = HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if found is None:
            return False
        name = found["name"].lower().strip("[]")
        return name in self._own or any(_matches(name, given) for given in self._given) or self._is_own(name, scope)

    def _is_own(self, name: str, scope: Scope) -> bool:
        """Whether this is the address that the connection was made to."""
        own = (scope.get("server") or ("",))[0]
        return not self._local and _address(name) is not None and _address(name) == _address(own)


def _matches(name: str, given: str) -> bool:
    return given == ANY or name == given or (given.startswith("*.") and name.endswith(given[1:]))


def _client(scope: Scope) -> str:
    return str((scope.get("client") or ("",))[0])


def _last(headers: Headers, name: str) -> str:
    values = headers.getlist(name)
    return values[-1].rpartition(",")[2].strip() if values else ""


def _address(text: str) -> Address | None:
    """The parsed address; an IPv6-mapped IPv4 address becomes IPv4."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


FREE_GUESSES = 5  # wrong keys of a client before the answers to more of them are slowed
LONGEST_DELAY = 4.0  # seconds, doubled from a quarter with each guess
MOST_WAITING = 8  # wrong keys of a client whose answers are being delayed; with more, its keys are not looked at
FORGET = 600.0  # seconds after which the guesses of a client are forgotten
MOST_CLIENTS = 10_000  # whose guesses are counted


@dataclass
class Guesses:
    """The wrong keys of a client."""

    count: int = 0
    waiting: int = 0
    last: float = 0.0


@dataclass
class Allowance:
    """The requests that a key may send now: a bucket that fills up."""

    left: float
    filled: float

    def take(self, per_minute: int) -> float:
        """Take one; returns the seconds to wait if none is left."""
        now = time.monotonic()
        self.left = min(per_minute, self.left + (now - self.filled) * per_minute / 60)
        self.filled = now
        if self.left < 1:
            return (1 - self.left) * 60 / per_minute
        self.left -= 1
        return 0.0


class ApiKeys:
    """The keys of a server; without any, no key is needed. Guessing is slowed by client, and work is limited by key."""

    def __init__(self, keys: Iterable[str], per_minute: int = 0) -> None:
        self._keys, self._per_minute = [key.encode() for key in keys], per_minute
        self._guesses: OrderedDict[str, Guesses] = OrderedDict()  # the client with the oldest guess first
        self._allowances: dict[bytes, Allowance] = {}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def has(self, given: str) -> bool:
        """Whether this is one of the keys; compared in constant time, against timing attacks."""
        return self._find(given) is not None

    def _find(self, given: str) -> bytes | None:
        matches = [key for key in self._keys if hmac.compare_digest(given.encode("utf-8", "replace"), key)]
        return matches[0] if matches else None

    async def accept(self, given: str, scope: Scope) -> bool:
        """Whether a request may go on; a wrong key is answered late, and a key that asks too often with an error."""
        if not self._keys:
            return True
        client = _network(_client(scope))
        guesses = self._guesses.get(client)
        if guesses is not None and guesses.waiting >= MOST_WAITING:
            raise TooManyRequestsError("too many wrong API keys came from this address", retry_after=5)
        key = self._find(given)
        if key is None:
            if given:
                await self._slow_down(client)
            return False
        if self._per_minute and scope["method"] not in SAFE_METHODS:
            allowance = self._allowances.setdefault(key, Allowance(self._per_minute, time.monotonic()))
            if wait := allowance.take(self._per_minute):
                message = f"this API key may send {self._per_minute} requests a minute; try again later"
                raise TooManyRequestsError(message, retry_after=math.ceil(wait))
        return True

    async def _slow_down(self, client: str) -> None:
        now = time.monotonic()
        guesses = self._guesses.pop(client, None)
        if guesses is None or (not guesses.waiting and now - guesses.last > FORGET):
            guesses = Guesses()
        self._guesses[client] = guesses
        while len(self._guesses) > MOST_CLIENTS:
            self._guesses.popitem(last=False)
        guesses.count, guesses.last = guesses.count + 1, now
        if guesses.count > FREE_GUESSES:
            guesses.waiting += 1
            try:
                await asyncio.sleep(min(LONGEST_DELAY, 0.25 * 2.0 ** min(guesses.count - FREE_GUESSES - 1, 10)))
            finally:
                guesses.waiting -= 1


def _network(client: str) -> str:
    """What one client has of addresses: of IPv6 the network, in which it chooses freely."""
    address = _address(client)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return client


def bearer_key(headers: Headers) -> str:
    """The key in an Authorization header."""
    kind, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else ""
