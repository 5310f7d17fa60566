"""Agent-aware attention gives the numbers of the original implementation, with and without a mask over time."""

from pathlib import Path

import numpy as np
import pytest
import torch

from regard.attention import record
from regard.attention.cache import GrowingCache
from regard.data.sources import data_root
from regard.families.trajectories.agents import AgentAttention, Visibility

GOLDEN = Path(data_root()) / "goldens" / "agent_aware_attention.npz"
pytestmark = pytest.mark.skipif(not GOLDEN.is_file(), reason="needs the golden numbers")


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN) as stored:
        return {name: torch.from_numpy(stored[name]) for name in stored}


def layer(golden, heads):
    width = golden["x"].shape[-1]
    attention = AgentAttention(width, heads).eval()
    rows, own = (golden[f"weights/in_proj_weight{end}"].split(width) for end in ("", "_self"))
    biases, own_biases = (golden[f"weights/in_proj_bias{end}"].split(width) for end in ("", "_self"))
    names = ("query", "key", "value", "own_query", "own_key", "output")
    weights = (*rows, *own, golden["weights/out_proj.weight"])
    offsets = (*biases, *own_biases, golden["weights/out_proj.bias"])
    with torch.no_grad():
        for name, weight, bias in zip(names, weights, offsets, strict=True):
            part = getattr(attention, name)
            part.weight.copy_(weight)
            part.bias.copy_(bias)
    return attention


def find_heads(golden):
    """The number of heads is not among the golden numbers; the one with which they agree."""
    own = torch.eye(int(golden["agents"]), dtype=torch.bool).repeat(int(golden["steps"]), int(golden["steps"]))
    sight, x = Visibility(torch.ones_like(own)[None, None], own[None, None]), golden["x"].transpose(0, 1)
    for heads in (1, 2, 4, 8):
        with torch.no_grad():
            out = layer(golden, heads)(x, sight)
        if torch.allclose(out, golden["out"].transpose(0, 1), atol=1e-5):
            return heads, sight, x
    raise AssertionError("no number of heads gives the golden output")


@pytest.mark.parametrize("ending", ["", "_causal"])
def test_outputs_and_recorded_weights_agree(golden, ending):
    heads, sight, x = find_heads(golden)
    if ending:
        sight = sight._replace(mask=(golden["causal_mask"] == 0)[None, None])
    attention = layer(golden, heads)
    with record(attention) as looks, torch.no_grad():
        out = attention(x, sight)
    torch.testing.assert_close(out, golden[f"out{ending}"].transpose(0, 1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(looks["attend"].mean(dim=1), golden[f"attention{ending}"], rtol=1e-5, atol=1e-6)


def test_one_step_after_another_gives_the_causal_numbers(golden):
    heads, sight, x = find_heads(golden)
    agents, attention, cache = int(golden["agents"]), layer(golden, heads), GrowingCache(1)
    found = []
    with torch.no_grad():
        for begin in range(0, x.shape[1], agents):
            rows = slice(begin, begin + agents)
            so_far = Visibility(*(part[:, :, rows, : begin + agents] for part in sight))
            found.append(attention(x[:, rows], so_far, cache=cache))
    torch.testing.assert_close(torch.cat(found, 1), golden["out_causal"].transpose(0, 1), rtol=1e-5, atol=1e-6)
