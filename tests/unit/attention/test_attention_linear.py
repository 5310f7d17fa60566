"""Both orders of the product against torch's own layer, in values and gradients."""

import pytest
import torch
from torch import nn

from regard.attention.linear import FEW_ROWS, WIDE, Linear, linear


@pytest.mark.parametrize("shape", [(1, 1), (8, 1), (4, 5), (48, 1), (49, 1), (3, 2, 2), (0, 1)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("width", [16, WIDE])
def test_the_layer_equals_torchs_in_values_and_gradients(shape, bias, width):
    torch.manual_seed(0)
    ours, theirs = Linear(width, 24, bias=bias), nn.Linear(width, 24, bias=bias)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(*shape, width)
    y, expected = ours(x), theirs(x)
    assert y.is_contiguous()
    torch.testing.assert_close(y, expected, atol=1e-5, rtol=0)
    y.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, atol=1e-3, rtol=1e-5)


def test_a_transposed_input_is_read_in_its_own_order():
    x = torch.randn(WIDE, FEW_ROWS.start).t()
    weight = torch.randn(10, WIDE)
    torch.testing.assert_close(linear(x, weight), x @ weight.t(), atol=1e-4, rtol=0)
