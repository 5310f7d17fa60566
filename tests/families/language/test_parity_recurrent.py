"""Recurrent networks against torch's own modules and cells, with the same parameters."""

import pytest
import torch
from torch import nn

from regard.layers.recurrent import CELLS, KERNELS, Recurrent

TORCH_CELLS = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}


@pytest.mark.parametrize("kind", CELLS)
def test_cells_equal_torch_cells(kind):
    theirs = TORCH_CELLS[kind](3, 4)
    ours = CELLS[kind](theirs.weight_ih, theirs.weight_hh, theirs.bias_ih, theirs.bias_hh)
    x, state = torch.randn(5, 3), tuple(torch.randn(ours.parts, 5, 4))
    expected = theirs(x, state) if kind == "lstm" else (theirs(x, state[0]),)
    torch.testing.assert_close(ours(x, state), expected)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", KERNELS)
def test_equations_load_the_weights_of_a_torch_module_and_equal_it(kind, bidirectional):
    theirs = KERNELS[kind](3, 4, 2, bidirectional=bidirectional, batch_first=True)
    ours = Recurrent(kind, 3, 4, 2, bidirectional, fused=False)
    ours.kernel.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 5, 3)
    expected, final = theirs(x)
    output, state = ours(x)
    torch.testing.assert_close(output, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(state, torch.stack(final) if kind == "lstm" else final[None], atol=1e-6, rtol=1e-5)
