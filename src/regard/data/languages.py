"""Language codes compared as people write them: `en`, `EN`, `en-US` and `en_us`."""

from __future__ import annotations

from collections.abc import Iterable


def _subtags(code: str) -> list[str]:
    return code.replace("_", "-").lower().split("-")


def same_language(one: str, other: str) -> bool:
    """Whether two codes agree as far as both are specific: en = en-US, but pt-BR is not pt-PT."""
    return all(a == b for a, b in zip(_subtags(one), _subtags(other), strict=False))


def find_language(codes: Iterable[str], wanted: str) -> str | None:
    """The code that means the wanted language, an equal one before a more or less specific one."""
    alike = [code for code in codes if same_language(code, wanted)]
    return next((code for code in alike if _subtags(code) == _subtags(wanted)), alike[0] if alike else None)
