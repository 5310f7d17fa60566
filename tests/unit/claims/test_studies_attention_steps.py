"""The attention layer step by step, against numpy and torch's own multi-head attention."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.claims.steps import LECTURE_SCORES, TYPE, AttentionLayer, attention_steps, lecture_example
from regard.errors import UsageError


def softmax(x):
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def named(layer):
    return {step.name: step.matrices.numpy() for step in attention_steps(layer).steps}


def test_the_lectures_example_has_the_right_numbers():
    weights = named(lecture_example(6))["Attention weights"][0]
    assert np.allclose(weights, softmax(np.array(LECTURE_SCORES) / np.sqrt(3)))
    assert weights[0] == pytest.approx([0.905, 0.090, 0.005], abs=5e-4)
    masked = named(lecture_example(7))
    assert masked["Attention weights"][0][0].tolist() == [1, 0, 0]
    assert np.isneginf(masked["Masked"][0][np.triu_indices(3, 1)]).all()


def test_every_step_adds_what_its_name_says():
    found = [named(lecture_example(step)) for step in range(1, 9)]
    assert np.allclose(found[0]["Similarities"], np.tanh(np.array(LECTURE_SCORES[:1])[:, None] + np.eye(3)).sum(-1))
    assert np.allclose(found[1]["Similarities"][0], LECTURE_SCORES[0])
    assert "Scaled" not in found[1] and "Scaled" in found[2]
    assert [len(each["Outputs"][0]) for each in found] == [1, 1, 1, 3, 3, 3, 3, 3]
    assert "Keys" not in found[3] and {"Keys", "Values"} <= found[4].keys()
    assert "Queries" not in found[4] and "Queries" in found[5]
    assert "Masked" not in found[5] and "Masked" in found[6]
    assert len(found[7]["Attention weights"]) == 3 and found[7]["Output of all heads"].shape == (1, 3, 3)
    with pytest.raises(UsageError, match="steps 1 to 8"):
        lecture_example(9)


def test_heads_are_those_of_torch():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 6, generator=generator, dtype=TYPE)
    peer = torch.nn.MultiheadAttention(6, 3, bias=False, batch_first=True, dtype=TYPE)
    w_q, w_k, w_v = (part.detach().T for part in peer.in_proj_weight.chunk(3))
    layer = AttentionLayer(x, None, w_q, w_k, w_v, peer.out_proj.weight.detach().T, scaled=True, causal=True, heads=3)
    forbidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    out, weights = peer(x[None], x[None], x[None], attn_mask=forbidden, average_attn_weights=False)
    found = named(layer)
    assert np.allclose(found["Attention weights"], weights[0].detach())
    assert np.allclose(found["Output of all heads"][0], out[0].detach())
    assert attention_steps(layer).fused_difference < 1e-12


@given(order=st.permutations(range(4)), causal=st.booleans())
def test_only_a_mask_sees_the_order_of_the_inputs(order, causal):
    generator = torch.Generator().manual_seed(1)
    x, w = torch.randn(2, 4, 4, generator=generator, dtype=TYPE)
    layer = AttentionLayer(x, key_weights=w, causal=causal, order=list(order))
    assert (attention_steps(layer).order_difference < 1e-9) == (not causal or list(order) == [0, 1, 2, 3])
    asked = replace(layer, queries=x[:2], causal=False)
    assert attention_steps(asked).order_difference < 1e-9  # the outputs belong to the queries, which do not move


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"key_weights": torch.eye(2, dtype=TYPE)}, "X has 3 columns, but W_K has 2 rows"),
        ({"key_weights": torch.ones(3, 2, dtype=TYPE)}, "queries are 3 wide, but keys 2"),
        ({"heads": 2}, "2 heads do not divide"),
        ({"output_weights": torch.ones(4, 3, dtype=TYPE)}, "3 columns together, but W_O has 4 rows"),
        ({"order": [0, 0, 1]}, "order names each of the 3 inputs once"),
        ({"causal": True, "queries": torch.ones(4, 3, dtype=TYPE), "query_weights": None}, "there are 3 and 4"),
    ],
)
def test_shapes_that_do_not_fit_are_named(change, words):
    with pytest.raises(UsageError, match=words):
        attention_steps(replace(lecture_example(6), **change))
