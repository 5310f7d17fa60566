"""Shape checks in tests: wrong shapes fail in every test, however often a function was called before."""

import pytest
import torch
from jaxtyping import TypeCheckError

import shape_checks
from regard.attention.core import attend


def wrong() -> None:
    """Calls with keys of another width than the queries."""
    attend(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 5), torch.randn(1, 2, 3, 4))


@pytest.mark.parametrize("test", range(2))
def test_the_first_calls_in_a_test_are_checked_and_the_others_are_not(test: int) -> None:
    with pytest.raises(TypeCheckError):
        wrong()
    q = torch.randn(1, 2, 3, 4)
    for _ in range(shape_checks.CHECKS):
        attend(q, q, q)
    with pytest.raises(RuntimeError, match="size"):  # torch's own error: the shape check has ended
        wrong()
