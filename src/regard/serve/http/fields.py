"""The fields of a request, however a client sends them: JSON, form, multipart or in the address."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.datastructures import UploadFile
from starlette.requests import Request

from regard.errors import UsageError


class Upload(NamedTuple):
    """A file that came with a form."""

    name: str
    content: bytes


FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


async def read_fields(request: Request) -> dict[str, Any]:
    """All fields by name; what is in the body wins over what is in the address."""
    given: dict[str, Any] = dict(request.query_params)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in FORMS:
        async with request.form(max_files=1, max_fields=100) as form:
            return given | {name: await _held(value) for name, value in form.items()}
    body = await request.body()
    if not body.strip():
        return given
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):  # also for a number of too many digits
        raise UsageError("the body is neither JSON in UTF-8 nor a form with its content type") from None
    if not isinstance(values, dict):
        raise UsageError("the body must be a JSON object with the fields of the request")
    return given | values


def required(given: Mapping[str, Any], name: str) -> str:
    """A field that must be there, as text."""
    value = given.get(name)
    if value is None or value == "":
        raise UsageError(f"Invalid request: missing {name} parameter")
    if not isinstance(value, str):
        raise UsageError(f"Invalid request: {name} must be a text")
    return value


def texts(given: Mapping[str, Any], name: str = "q") -> tuple[list[str], bool]:
    """One text or several, and whether they came as a list."""
    value = given.get(name)
    if value is None or value in ("", []):
        raise UsageError(f"Invalid request: missing {name} parameter")
    several = isinstance(value, list)
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in found):
        raise UsageError(f"Invalid request: {name} must be a text or a list of texts")
    return found, several


def whole(given: Mapping[str, Any], name: str, most: int) -> int:
    """A whole number from 0 to `most`; 0 when it is not given."""
    value = given.get(name) or 0
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if isinstance(value, bool | float) or not 0 <= number <= most:
        raise UsageError(f"Invalid request: {name} must be a whole number from 0 to {most}")
    return number


async def _held(value: UploadFile | str) -> Upload | str:
    """A file's content is taken before its form is closed; the guard has bounded it."""
    return value if isinstance(value, str) else Upload(value.filename or "", await value.read())


def uploaded(given: Mapping[str, Any], name: str) -> Upload:
    """A file sent in a multipart form."""
    value = given.get(name)
    if not isinstance(value, Upload):
        raise UsageError(f"Invalid request: missing {name} parameter; send a file as multipart/form-data")
    return value
