"""The convolutional encoder: its equation, its receptive field, and that padding has no effect."""

import math

import pytest
import torch

from regard.errors import ConfigError
from regard.layers.convolution import ConvolutionEncoder, GatedConvolution


def test_one_layer_is_a_gated_sum_of_neighbours():
    encoder = ConvolutionEncoder(width=4, depth=1, kernel=3)
    weight, bias = encoder.layers[0].convolution.weight, encoder.layers[0].convolution.bias
    x = torch.randn(1, 5, 4)
    around = torch.cat([torch.zeros(1, 1, 4), x, torch.zeros(1, 1, 4)], dim=1)[0]
    for t in range(5):
        mixed = sum(weight[:, :, k] @ around[t + k] for k in range(3)) + bias
        expected = (x[0, t] + mixed[:4] * mixed[4:].sigmoid()) * math.sqrt(0.5)
        torch.testing.assert_close(encoder(x)[0, t], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("depth", "kernel"), [(1, 3), (2, 5), (4, 3), (3, 1)])
def test_receptive_field_grows_with_depth_and_kernel_and_ends_exactly_there(depth, kernel):
    encoder = ConvolutionEncoder(width=8, depth=depth, kernel=kernel)
    assert encoder.receptive_field == 1 + depth * (kernel - 1)
    x = torch.randn(1, 31, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(encoder(x)[0, 15].sum(), x)
    seen = gradient[0].abs().sum(dim=-1) > 0
    reach = encoder.receptive_field // 2
    assert seen.tolist() == [abs(t - 15) <= reach for t in range(31)]


def test_a_sentence_gives_the_same_alone_and_in_a_padded_batch():
    encoder = ConvolutionEncoder(width=6, depth=3, kernel=5)
    lengths = [2, 7, 4]
    mask = torch.arange(7)[None] < torch.tensor(lengths)[:, None]
    x = torch.randn(3, 7, 6)
    output = encoder(x, mask)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(output[row, :length], encoder(x[row : row + 1, :length])[0], atol=1e-6, rtol=1e-5)
        assert not output[row, length:].any()


def test_variance_survives_many_layers():
    torch.manual_seed(0)
    output = ConvolutionEncoder(width=64, depth=12, dropout=0.2)(torch.randn(4, 50, 64))
    assert 0.5 < output.std() < 2


def test_an_even_kernel_is_refused():
    with pytest.raises(ConfigError, match="choose an odd one, such as 5"):
        ConvolutionEncoder(8, 1, kernel=4)


def test_a_causal_layer_sees_the_tokens_before_and_no_later_one():
    layer = GatedConvolution(4, kernel=3, dropout=0.0, causal=True)
    x = torch.randn(1, 4, 9, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x, None)[0, :, 5].sum(), x)
    assert (gradient[0].abs().sum(dim=0) > 0).tolist() == [3 <= t <= 5 for t in range(9)]
