"""API keys."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers


class ApiKeys:
    """The keys of a server; without any, no key is needed."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = [key.encode() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._keys)

    def accept(self, given: str) -> bool:
        """Whether this is one of the keys; compared in constant time, against timing attacks."""
        matches = [hmac.compare_digest(given.encode("utf-8", "replace"), key) for key in self._keys]
        return any(matches) or not self._keys


def bearer_key(headers: Headers) -> str:
    """The key in an Authorization header."""
    kind, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else ""
