"""Errors of the server, each with its HTTP status."""

from __future__ import annotations

from http import HTTPStatus

from regard.errors import RegardError


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
