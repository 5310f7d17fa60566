"""Server-sent events of the page's own routes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from regard.serve.http.responses import error_response


async def server_sent_events(values: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    """Values as events, of which the last has `done`; an error after the first event becomes an event too."""
    began = done = False
    try:
        async for value in values:
            yield _event(value)
            began, done = True, "done" in value
        if not done:
            yield _event({"done": True})
    except Exception as error:
        if not began:
            raise
        yield f"data: {bytes(error_response('/api', error).body).decode()}\n\n"


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
