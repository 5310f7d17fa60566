"""`attend` against the readable reference, the lectures' worked example, and torch's own multi-head attention."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.attention import attend, attention_weights, core
from regard.attention import core as masks
from regard.attention.core import attention_scores
from regard.attention.dropout import drop


def heads(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=60)
@given(
    batch=st.integers(1, 3),
    groups=st.integers(1, 2),
    repeat=st.integers(1, 3),
    queries=st.integers(1, 6),
    extra=st.integers(0, 4),
    causal=st.booleans(),
    masked=st.booleans(),
    biased=st.booleans(),
    scale=st.sampled_from([None, 0.3]),
    seed=st.integers(0, 10_000),
)
def test_fast_path_equals_weights_times_values(
    batch, groups, repeat, queries, extra, causal, masked, biased, scale, seed
):
    keys, count = queries + extra, groups * repeat
    q, k, v = (
        heads(batch, n, t, 4, seed=seed + i)
        for i, (n, t) in enumerate([(count, queries), (groups, keys), (groups, keys)])
    )
    mask = torch.rand(batch, 1, queries, keys, generator=torch.Generator().manual_seed(seed)) > 0.4 if masked else None
    bias = heads(1, count, queries, keys, seed=seed + 9) if biased else None
    weights = attention_weights(q, k, mask=mask, bias=bias, causal=causal, scale=scale)
    expected = weights @ v.repeat_interleave(repeat, dim=1)
    out = attend(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_written_out_it_is_the_same(monkeypatch, masked, groups):
    q, k, v = heads(2, 4, 5, 8), heads(2, groups, 5, 8, seed=1), heads(2, groups, 5, 8, seed=2)
    mask = heads(2, 1, 5, 5, seed=3) > 0 if masked else None
    bias = heads(1, 4, 5, 5, seed=4)
    fused = attend(q, k, v, mask=mask, bias=bias)
    monkeypatch.setattr(core, "_better_written_out", lambda *_: True)  # as compiled for a GPU with short rows
    torch.testing.assert_close(attend(q, k, v, mask=mask, bias=bias), fused)
    halves = attend(*(each.bfloat16() for each in (q, k, v)), mask=mask, bias=bias)
    assert halves.dtype == torch.bfloat16
    torch.testing.assert_close(halves.float(), fused, atol=0.05, rtol=0.05)


def test_worked_example_of_the_lectures():
    scores = torch.tensor([[31.0, 27, 22], [27, 42, 31], [22, 31, 37]])
    q = torch.eye(3)[None, None]  # scores = q kᵀ when k = scoresᵀ; the layer divides by √3
    k = scores.T[None, None].contiguous()
    weights = attention_weights(q, k)[0, 0]
    for row in range(3):
        exponentials = [math.exp((s - max(scores[row].tolist())) / math.sqrt(3)) for s in scores[row].tolist()]
        torch.testing.assert_close(weights[row], torch.tensor(exponentials) / sum(exponentials))
    masked = attention_weights(q, k, causal=True)[0, 0]
    assert (masked.triu(1) == 0).all()
    torch.testing.assert_close(masked.sum(-1), torch.ones(3))
    soft = torch.full((3, 3), -1e9).triu(1)[None, None]
    torch.testing.assert_close(attention_weights(q, k, bias=soft)[0, 0], masked)


def test_rows_that_may_look_nowhere_are_zero_on_every_path():
    q, k, v = heads(2, 2, 3, 4), heads(2, 2, 5, 4, seed=1), heads(2, 2, 5, 4, seed=2)
    q.requires_grad_(True)
    mask = torch.ones(2, 1, 3, 5, dtype=torch.bool)
    mask[0, 0, 1] = False
    for bias in (None, heads(1, 1, 3, 5)):
        out = attend(q, k, v, mask=mask, bias=bias)
        assert (out[0, :, 1] == 0).all()
        assert (attention_weights(q, k, mask=mask, bias=bias)[0, :, 1] == 0).all()
        out.sum().backward()
        assert q.grad.isfinite().all()


def test_causal_means_the_last_query_sees_the_last_key():
    expected = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]], dtype=torch.bool)
    assert torch.equal(masks.causal(2, 4)[0, 0], expected)
    weights = attention_weights(heads(1, 1, 2, 4), heads(1, 1, 4, 4, seed=1), causal=True)
    assert torch.equal(weights[0, 0] > 0, expected)


def test_a_float_mask_and_a_bool_bias_are_refused_with_words():
    q, k = heads(1, 1, 2, 4), heads(1, 1, 2, 4)
    with pytest.raises(TypeError, match="masks are bool"):
        attend(q, k, k, mask=torch.ones(1, 1, 2, 2))
    with pytest.raises(TypeError, match="a bias is float"):
        attend(q, k, k, bias=torch.ones(1, 1, 2, 2, dtype=torch.bool))


def test_scaling_keeps_the_softmax_from_saturating():
    q, k = heads(1, 1, 64, 512), heads(1, 1, 64, 512, seed=1)
    entropy = lambda w: -(w * w.clamp_min(1e-30).log()).sum(-1).mean()  # noqa: E731
    assert entropy(attention_weights(q, k)) > 3 * entropy(attention_weights(q, k, scale=1.0))
    torch.testing.assert_close(attention_scores(q, k).std(), torch.tensor(1.0), atol=0.05, rtol=0)


def test_self_attention_is_permutation_equivariant_without_positions():
    x, order = heads(1, 1, 6, 8), torch.randperm(6, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(attend(x, x, x)[:, :, order], attend(x[:, :, order], x[:, :, order], x[:, :, order]))


def test_the_plain_case_reaches_the_fused_kernel_without_a_mask(monkeypatch):
    seen = {}
    real = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *a, **k: seen.update(k) or real(*a, **k),
    )
    x = heads(1, 2, 4, 8)
    attend(x, x, x, causal=True)
    assert seen["is_causal"] and "attn_mask" not in seen
    attend(x[:, :, -1:], x, x, causal=True)  # one cached decoding step
    assert not seen["is_causal"] and "attn_mask" not in seen


@pytest.mark.parametrize("masked", [True, False])
def test_dropped_weights_are_those_of_the_reference_with_some_left_out(masked):
    q, k, v = heads(2, 4, 3, 8), heads(2, 2, 5, 8, seed=1), heads(2, 2, 5, 8, seed=2)
    q.requires_grad_(True)
    mask = torch.ones(2, 1, 3, 5, dtype=torch.bool)
    mask[0, 0, 1] = False
    settings = {"mask": mask if masked else None, "causal": True, "scale": 0.4}
    torch.manual_seed(5)
    out = attend(q, k, v, **settings, dropout=0.3)
    torch.manual_seed(5)
    expected = drop(attention_weights(q, k, **settings), 0.3) @ v.repeat_interleave(2, dim=1)
    assert torch.equal(out, expected)
    out.sum().backward()
    assert q.grad.isfinite().all()
    assert not masked or (out[0, :, 1] == 0).all()


@pytest.mark.parametrize("function", [attend, attention_weights])
def test_batch_elements_share_a_mask_or_bias_in_groups(function):
    q, k, v = (heads(6, 2, 3, 4, seed=seed) for seed in range(3))
    inputs = (q, k, v) if function is attend else (q, k)
    mask, bias = heads(3, 1, 3, 3, seed=4) > -1, heads(3, 2, 3, 3, seed=5)
    repeated = function(*inputs, mask=mask.repeat_interleave(2, dim=0), bias=bias.repeat_interleave(2, dim=0))
    torch.testing.assert_close(function(*inputs, mask=mask, bias=bias), repeated)
    with pytest.raises(ValueError, match="of 3 batch elements do not divide a batch of 6"):
        function(*inputs, mask=heads(2, 1, 3, 3) > -1, bias=bias)  # 2 and 3 groups
    with pytest.raises(ValueError, match="of 4 batch elements do not divide a batch of 6"):
        function(*inputs, mask=heads(4, 1, 3, 3) > -1)
