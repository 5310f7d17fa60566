"""What a client did wrong, or must wait for: each error knows its HTTP status."""

from __future__ import annotations

from http import HTTPStatus

from regard.errors import RegardError


class HTTPError(RegardError):
    """An answer other than success, said in words."""

    status: int = HTTPStatus.BAD_REQUEST


class UnauthorizedError(HTTPError):
    """The server wants a key, and none or a wrong one came."""

    status = HTTPStatus.UNAUTHORIZED


class ForbiddenError(HTTPError):
    """The client is known, or need not be, but may not do this."""

    status = HTTPStatus.FORBIDDEN


class NotFoundError(HTTPError):
    """There is nothing of that name."""

    status = HTTPStatus.NOT_FOUND


class ConflictError(HTTPError):
    """It cannot be done in the present state of things."""

    status = HTTPStatus.CONFLICT


class TooLargeError(HTTPError):
    """More came than the server takes."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class StorageFullError(HTTPError):
    """The disk has no room for what came."""

    status = HTTPStatus.INSUFFICIENT_STORAGE


class BusyError(HTTPError):
    """The server has enough to do; try again after `retry_after` seconds."""

    status = HTTPStatus.SERVICE_UNAVAILABLE

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after
