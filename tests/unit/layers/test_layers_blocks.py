"""The blocks' options against their formulas."""

from functools import partial

import pytest
import torch
from torch import nn

from regard.layers.blocks import ACTIVATIONS, FeedForward, Residual


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


@pytest.mark.parametrize("order", ["pre", "post"])
def test_a_residual_takes_any_norm(order):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8)
    block = Residual(8, 0.0, order, partial(nn.RMSNorm, eps=0.5))
    nn.init.normal_(block.norm.weight)

    def rms(y):
        return y / (y.square().mean(-1, keepdim=True) + 0.5).sqrt() * block.norm.weight

    expected = x + rms(x).sin() if order == "pre" else rms(x + x.sin())
    torch.testing.assert_close(block(x, torch.sin), expected)
