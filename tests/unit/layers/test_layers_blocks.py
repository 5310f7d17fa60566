"""The options of blocks against their formulas."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from regard.errors import ConfigError
from regard.layers.blocks import ACTIVATIONS, DropPath, FeedForward, Residual, even, keep_half


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_gated_feed_forward_is_its_formula(activation, bias):
    torch.manual_seed(0)
    block, x = FeedForward(6, 9, activation, gated=True, bias=bias), torch.randn(2, 3, 6)
    assert {name.split(".")[1] for name, _ in block.named_parameters()} == ({"weight", "bias"} if bias else {"weight"})
    expected = block.down(ACTIVATIONS[activation](block.gate(x)) * block.up(x))
    torch.testing.assert_close(block(x), expected)


def test_activations_are_their_formulas():
    x = torch.linspace(-4, 4, 101)
    tanh = 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))  # GPT-2's
    torch.testing.assert_close(ACTIVATIONS["gelu_new"](x), tanh)
    torch.testing.assert_close(ACTIVATIONS["gelu"](x), x * torch.special.ndtr(x))
    torch.testing.assert_close(ACTIVATIONS["swish"](x), x * torch.sigmoid(x))
    torch.testing.assert_close(ACTIVATIONS["quick_gelu"](x), x / (1 + torch.exp(-1.702 * x)))


def test_a_compiler_gets_the_same_gelu_written_otherwise(monkeypatch):
    x = torch.linspace(-12, 12, 2001, dtype=torch.float64, requires_grad=True)
    expected = functional.gelu(x, approximate="tanh")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    found = ACTIVATIONS["gelu_new"](x)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(y.sum(), x)[0] for y in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("order", ["pre", "post", "branch"])
def test_a_residual_takes_any_norm(order):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8)
    block = Residual(8, 0.0, order, partial(nn.RMSNorm, eps=0.5))
    nn.init.normal_(block.norm.weight)

    def rms(y):
        return y / (y.square().mean(-1, keepdim=True) + 0.5).sqrt() * block.norm.weight

    expected = {"pre": x + rms(x).sin(), "post": rms(x + x.sin()), "branch": x + rms(x.sin())}
    torch.testing.assert_close(block(x, torch.sin), expected[order])


def test_drop_path_leaves_whole_examples_out_and_keeps_the_mean():
    torch.manual_seed(0)
    drop, x = DropPath(0.25), torch.ones(4000, 2, 3)
    dropped = drop(x)
    assert ((dropped == 0).all(dim=(1, 2)) | torch.isclose(dropped, torch.tensor(4 / 3)).all(dim=2).all(dim=1)).all()
    assert dropped.mean().item() == pytest.approx(1, abs=0.03)
    assert drop.eval()(x) is x
    block = Residual(3, 0.0, "pre", drop_path=0.5)
    kept = (block(x, torch.ones_like) != x).all(dim=(1, 2))
    assert kept.float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_a_feed_forward_may_widen():
    assert FeedForward(6, 9, outputs=4)(torch.randn(2, 5, 6)).shape == (2, 5, 4)


@pytest.mark.parametrize("rows", [1, 7, 8, 13])
@pytest.mark.parametrize("biased", [True, False])
def test_rows_of_zeros_change_nothing(rows, biased):
    torch.manual_seed(rows)
    x, weight, bias = torch.randn(5, 6), torch.randn(rows, 6), torch.randn(rows) if biased else None
    wider, longer = even(weight, bias)
    multiple = 8 if rows < 4096 else 64
    assert len(wider) % multiple == 0 and len(wider) - rows < multiple
    torch.testing.assert_close(functional.linear(x, wider, longer)[:, :rows], functional.linear(x, weight, bias))


@pytest.mark.parametrize("order", ["pre", "post", "branch"])
def test_half_a_stream_is_the_stream_rounded_and_only_under_autocast(order, monkeypatch):
    """bf16 in and out of every branch, within bf16 precision of the float32 result."""
    # On a CPU without bf16, torch would disable oneDNN for good, and so for all later tests.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    torch.manual_seed(0)
    layers = nn.ModuleList(FeedForward(32, 64) for _ in range(4))
    branches = nn.ModuleList(Residual(32, 0.0, order) for _ in range(4))
    x = torch.randn(8, 5, 32)

    def run():
        seen, out = [], x
        for branch, layer in zip(branches, layers, strict=True):
            out = branch(out, layer)
            seen.append(out)
        return seen

    plain = run()
    with torch.autocast("cpu", torch.bfloat16):
        single = run()
    names = list(branches.state_dict())
    keep_half(branches)
    assert list(branches.state_dict()) == names
    for before, after in zip(plain, run(), strict=True):
        torch.testing.assert_close(after, before, atol=1e-6, rtol=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        half = run()
    assert {each.dtype for each in single} == {torch.float32} and {each.dtype for each in half} == {torch.bfloat16}
    for exact, rounded in zip(plain, half, strict=True):
        torch.testing.assert_close(rounded.float(), exact, atol=0.1, rtol=0.02)


def test_only_layers_of_a_transformer_have_a_stream():
    with pytest.raises(ConfigError, match="no layers of a Transformer; set bf16"):
        keep_half(nn.Linear(2, 2))
