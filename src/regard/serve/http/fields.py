"""Read the fields of a request from JSON, a form, multipart data, or the query string."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.datastructures import UploadFile
from starlette.requests import Request

from regard.errors import UsageError
from regard.families.translation.glossary import Glossary


class Upload(NamedTuple):
    """A file of a multipart form."""

    name: str
    content: bytes


FLAGS: Mapping[str | bool, bool] = {True: True, "true": True, "1": True, False: False, "false": False, "0": False}
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


async def read_fields(request: Request) -> dict[str, Any]:
    """All fields by name; the body overrides the query string."""
    given: dict[str, Any] = dict(request.query_params)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in FORMS:
        async with request.form(max_files=2, max_fields=100) as form:
            return given | {name: await _read_value(value) for name, value in form.items()}
    body = await request.body()
    if not body.strip():
        return given
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):  # ValueError also for a number of too many digits
        raise UsageError("the body is neither JSON in UTF-8 nor a form with its content type") from None
    if not isinstance(values, dict):
        raise UsageError("the body must be a JSON object with the fields of the request")
    return given | values


def required_text(given: Mapping[str, Any], name: str) -> str:
    """The value of a required text field."""
    value = given.get(name)
    if value is None or value == "":
        raise UsageError(f"Invalid request: missing {name} parameter")
    if not isinstance(value, str):
        raise UsageError(f"Invalid request: {name} must be a text")
    return value


def required_texts(given: Mapping[str, Any], name: str = "q") -> tuple[list[str], bool]:
    """The texts of a required field, and whether the client sent them as a list."""
    value = given.get(name)
    if value is None or value in ("", []):
        raise UsageError(f"Invalid request: missing {name} parameter")
    several = isinstance(value, list)
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in found):
        raise UsageError(f"Invalid request: {name} must be a text or a list of texts")
    return found, several


def optional_integer(given: Mapping[str, Any], name: str, most: int) -> int:
    """An integer from 0 to `most`; 0 if the field is missing."""
    value = given.get(name) or 0
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if isinstance(value, bool | float) or not 0 <= number <= most:
        raise UsageError(f"Invalid request: {name} must be a whole number from 0 to {most}")
    return number


def optional_flag(given: Mapping[str, Any], name: str) -> bool:
    """A choice: true or false, as JSON or as a word; false if the field is missing."""
    value = given.get(name)
    found = FLAGS.get(value.lower() if isinstance(value, str) else value) if isinstance(value, str | bool) else None
    if value is not None and found is None:
        raise UsageError(f"Invalid request: {name} must be true or false")
    return bool(found)


def optional_glossary(given: Mapping[str, Any], name: str = "glossary") -> Glossary:
    """The terms of a field: lines of source TAB target, as text or as a file, or an object of terms."""
    value = given.get(name)
    if isinstance(value, Upload):
        value = value.content.decode("utf-8", "replace")
    if value is None or isinstance(value, str):
        return Glossary.parse((value or "").splitlines(), name)
    if isinstance(value, dict) and all(isinstance(each, str) for each in value.values()):
        return Glossary.of(value)
    raise UsageError(f"Invalid request: {name} must be lines of source TAB target, or an object of terms")


async def _read_value(value: UploadFile | str) -> Upload | str:
    """Read a file's content before its form is closed; the guard limits its size."""
    return value if isinstance(value, str) else Upload(value.filename or "", await value.read())


def required_file(given: Mapping[str, Any], name: str) -> Upload:
    """The file of a required multipart field."""
    value = given.get(name)
    if not isinstance(value, Upload):
        raise UsageError(f"Invalid request: missing {name} parameter; send a file as multipart/form-data")
    return value
