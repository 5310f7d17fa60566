"""Cases of `make faults` beside those of `make test`."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def combined(*values: Iterable[Any], usual: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Every combination of the values, for `parametrize`; those that are not the usual ones are marked `full`."""
    cases = list(itertools.product(*values))
    assert set(usual) <= set(cases)
    return [case if case in usual else pytest.param(*case, marks=pytest.mark.full) for case in cases]
