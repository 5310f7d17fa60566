"""Shapes checked by beartype in tests: of every function, its first calls in each test.

Checking one call of a small function takes longer than the call, and a search makes thousands of the same kind: with
every call checked the suite took three times as long. `make faults` (REGARD_FAULT_COUNT) checks them all.
"""

import os
import sys
from collections.abc import Callable
from functools import reduce, wraps
from inspect import getattr_static
from typing import Any

from beartype import beartype

# How often a function is checked in a test. A call is checked twice, first its arguments and then with its result.
CHECKS = sys.maxsize if "REGARD_FAULT_COUNT" in os.environ else 100
_counts: dict[str, int] = {}
_unchecked: list[Any] = []


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """The type checker that jaxtyping calls: beartype, which lets go of a function when it has seen enough of it."""
    checked, name = beartype(function), f"{function.__module__}:{function.__qualname__}"

    @wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        _counts[name] = _counts.get(name, 0) + 1
        if _counts[name] == CHECKS:
            _let_go(function)
        return checked(*args, **kwargs)

    return counted


def begin_test() -> None:
    """Check every function anew."""
    _counts.clear()
    while _unchecked:
        del _unchecked.pop().__no_type_check__


def _let_go(function: Callable[..., Any]) -> None:
    """Mark the function as jaxtyping decorated it: marked so (PEP 484, no_type_check), it is called directly."""
    if "<locals>" in function.__qualname__:  # cannot be found by its name; it stays checked
        return
    found = reduce(getattr_static, function.__qualname__.split("."), sys.modules[function.__module__])
    decorated = getattr(found, "fget", None) or getattr(found, "__func__", None) or found
    decorated.__no_type_check__ = True  # type: ignore[attr-defined]
    _unchecked.append(decorated)
