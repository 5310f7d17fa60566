"""Properties of every Transformer encoder-decoder, for all its options."""

import pytest
import torch
from torch import nn

from regard.families.catalog import MODELS
from regard.families.language.t5 import V1_1

SIZES = {
    "transformer": {"target_vocab": 13, "ffn_width": 32},
    "t5": {"target_vocab": 11, "head_width": 4, "ffn_width": 24, "buckets": 8, "max_distance": 10},
}
VARIANTS = [
    ("transformer", {}),
    ("transformer", {"norm": "pre", "activation": "gelu"}),
    ("transformer", {"positions": "learned"}),
    ("transformer", {"positions": "rotary"}),
    ("transformer", {"positions": "linear"}),
    ("transformer", {"join_positions": "concatenate"}),
    ("transformer", {"positions": "sinusoidal_halves", "activation": "swish", "output_bias": True}),
    ("transformer", {"encoder": "convolution"}),
    ("transformer", {"tie": "none"}),
    ("transformer", {"tie": "all", "target_vocab": 11}),
    ("t5", {}),
    ("t5", V1_1),
    ("t5", {"head_width": 3}),
    ("t5", {"gated": True, "activation": "swish", "buckets": 4, "max_distance": 5}),
]


@pytest.fixture(params=VARIANTS, ids=lambda variant: "-".join([variant[0], *map(str, variant[1].values())]))
def model(request) -> nn.Module:
    name, changes = request.param
    torch.manual_seed(0)
    sizes = {"source_vocab": 11, "width": 16, "heads": 4, "encoder_depth": 2, "decoder_depth": 3, **SIZES[name]}
    return MODELS[name].model(MODELS[name].config(**{**sizes, **changes})).eval()


def batch(source: int = 14, target: int = 9) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randint(4, 11, (3, source), generator=generator),
        torch.arange(source) < torch.tensor([source, 2, 7])[:, None],
        torch.randint(4, 11, (3, target), generator=generator),
    )


def test_stepping_equals_teacher_forcing(model: nn.Module):
    source, mask, inputs = batch()
    state = model.start(source, mask)
    steps = [model.step(inputs[:, t : t + 1], state) for t in range(inputs.shape[1])]
    torch.testing.assert_close(torch.cat(steps, dim=1), model(source, mask, inputs), atol=1e-5, rtol=1e-5)


def test_padding_changes_nothing(model: nn.Module):
    source, mask, inputs = batch()
    whole = model(source, mask, inputs)
    for row, length in enumerate(mask.sum(1).tolist()):
        alone = model(source[row : row + 1, :length], mask[row : row + 1, :length], inputs[row : row + 1])
        torch.testing.assert_close(whole[row : row + 1], alone, atol=1e-5, rtol=1e-5)


def test_every_parameter_learns(model: nn.Module):
    model.train()(*batch()).square().sum().backward()
    dead = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # A constant added to every key does not change a softmax, so key biases have no gradient.
    assert [name for name in dead if not name.endswith("key.bias")] == []


def test_a_grid_of_hypotheses_equals_separate_decodings(model: nn.Module):
    source, mask, _ = batch()
    first, second = torch.tensor([[4], [5], [6]]), torch.tensor([[7, 8], [9, 4], [5, 6]])
    state = model.start(source, mask)
    model.step(first, state)
    state.reorder(torch.zeros(3, 2, dtype=torch.long))
    grid = model.step(second, state)
    for w in range(2):
        expected = model(source, mask, torch.cat([first, second[:, w : w + 1]], dim=1))[:, -1]
        torch.testing.assert_close(grid[:, w], expected, atol=1e-5, rtol=1e-5)
    state.reorder(torch.tensor([[1, 0], [1, 1], [0, 0]]))
    state.keep(torch.tensor([0, 2]))
    after = model.step(torch.tensor([[4, 5], [6, 7]]), state)
    told = torch.tensor([[4, 8, 4], [4, 7, 5], [6, 5, 6], [6, 5, 7]])
    rows = torch.tensor([0, 0, 2, 2])
    torch.testing.assert_close(after.flatten(0, 1), model(source[rows], mask[rows], told)[:, -1], atol=1e-5, rtol=1e-5)
