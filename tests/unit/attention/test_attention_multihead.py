"""MultiHeadAttention against torch's own, with caches, groups, memories and rotations."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from regard.attention import GrowingCache, MultiHeadAttention, Slots
from regard.attention import core as masks
from regard.attention.multihead import side_by_side
from regard.attention.positions import Rotary


def torch_twin(ours: MultiHeadAttention, width: int, heads: int) -> nn.MultiheadAttention:
    twin = nn.MultiheadAttention(width, heads, batch_first=True)
    with torch.no_grad():
        twin.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key.weight, ours.value.weight]))
        twin.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key.bias, ours.value.bias]))
        twin.out_proj.load_state_dict(ours.output.state_dict())
    return twin.eval()


@settings(max_examples=30)
@given(
    heads=st.sampled_from([1, 2, 4]),
    head_width=st.sampled_from([2, 8]),
    batch=st.integers(1, 3),
    queries=st.integers(1, 6),
    keys=st.integers(1, 6),
    cross=st.booleans(),
    causal=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_equals_torch(heads, head_width, batch, queries, keys, cross, causal, seed):
    torch.manual_seed(seed)
    width = heads * head_width
    keys = keys if cross else queries
    causal = causal and not cross
    ours = MultiHeadAttention(width, heads).eval()
    x, memory = torch.randn(batch, queries, width), torch.randn(batch, keys, width)
    real = torch.rand(batch, keys) > 0.3
    real[:, 0] = True
    there = memory if cross else x
    forbidden = ~masks.causal(queries, keys)[0, 0] if causal else None
    expected, _ = torch_twin(ours, width, heads)(x, there, there, key_padding_mask=~real, attn_mask=forbidden)
    out = ours(x, memory if cross else None, mask=masks.padding(real), causal=causal)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("rotary", [False, True])
def test_decoding_with_a_cache_equals_the_whole_sequence_at_once(kv_heads, rotary):
    layer, x, whole = decoded_at_once(kv_heads, rotary)
    cache = GrowingCache(3, capacity=2)
    parts = [layer(x[:, a:b], causal=True, cache=cache) for a, b in [(0, 3), (3, 4), (4, 5), (5, 7)]]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("rotary", [False, True])
def test_a_static_cache_goes_on_behind_what_was_read_and_can_be_used_again(kv_heads, rotary):
    layer, x, whole = decoded_at_once(kv_heads, rotary)
    slots = Slots(3, 1, 8)
    cache = layer.static_cache(slots)
    for read in (3, 1):
        prompt = GrowingCache(3)
        layer(x[:, :read], causal=True, cache=prompt)
        slots.reset(read)
        cache.reset_from(prompt)
        for t in range(read, 7):
            slots.open()
            torch.testing.assert_close(layer(x[:, t : t + 1], cache=cache), whole[:, t : t + 1], atol=1e-5, rtol=1e-5)


def decoded_at_once(kv_heads, rotary):
    torch.manual_seed(0)
    layer = MultiHeadAttention(16, 4, kv_heads=kv_heads, prepare=Rotary(4) if rotary else None).eval()
    x = torch.randn(3, 7, 16)
    return layer, x, layer(x, causal=True)


def test_reorder_and_keep_move_whole_rows():
    k = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 1, 2, 1)  # 2 sentences x 2 hypotheses, row number as content
    cache = GrowingCache(2)
    cache.append(k, k)
    cache.reorder(torch.tensor([[1, 1], [0, 0]]))
    moved, _ = cache.append(k[:, :, :1], k[:, :, :1])
    assert moved[:, 0, 1, 0].tolist() == [1, 1, 2, 2]
    cache.keep(torch.tensor([1]))
    assert cache.k[:, 0, 1, 0].tolist() == [2, 2]
    cache.reorder(torch.tensor([[1, 0, 0]]))
    assert len(cache.k) == 3


def test_hypotheses_in_static_slots_see_their_own_past_and_no_other():
    """Three hypotheses of two sentences are reordered at random. A growing cache copies entries; static slots index
    them."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(16, 4, kv_heads=2, prepare=Rotary(4)).eval()
    real = torch.tensor([[True, True, True], [False, True, True]])
    slots = Slots(2, 3, 64)
    static, growing, prompt = layer.static_cache(slots), GrowingCache(2), GrowingCache(2)
    read = torch.randn(2, 3, 16)
    for cache in (growing, prompt):
        layer(read, mask=masks.padding(real), causal=True, cache=cache)
    slots.reset(3, real)
    static.reset_from(prompt)
    growing.reorder(torch.zeros(2, 3, dtype=torch.long))
    for step in range(6):
        x = torch.randn(6, 1, 16)
        slots.open()
        seen = torch.cat([real, torch.ones(2, step + 1, dtype=torch.bool)], dim=1).repeat_interleave(3, 0)
        expected = layer(x, mask=masks.padding(seen), causal=True, cache=growing)
        torch.testing.assert_close(layer(x, cache=static), expected, atol=1e-5, rtol=1e-5)
        origin = torch.randint(3, (2, 3))
        slots.reorder(origin)
        growing.reorder(origin)


def test_static_storage_keeps_its_shape():
    slots = Slots(2, 2, 8)
    with pytest.raises(ValueError, match="cannot drop"):
        MultiHeadAttention(8, 2).static_cache(slots).keep(torch.tensor([1]))
    with pytest.raises(ValueError, match="2 hypotheses"):
        slots.reorder(torch.tensor([[0], [0]]))


def test_a_memory_projected_once_gives_the_same():
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 2, kv_width=6).eval()
    x, memory, real = (
        torch.randn(2, 3, 8),
        torch.randn(2, 5, 6),
        torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool(),
    )
    once = layer.remember(memory, masks.padding(real))
    torch.testing.assert_close(layer(x, once), layer(x, memory, mask=masks.padding(real)))


def test_a_memory_of_which_some_are_kept_is_the_same_where_the_others_stay():
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 2).eval()
    real = torch.arange(5) < torch.tensor([5, 2, 4, 3])[:, None]
    memory = layer.remember(torch.randn(4, 5, 8), masks.padding(real))
    first, second = torch.tensor([3, 0, 2]), torch.tensor([2, 0])
    lazy = memory.keep(first, in_place=True).keep(second, in_place=True)
    assert lazy.k is memory.k and lazy.sequences == 2
    x, expected = (
        torch.randn(2, 3, 8),
        memory._replace(**{part: getattr(memory, part)[[2, 3]] for part in ("k", "v", "mask")}),
    )
    for kept in (lazy, lazy.compact(), memory.keep(first).keep(second), memory.keep(first, in_place=True).keep(second)):
        torch.testing.assert_close(layer(x, kept), layer(x, expected))


def test_position_bias_and_bias_add_up():
    torch.manual_seed(0)
    relative = lambda q, keys: torch.arange(keys, dtype=torch.float32).expand(1, 1, q.shape[2], keys)  # noqa: E731
    plain, biased = MultiHeadAttention(8, 2), MultiHeadAttention(8, 2, position=relative)
    biased.load_state_dict(plain.state_dict())
    x = torch.randn(1, 4, 8)
    extra = torch.randn(1, 2, 4, 4)
    torch.testing.assert_close(biased(x, bias=extra), plain(x, bias=extra + torch.arange(4.0)))


def test_heads_share_the_width_so_their_number_costs_no_parameters():
    count = lambda heads: sum(p.numel() for p in MultiHeadAttention(64, heads).parameters())  # noqa: E731
    assert count(1) == count(8) == 4 * (64 * 64 + 64)


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match="must divide"):
        MultiHeadAttention(10, 3)


def test_heads_may_be_wider_or_narrower_than_their_share():
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(8, 2, head_width=5, bias=False, scale=1.0), torch.randn(1, 4, 8)
    assert layer.query.weight.shape == (10, 8) and layer.output.weight.shape == (8, 10)
    q, k, v = (part(x).view(4, 2, 5).transpose(0, 1) for part in (layer.query, layer.key, layer.value))
    heads = (q @ k.transpose(1, 2)).softmax(-1) @ v
    torch.testing.assert_close(layer(x)[0], heads.transpose(0, 1).reshape(4, 10) @ layer.output.weight.T)


def test_keys_and_output_may_differ_from_the_rest_in_having_a_bias():
    layer = MultiHeadAttention(8, 2, bias=False, output_bias=True)
    assert {name for name, _ in layer.named_parameters() if name.endswith("bias")} == {"output.bias"}
    layer = MultiHeadAttention(8, 2, key_bias=False)
    assert {name for name, _ in layer.named_parameters() if name.endswith("bias")} == {
        "query.bias", "value.bias", "output.bias",
    }  # fmt: skip


@pytest.mark.parametrize("biases", [(True, True, True), (True, False, True), (False, False, False)])
def test_layers_side_by_side_are_one_product(biases):
    layers = [nn.Linear(6, width, bias=bias) for width, bias in zip((8, 4, 4), biases, strict=True)]
    x = torch.randn(2, 3, 6)
    for one, layer in zip(side_by_side(x, *layers), layers, strict=True):
        torch.testing.assert_close(one, layer(x))
