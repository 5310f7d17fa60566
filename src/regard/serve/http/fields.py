"""Read the fields of a request from JSON, a form, multipart data, or the query string."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.requests import Request

from regard.errors import UsageError
from regard.families.translation.glossary import NO_TERMS, Glossary
from regard.serve.settings import ServeSettings


class Upload(NamedTuple):
    """A file of a multipart form."""

    name: str
    content: bytes


FLAGS: Mapping[str | bool, bool] = {True: True, "true": True, "1": True, False: False, "false": False, "0": False}
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


async def read_fields(request: Request) -> dict[str, Any]:
    """All fields by name, files as `Upload`; the body overrides the query string."""
    async with open_fields(request) as given:
        return {name: await _read_value(value) for name, value in given.items()}


@asynccontextmanager
async def open_fields(request: Request) -> AsyncIterator[dict[str, Any]]:
    """The same with files that are open inside the block, large ones on the disk."""
    given: dict[str, Any] = dict(request.query_params)
    if _content_type(request) in FORMS:
        async with request.form(max_files=2, max_fields=100) as form:
            yield given | dict(form.items())
    else:
        yield given | _json_fields(await request.body())


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _json_fields(body: bytes) -> dict[str, Any]:
    if not body.strip():
        return {}
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):  # ValueError also for a number of too many digits
        raise UsageError("the body is neither JSON in UTF-8 nor a form with its content type") from None
    if not isinstance(values, dict):
        raise UsageError("the body must be a JSON object with the fields of the request")
    return values


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


async def read_glossary(given: Mapping[str, Any], limits: ServeSettings, name: str = "glossary") -> Glossary:
    """The terms of a field: lines of source TAB target, as text or as a file, or an object of terms."""
    value = given.get(name)
    if not value:
        return NO_TERMS
    if isinstance(value, UploadFile):
        value = (await value.read(limits.body)).decode("utf-8", "replace")
    if isinstance(value, Upload):
        value = value.content.decode("utf-8", "replace")
    if isinstance(value, str):
        value = value.splitlines()
        parse = partial(Glossary.parse, value, name)
    elif isinstance(value, dict) and all(isinstance(each, str) for each in value.values()):
        parse = partial(Glossary.of, value)
    else:
        raise UsageError(f"Invalid request: {name} must be lines of source TAB target, or an object of terms")
    if len(value) > limits.terms:
        raise UsageError(f"Invalid request: {name} has {len(value)} terms; the limit is {limits.terms}")
    return await run_in_threadpool(parse)


async def _read_value(value: Any) -> Any:
    """Read a file's content before its form is closed; the guard limits its size."""
    return Upload(value.filename or "", await value.read()) if isinstance(value, UploadFile) else value


def required_file(given: Mapping[str, Any], name: str) -> UploadFile:
    """The open file of a required multipart field."""
    value = given.get(name)
    if not isinstance(value, UploadFile):
        raise UsageError(f"Invalid request: missing {name} parameter; send a file as multipart/form-data")
    return value
