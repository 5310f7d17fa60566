"""Shape checks in tests: wrong shapes fail in every test, however often a function was called before."""

import pytest
import torch
from jaxtyping import Float, TypeCheckError, jaxtyped
from torch import Tensor

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


@jaxtyped(typechecker=shape_checks.check)
def first(x: Float[Tensor, "batch width"], y: Float[Tensor, "batch width"], wrong: bool) -> Float[Tensor, "batch"]:
    return (x + y)[0] if wrong else (x + y)[:, 0]


def test_arguments_and_results_are_checked_against_each_other() -> None:
    x = torch.ones(2, 3)
    assert first(x, x, False).shape == (2,)
    with pytest.raises(TypeCheckError, match="the parameters of"):
        first(x, torch.ones(2, 1), False)
    with pytest.raises(TypeCheckError, match="the parameters of"):
        first(x, x, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeCheckError, match="the return value of"):
        first(x, x, True)
