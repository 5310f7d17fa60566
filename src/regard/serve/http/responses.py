"""Errors with their HTTP status, their responses in the format of each API, server-sent events, and work that ends when
its client disconnects.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Scope

from regard.data.tokenizers.base import well_formed
from regard.errors import DataError, RegardError, UsageError


class HTTPError(RegardError):
    """An error that is sent to the client with its status and message."""

    status: int = HTTPStatus.BAD_REQUEST


class UnauthorizedError(HTTPError):
    """The API key is missing or wrong."""

    status = HTTPStatus.UNAUTHORIZED


class ForbiddenError(HTTPError):
    """This request is not allowed, whoever sends it."""

    status = HTTPStatus.FORBIDDEN


class NotFoundError(HTTPError):
    """Nothing has the requested name."""

    status = HTTPStatus.NOT_FOUND


class ConflictError(HTTPError):
    """The request does not fit the current state, such as starting a job while another runs."""

    status = HTTPStatus.CONFLICT


class TooLargeError(HTTPError):
    """The request is larger than the server's limit."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class StorageFullError(HTTPError):
    """The data cannot be stored."""

    status = HTTPStatus.INSUFFICIENT_STORAGE


class BusyError(HTTPError):
    """The server is overloaded or shutting down; the client may retry after `retry_after` seconds."""

    status = HTTPStatus.SERVICE_UNAVAILABLE

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooManyRequestsError(BusyError):
    """This client asks too often; others may ask."""

    status = HTTPStatus.TOO_MANY_REQUESTS


T = TypeVar("T")
OPENAI = "/v1"
TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
UNBUFFERED = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # proxies forward each event at once
CLIENT_CLOSED_REQUEST = 499  # the client has disconnected; nobody reads this response
ERROR = {"description": "An error message", "content": {"application/json": {}}}
ERRORS: dict[int | str, dict[str, Any]] = dict.fromkeys((400, 403, 404, 408, 413, 500, 503), ERROR)
log = logging.getLogger("regard.serve")


class StrictRequest(BaseModel):
    """A request in which an unknown field is an error."""

    model_config = ConfigDict(extra="forbid")


def keyed_router(prefix: str, tag: str = "Lens") -> APIRouter:
    """A router whose requests need an API key if the server has any."""
    return APIRouter(prefix=prefix, tags=[tag], responses={**ERRORS, 401: ERROR})


def route_path(scope: Scope) -> str:
    """The path of a request below the prefix that a proxy has the server at."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def error_response(path: str, error: Exception) -> Response:
    """The response to an error: a message and a status, never a traceback or a file's path."""
    status, headers = _status(error), {}
    if isinstance(error, BusyError):
        headers["retry-after"] = str(error.retry_after)
    if status == 500:
        log.error("%s: %s", path, error, exc_info=error)
    message = well_formed(_message(error, status))  # it may quote the request
    if not path.startswith(OPENAI):
        return JSONResponse({"error": message}, status, headers)
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": None}}, status, headers)


def _status(error: Exception) -> int:
    match error:
        case HTTPError():
            return int(error.status)
        case HTTPException():
            return error.status_code
        case UsageError() | DataError() | RequestValidationError():
            return 400
        case _:
            return 500


def _message(error: Exception, status: int) -> str:
    match error:
        case RequestValidationError():
            places = [
                (".".join(str(part) for part in each["loc"] if part != "body"), each["msg"]) for each in error.errors()
            ]
            return "; ".join(f"{place}: {message}" if place else str(message) for place, message in places[:3])
        case HTTPException():
            return str(error.detail)
        case RegardError() if status != 500 or isinstance(error, HTTPError):
            return str(error)
        case _:
            return "internal server error; see the server's log"


def handle_errors(app: FastAPI) -> None:
    """Turn every error of the application into a response."""

    async def handler(request: Request, error: Exception) -> Response:
        if isinstance(error, ClientDisconnect):
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return error_response(route_path(request.scope), error)

    for kind in (RegardError, HTTPException, RequestValidationError, ClientDisconnect, Exception):
        app.add_exception_handler(kind, handler)


async def wait_for_result(request: Request, work: Awaitable[T], *, seconds: float) -> T:
    """The result of `work`, which is cancelled after `seconds` or when the client disconnects."""
    task = asyncio.ensure_future(work)
    try:
        if await is_done(request, task, seconds=seconds):
            return task.result()
        raise BusyError(f"the request took longer than {seconds:g} s; send less, or try again later", retry_after=5)
    finally:
        task.cancel()


async def is_done(request: Request, task: asyncio.Future[Any], *, seconds: float | None) -> bool:
    """Wait for a task, which goes on in any case; returns whether it is done within `seconds`. Raises ClientDisconnect
    if the client goes away first."""
    disconnect = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait({task, disconnect}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and disconnect.done():
            raise ClientDisconnect
        return task.done()
    finally:
        disconnect.cancel()


async def stream_events(request: Request, events: AsyncIterator[str], *, seconds: float) -> StreamingResponse:
    """A response of server-sent events; an error before the first event becomes an error response."""
    first = await wait_for_result(request, anext(events), seconds=seconds)

    async def all_events() -> AsyncIterator[str]:
        yield first
        async for event in events:
            yield event

    return StreamingResponse(all_events(), media_type="text/event-stream", headers=UNBUFFERED)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def server_sent_events(values: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    """Values as events of the page, of which the last has `done`."""

    async def events() -> AsyncIterator[str]:
        done = False
        async for value in values:
            yield event(value)
            done = "done" in value
        if not done:
            yield event({"done": True})

    return with_error_event("/api", events())


async def with_error_event(path: str, events: AsyncIterator[str]) -> AsyncIterator[str]:
    """Events; an error after the first becomes an event too, in the format of the API of this path."""
    began = False
    try:
        async for each in events:
            yield each
            began = True
    except Exception as error:
        if not began:
            raise
        yield f"data: {bytes(error_response(path, error).body).decode()}\n\n"


def event(value: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
