import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from regard.attention import dropout
from regard.attention.dropout import LEVELS, Dropout, drop


@settings(max_examples=20)
@given(rate=st.floats(0.01, 0.95), seed=st.integers(0, 10**6))
def test_so_many_are_dropped_and_the_mean_stays(rate, seed):
    torch.manual_seed(seed)
    y = drop(torch.ones(300, 401), rate)
    exact = round(rate * LEVELS) / LEVELS
    assert abs(exact - rate) <= 0.5 / LEVELS
    error = (exact * (1 - exact) / y.numel()) ** 0.5
    assert (y == 0).double().mean().item() == pytest.approx(exact, abs=6 * error)
    assert y[y != 0].unique().tolist() == pytest.approx([1 / (1 - exact)])


def test_each_place_is_drawn_for_itself():
    """Of neighbours, which share a word of random bits, as many are dropped together as chance has it."""
    torch.manual_seed(1)
    dropped = drop(torch.ones(1 << 18), 0.25) == 0
    for far in range(1, 9):
        together = (dropped[far:] & dropped[:-far]).double().mean().item()
        assert together == pytest.approx(0.25**2, abs=0.003)
    for place in range(4):
        assert dropped[place::4].double().mean().item() == pytest.approx(0.25, abs=0.01)


def test_the_same_seed_drops_the_same_and_the_next_draw_another():
    masks = []
    for _ in range(2):
        torch.manual_seed(3)
        masks.append([drop(torch.ones(7, 9), 0.5) for _ in range(2)])
    assert all(map(torch.equal, *masks)) and not torch.equal(*masks[0])


def test_the_gradient_is_dropped_where_the_value_was():
    x = torch.randn(5, 6, 7, requires_grad=True)
    y = drop(x, 0.3)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x, y)


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_any_kind_of_number_and_any_layout(kind):
    y = drop(torch.ones(33, 3, dtype=kind).t(), 0.5)
    assert y.dtype == kind and y.shape == (3, 33) and set(y.unique().tolist()) == {0.0, 2.0}
    assert drop(torch.ones(0, 3), 0.5).shape == (0, 3)


def test_nothing_and_everything():
    x = torch.randn(4, 4)
    assert drop(x, 0.0) is x and not drop(x, 1.0).any()
    module = Dropout(0.5)
    assert module.eval()(x) is x and not torch.equal(module.train()(x), x)


def test_a_compiler_is_given_torchs_own(monkeypatch):
    monkeypatch.setattr(dropout.torch.compiler, "is_compiling", lambda: True)
    x = torch.ones(100)
    torch.manual_seed(0)
    ours = drop(x, 0.5)
    torch.manual_seed(0)
    assert torch.equal(ours, functional.dropout(x, 0.5))
