"""Which of several models translate from one language into another: one, or two through a third language."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Protocol, TypeVar

from regard.data.formats.languages import find_language
from regard.errors import UsageError


class Translates(Protocol):
    """What says which languages it reads and writes."""

    @property
    def source_languages(self) -> tuple[str, ...]: ...

    @property
    def target_languages(self) -> tuple[str, ...]: ...


M = TypeVar("M", bound=Translates)


def find_route(models: Sequence[M], source: str, target: str) -> tuple[M, ...]:
    """The model from one language into another or, if there is none, two through a pivot language."""
    starts = [each for each in models if find_language(each.source_languages, source)]
    for each in starts:
        if find_language(each.target_languages, target):
            return (each,)
    for first, second in product(starts, models):
        if pivot_between(first, second) is not None and find_language(second.target_languages, target):
            return first, second
    pairs = ", ".join(f"{'/'.join(each.source_languages)} to {'/'.join(each.target_languages)}" for each in models)
    raise UsageError(f"these models do not lead from {source} to {target}, also not through a third language: {pairs}")


def pivot_between(first: Translates, second: Translates) -> str | None:
    """A language that the first model writes and the second reads, by the first one's code; None if there is none."""
    shared = (find_language(first.target_languages, code) for code in second.source_languages)
    return next(filter(None, shared), None)
