"""What stands between the network and the routes: hosts, origins, keys, sizes, times, headers, the log and metrics.

Plain ASGI, so that streams pass through untouched.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import suppress

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serve.http.errors import BusyError, ForbiddenError, HTTPError, TooLargeError, UnauthorizedError
from regard.serve.http.keys import ApiKeys, bearer_key
from regard.serve.http.proxies import AllowedHosts, TrustedProxies
from regard.serve.http.responses import error_response
from regard.serve.settings import ANY, ServeSettings

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
CORS = {  # what pages of the origins that were named may send and read
    "access-control-allow-methods": "GET, HEAD, POST, DELETE",
    "access-control-allow-headers": "authorization, content-type",
    "access-control-max-age": "600",
}
READING = ("GET", "HEAD", "OPTIONS")
KEYED = ("/api", "/v1", "/metrics")  # the LibreTranslate routes look for a key in the request's own fields
LARGE = ("/api/train", "/api/picture")  # where training data and pictures arrive
SMALL = 65536  # bytes of a request that is refused, but read
access = logging.getLogger("regard.access")


class Metrics:
    """What /metrics tells Prometheus; a registry of its own, so that several servers fit into one process."""

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
    """Wraps the application; refuses what must not reach it, and counts and logs what does."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, metrics: Metrics) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics
        self.keys, self.proxies, self.names = (
            ApiKeys(settings.api_keys),
            TrustedProxies(settings.trusted_proxies),
            AllowedHosts(settings),
        )
        self._receiving = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method, scope = scope["method"], self.proxies.unwrap(scope)
        began, sent = time.monotonic(), _Sent(send, self._shared_with(scope), bodiless=method == "HEAD")
        if method == "HEAD":  # as GET, without the body
            scope = {**scope, "method": "GET"}
        try:
            await self._check(scope, receive)
            await self._pass_on(scope, self._bounded(scope, receive), sent)
        except HTTPError as problem:
            await self._refuse(scope, receive, sent, problem)
        except asyncio.CancelledError:  # the server ends and waits no longer
            await self._refuse(scope, receive, sent, BusyError("the server is shutting down", retry_after=5))
        finally:
            self._note({**scope, "method": method}, sent, time.monotonic() - began)

    async def _pass_on(self, scope: Scope, receive: Receive, sent: _Sent) -> None:
        if _is_preflight(scope):
            await Response(status_code=204, headers=CORS)(scope, receive, sent)
            return
        large = scope["path"] in LARGE and scope["method"] not in READING
        if large and self._receiving >= self.settings.receiving:
            raise BusyError(f"{self._receiving} uploads are arriving already; try again later", retry_after=10)
        self._receiving += large
        try:
            await self.app(scope, receive, sent)
        finally:
            self._receiving -= large

    @staticmethod
    async def _refuse(scope: Scope, receive: Receive, sent: _Sent, problem: HTTPError) -> None:
        if not sent.status:
            await error_response(scope["path"], problem)(scope, receive, sent)

    # Before

    async def _check(self, scope: Scope, receive: Receive) -> None:
        try:
            self._check_headers(scope)
        except HTTPError:
            await _read_small(scope, receive)
            raise

    def _check_headers(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if not self.names.accept(scope):
            raise ForbiddenError(
                "this server does not answer to the name in the Host header; use its address, or start it with "
                "--allowed-host NAME"
            )
        if (scope["method"] not in READING or _is_preflight(scope)) and self._from_elsewhere(scope, headers):
            raise ForbiddenError(
                "this server does not answer pages of other sites; whoever runs it can let one in with --origin"
            )
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._limit(scope):
            raise TooLargeError(f"the request has {length} bytes; at most {self._limit(scope)} are taken")
        if scope["path"].startswith(KEYED) and not _is_preflight(scope) and not self.keys.accept(bearer_key(headers)):
            raise UnauthorizedError("a valid API key is needed; send it as Authorization: Bearer KEY")

    def _from_elsewhere(self, scope: Scope, headers: Headers) -> bool:
        """Whether a browser says that a page is asking which is neither ours nor one that was let in."""
        origin, host = headers.get("origin"), headers.get("host", "")
        if origin is not None and self._shared_with(scope):
            return False
        # Without a proxy that tells how the browser came, it may have come over TLS or not.
        schemes = [scope["scheme"]] if self.settings.trusted_proxies else ["http", "https"]
        if origin is not None and origin not in [f"{scheme}://{host}" for scheme in schemes]:
            return True
        return headers.get("sec-fetch-site") in ("cross-site", "same-site")

    def _shared_with(self, scope: Scope) -> str:
        """The origin of the page that asks, if it is another site's that was let in."""
        origin = Headers(scope=scope).get("origin", "")
        return origin if origin and {origin.lower(), ANY} & {*self.settings.origins} else ""

    def _limit(self, scope: Scope) -> int:
        return self.settings.upload if scope["path"] in LARGE else self.settings.body

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        """A body that neither grows nor takes longer than it may, whatever its header said."""
        limit, came = self._limit(scope), 0
        until = time.monotonic() + self.settings.seconds * (10 if scope["path"] in LARGE else 1)
        complete = False

        async def bounded() -> Message:
            nonlocal came, complete
            if complete:  # what comes now is only whether the client is still there
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, until - time.monotonic()))
            except TimeoutError:
                raise HTTPException(408, "the request did not arrive in time") from None
            came += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if came > limit:  # as an HTTPException, which FastAPI lets through wherever it reads a body
                raise HTTPException(413, f"the request has more than the {limit} bytes that are taken")
            return message

        return bounded

    # After

    def _note(self, scope: Scope, sent: _Sent, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        self.metrics.requests.labels(route, str(sent.status)).inc()
        self.metrics.seconds.labels(route).observe(seconds)
        client = (scope.get("client") or ("",))[0]
        line = {
            "time": round(time.time(), 3), "client": client, "method": scope["method"], "path": scope["path"],
            "status": sent.status, "bytes": sent.bytes, "milliseconds": round(1000 * seconds, 1),
        }  # fmt: skip
        access.info(json.dumps(line))


def _is_preflight(scope: Scope) -> bool:
    """Whether a browser asks whether it may ask."""
    return scope["method"] == "OPTIONS" and "access-control-request-method" in Headers(scope=scope)


async def _read_small(scope: Scope, receive: Receive) -> None:
    """Read what a refused client sends, if it is little and comes soon.

    A connection that is closed before everything was read may lose the answer: a proxy that is still sending sees the
    end of the connection first.
    """
    length = Headers(scope=scope).get("content-length", "0")
    if not length.isdecimal() or int(length) > SMALL:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            while (await receive()).get("more_body", False):
                pass


class _Sent:
    """Passes messages on, with our headers, and remembers what was sent."""

    def __init__(self, send: Send, origin: str, *, bodiless: bool) -> None:
        self.send, self.status, self.bytes = send, 0, 0
        self._bodiless = bodiless
        self._headers = HEADERS | ({"access-control-allow-origin": origin, "vary": "Origin"} if origin else {})

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in self._headers.items():
                headers.setdefault(name, value)
        elif self._bodiless and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        self.bytes += len(message.get("body", b""))
        await self.send(message)
