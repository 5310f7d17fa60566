"""The model of protein pairs: symmetrical, the same in a batch as alone, and its front against a plain loop."""

import pytest
import torch
from torch.nn import functional

from regard.errors import ConfigError
from regard.families.proteins.model import PRESETS, Interactor, InteractorConfig, ResidueFront


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(2)
    return Interactor(InteractorConfig(**PRESETS["tiny"], cross_depth=2)).eval()


def pair(one, other, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(21, (1, length), generator=generator) for length in (one, other)]


def score(model, first, second):
    masks = [torch.ones_like(each, dtype=torch.bool) for each in (first, second)]
    with torch.inference_mode():
        return model(first, masks[0], second, masks[1])


@pytest.mark.parametrize("lengths", [(5, 5), (16, 40), (3, 100), (64, 1)])
def test_swapping_the_proteins_changes_nothing(model, lengths):
    first, second = pair(*lengths)
    torch.testing.assert_close(score(model, first, second), score(model, second, first), atol=1e-6, rtol=0)
    assert abs(score(model, first, second) - score(model, first, pair(*lengths, seed=1)[1])) > 1e-6


def test_a_batch_gives_what_its_pairs_give_alone(model):
    pairs = [pair(*lengths, seed=number) for number, lengths in enumerate([(7, 50), (33, 4), (90, 16), (1, 1)])]
    batch = []
    for side in (0, 1):
        longest = max(each[side].shape[1] for each in pairs) + 5
        rows = [functional.pad(each[side], (0, longest - each[side].shape[1]), value=20) for each in pairs]
        real = [torch.arange(longest)[None] < each[side].shape[1] for each in pairs]
        batch += [torch.cat(rows), torch.cat(real)]
    with torch.inference_mode():
        together = model(*batch)
    alone = torch.cat([score(model, *each) for each in pairs])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


def test_the_front_is_a_convolution_and_a_maximum_by_hand():
    torch.manual_seed(0)
    front = ResidueFront(3, 4, 3, (2,), 0.0).eval()
    x, mask = torch.randn(1, 5, 3), torch.tensor([[True, True, True, False, False]])
    found, real = front(x, mask)
    stage, alone = front.stages[0], x[0, :3]
    padded = functional.pad(alone, (0, 0, 1, 1))
    weight, bias = stage.convolution.weight, stage.convolution.bias
    rows = torch.stack([(padded[place : place + 3].T * weight).sum((1, 2)) + bias for place in range(3)])
    rows = functional.gelu(functional.layer_norm(rows, (4,)))
    expected = torch.stack([rows[:2].amax(0), rows[2]])
    torch.testing.assert_close(found[0, :2], expected, atol=1e-6, rtol=0)
    assert real.tolist() == [[True, True, False]] and not found[0, 2].any()


def test_impossible_sizes_are_refused():
    with pytest.raises(ConfigError, match="kernel = 4"):
        InteractorConfig(kernel=4)
    with pytest.raises(ConfigError, match="even width"):
        InteractorConfig(width=9, heads=3)
    with pytest.raises(ConfigError, match="pools"):
        InteractorConfig(pools=())
    assert InteractorConfig().residues_per_token == 16
