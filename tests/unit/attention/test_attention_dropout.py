from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forked import run_code
from regard.attention import dropout
from regard.attention.dropout import LEVELS, Dropout, drop, kept


@pytest.fixture(params=["plain", "compiled"])
def way(request, monkeypatch):
    """The eager implementation, and the one for compiled code."""
    if request.param == "compiled":
        monkeypatch.setattr(dropout.torch.compiler, "is_compiling", lambda: True)


@settings(max_examples=20)
@given(rate=st.floats(0.01, 0.95), seed=st.integers(0, 10**6), compiled=st.booleans())
def test_so_many_are_dropped_and_the_mean_stays(rate, seed, compiled):
    torch.manual_seed(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dropout.torch.compiler, "is_compiling", lambda: compiled)
        y = drop(torch.ones(300, 401), rate)
    exact = rate if compiled else round(rate * LEVELS) / LEVELS
    assert abs(exact - rate) <= 0.5 / LEVELS
    error = (exact * (1 - exact) / y.numel()) ** 0.5
    assert (y == 0).double().mean().item() == pytest.approx(exact, abs=6 * error)
    assert y[y != 0].unique().tolist() == pytest.approx([1 / (1 - exact)])


@pytest.mark.usefixtures("way")
def test_each_place_is_drawn_for_itself():
    """Neighbouring elements share a word of random bits; they are dropped together as often as independent ones."""
    torch.manual_seed(1)
    dropped = drop(torch.ones(1 << 18), 0.25) == 0
    for far in range(1, 9):
        together = (dropped[far:] & dropped[:-far]).double().mean().item()
        assert together == pytest.approx(0.25**2, abs=0.003)
    for place in range(4):
        assert dropped[place::4].double().mean().item() == pytest.approx(0.25, abs=0.01)


@pytest.mark.usefixtures("way")
def test_the_same_seed_drops_the_same_and_the_next_draw_another():
    masks = []
    for _ in range(2):
        torch.manual_seed(3)
        masks.append([drop(torch.ones(7, 9), 0.5) for _ in range(2)])
    assert all(map(torch.equal, *masks)) and not torch.equal(*masks[0])


@pytest.mark.usefixtures("way")
def test_the_gradient_is_dropped_where_the_value_was():
    x = torch.randn(5, 6, 7, requires_grad=True)
    y = drop(x, 0.3)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x, y)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_any_kind_of_number_and_any_layout(kind):
    y = drop(torch.ones(33, 3, dtype=kind).t(), 0.5)
    assert y.dtype == kind and y.shape == (3, 33) and set(y.unique().tolist()) == {0.0, 2.0}
    assert drop(torch.ones(0, 3), 0.5).shape == (0, 3)


@pytest.mark.usefixtures("way")
def test_nothing_and_everything():
    x = torch.randn(4, 4)
    assert drop(x, 0.0) is x and not drop(x, 1.0).any()
    module = Dropout(0.5)
    assert module.eval()(x) is x and not torch.equal(module.train()(x), x)


def test_a_compilers_numbers_are_the_hash_they_should_be():
    """Compared with the same two rounds in unsigned integers, which wrap around by themselves."""
    x, rate = torch.ones(37, 1001), 0.3
    torch.manual_seed(5)
    found = kept(x, rate)
    torch.manual_seed(5)
    first, second = torch.randint(-(1 << 31), 1 << 31, (2,)).to(torch.int32).numpy().view(np.uint32)
    mixed = np.arange(x.numel(), dtype=np.uint32) ^ first
    mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x21F0AAAD) ^ second
    mixed = (mixed ^ (mixed >> np.uint32(15))) * np.uint32(0xD35A2D97)
    mixed ^= mixed >> np.uint32(15)
    expected = mixed.view(np.int32).astype(np.int64) + (1 << 31) >= rate * (1 << 32)
    np.testing.assert_array_equal(found.numpy().ravel(), expected)


def test_two_draws_have_nothing_to_do_with_each_other():
    """Of 60 draws, no two are correlated at any shift."""
    torch.manual_seed(2)
    size = 1 << 12
    draws = torch.stack([kept(torch.ones(size), 0.5) for _ in range(60)]).double() * 2 - 1
    spectra = torch.fft.rfft(draws)
    alike = torch.fft.irfft(spectra[:, None] * spectra.conj()[None]) / size  # correlation at every cyclic shift
    first, second = torch.triu_indices(60, 60, offset=1)
    assert alike[first, second].abs().max() < 6.5 / size**0.5  # 5.4 is expected as the largest of 7 million


COMPILED = """
import torch
from regard.attention.dropout import drop

@torch.compile(backend="aot_eager", fullgraph=True, dynamic=True)  # inductor would need a C++ compiler
def twice(x):
    return drop(drop(x, 0.1), 0.5)

for rows in (300, 411):
    torch.manual_seed(1)
    x = torch.randn(rows, 400, requires_grad=True)
    y = twice(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x, y)
    torch.manual_seed(1)
    torch.randn(rows, 400)
    assert torch.equal(twice(x), y) and not torch.equal(twice(x), y)
    assert abs((y == 0).double().mean().item() - 0.55) < 0.01, (y == 0).double().mean()
print("fine")
"""


def test_compiled_code_draws_the_same_forward_and_backward(tmp_path: Path):
    """In a separate process, because compiled code must not contain the shape checks of the test run."""
    _, output, messages = run_code(COMPILED, tmp_path)
    assert output == "fine\n", messages[-2000:]
