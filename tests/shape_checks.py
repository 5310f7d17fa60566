"""Shape checks by beartype in tests: the first calls of every function in each test are checked.

Checking a call of a small function takes longer than the call, and a search makes thousands of calls. With every call
checked, the suite took three times as long. `make faults` (REGARD_FAULT_COUNT) checks all calls.
"""

import os
import re
import sys
from collections.abc import Callable
from functools import reduce, wraps
from inspect import getattr_static
from typing import Any

from beartype import beartype

# The number of checks of a function per test. A call is checked twice: its arguments, then its result.
ALL = "REGARD_FAULT_COUNT" in os.environ
CHECKS = sys.maxsize if ALL else 6
SHAPE = re.compile(r"\b(Bool|Complex|Float|Int|Num|Shaped|UInt8)\[")  # types of jaxtyping
_counts: dict[str, int] = {}
_unchecked: list[Any] = []


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """The type checker that jaxtyping calls: beartype, until a function has been checked often enough.

    beartype writes a checker at a function's first call: most processes call few of the functions they import. A
    function inside a function is a new one at every call, and its checker takes longer to write than the call.
    """
    if "<locals>" in function.__qualname__ and not ALL:
        return function
    if function.__module__.startswith("regard.families.") and not _has_shapes(function):
        return function
    checked, name = None, f"{function.__module__}:{function.__qualname__}"

    @wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        checked = checked or beartype(_without_checked_arguments(function))
        _counts[name] = _counts.get(name, 0) + 1
        if _counts[name] == CHECKS:
            _let_go(function)
        return checked(*args, **kwargs)

    return counted


def _has_shapes(function: Callable[..., Any]) -> bool:
    """Whether a signature says the shape of a tensor; families also have tasks, recipes and verbs, which have none."""
    return any(SHAPE.search(str(hint)) for hint in function.__annotations__.values())


def begin_test() -> None:
    """Start to check every function again."""
    _counts.clear()
    while _unchecked:
        del _unchecked.pop().__no_type_check__


def _without_checked_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """jaxtyping checks a call's arguments with a function that returns Any, then the arguments and the result with
    another one. The second need not check the arguments again: jaxtyping remembers the sizes that they gave to names.
    """
    hints = function.__annotations__
    if hints.get("return", Any) is not Any:
        function.__annotations__ = dict.fromkeys(hints, Any) | {"return": hints["return"]}
    return function


def _let_go(function: Callable[..., Any]) -> None:
    """Mark the function that jaxtyping decorated with no_type_check (PEP 484): jaxtyping then calls it directly."""
    try:
        found = reduce(getattr_static, function.__qualname__.split("."), sys.modules[function.__module__])
    except AttributeError:  # a test has put something else in the place of its class; it stays checked
        return
    decorated = getattr(found, "fget", None) or getattr(found, "__func__", None) or found
    decorated.__no_type_check__ = True  # type: ignore[attr-defined]
    _unchecked.append(decorated)
