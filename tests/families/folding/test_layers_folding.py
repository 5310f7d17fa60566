"""The layers of an Evoformer: attention with shared biases, frames, invariance, and what masks keep out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.attention.core import AttendPairs, attend, attention_weights
from regard.attention.multihead import MultiHeadAttention
from regard.families.folding.layers import (
    EvoformerBlock,
    Frames,
    OuterProductMean,
    PointAttention,
    StructureModule,
    TriangleMultiplication,
    quaternion_rotation,
)
from regard.families.folding.metrics import fape, lddt


def randomised(module, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return module.eval()


def random_frames(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    turns, moves = torch.randn(*shape, 3, generator=generator), 10 * torch.randn(*shape, 3, generator=generator)
    return Frames(quaternion_rotation(turns), moves)


# --- the core ---


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_a_bias_that_rows_share_is_as_if_it_were_copied(groups):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 6, 2, 5, 4)
    bias, mask = torch.randn(groups, 2, 5, 5, requires_grad=True), torch.rand(groups, 1, 1, 5) > 0.3
    mask[..., 0] = True
    copied = [each.repeat_interleave(6 // groups, dim=0) for each in (bias, mask)]
    found, expected = attend(q, k, v, bias=bias, mask=mask), attend(q, k, v, bias=copied[0], mask=copied[1])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        attention_weights(q, k, bias=bias, mask=mask), attention_weights(q, k, bias=copied[0], mask=copied[1])
    )
    ours, theirs = (torch.autograd.grad((each**2).sum(), bias)[0] for each in (found, expected))
    torch.testing.assert_close(ours, theirs)


def test_a_bias_that_does_not_divide_the_batch_is_refused():
    q = torch.randn(6, 2, 5, 4)
    with pytest.raises(ValueError, match="do not divide a batch of 6"):
        attend(q, q, q, bias=torch.randn(4, 2, 5, 5))


def test_a_gate_multiplies_each_head_and_is_open_at_first():
    torch.manual_seed(0)
    gated, plain = MultiHeadAttention(8, 2, gated=True).eval(), MultiHeadAttention(8, 2).eval()
    plain.load_state_dict({name: value for name, value in gated.state_dict().items() if "gate" not in name})
    x = torch.randn(3, 5, 8)
    heads = []
    plain.output.register_forward_hook(lambda module, given, output: heads.append(given[0]))
    plain(x)
    for _ in range(2):
        expected = gated.output(heads[0] * torch.sigmoid(x @ gated.gate.weight.T + gated.gate.bias))
        torch.testing.assert_close(gated(x), expected)
        torch.nn.init.normal_(gated.gate.weight)


def test_pairs_are_read_with_the_weights_of_the_keys():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 4, 5)
    pairs = torch.randn(2, 4, 4, 6)
    values, read = AttendPairs()(q, k, v, pairs)
    weights = attention_weights(q, k)
    torch.testing.assert_close(values, attend(q, k, v))
    expected = torch.stack([
        torch.stack([weights[b, h, i] @ pairs[b, i] for i in range(4)]) for b in range(2) for h in range(3)
    ])  # fmt: skip
    torch.testing.assert_close(read.flatten(0, 1), expected)


# --- frames ---


def test_rotations_of_quaternions_are_rotations():
    turns = quaternion_rotation(torch.randn(50, 3))
    torch.testing.assert_close(turns @ turns.transpose(1, 2), torch.eye(3).expand(50, 3, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.linalg.det(turns), torch.ones(50))
    half = quaternion_rotation(torch.tensor([[1.0, 0.0, 0.0]]))[0]  # (1, 1, 0, 0): a quarter turn about x
    torch.testing.assert_close(half @ torch.tensor([0.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, 1.0]))


def test_frames_of_a_backbone_put_its_atoms_where_they_are():
    atoms = torch.randn(7, 3, 3)
    frames = Frames.of_backbone(atoms)
    local = frames.invert(atoms)
    torch.testing.assert_close(local[:, 1], torch.zeros(7, 3), atol=1e-5, rtol=0)  # CA is the origin
    torch.testing.assert_close(local[:, 2, 1:], torch.zeros(7, 2), atol=1e-5, rtol=0)  # C lies on the first axis
    assert (local[:, 2, 0] > 0).all() and (local[:, 0, 2].abs() < 1e-5).all() and (local[:, 0, 1] > 0).all()
    torch.testing.assert_close(frames.apply(local), atoms, atol=1e-5, rtol=0)


def moved(frames, seed):
    """All frames turned and moved together."""
    turn, move = random_frames(1, seed=seed + 100)
    return Frames(turn @ frames.rotation, frames.translation @ turn[0].T + move)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_point_attention_does_not_see_turns_and_moves_of_all(seed):
    module = randomised(PointAttention(8, 6, heads=2, head_width=4, points=3, value_points=2), seed)
    generator = torch.Generator().manual_seed(seed)
    x, pairs = torch.randn(1, 6, 8, generator=generator), torch.randn(1, 6, 6, 6, generator=generator)
    frames = Frames(*(each / scale for each, scale in zip(random_frames(1, 6, seed=seed), (1, 10), strict=True)))
    mask = torch.ones(1, 6, dtype=torch.bool)
    torch.testing.assert_close(
        module(x, pairs, moved(frames, seed), mask), module(x, pairs, frames, mask), atol=2e-4, rtol=2e-4
    )
    other = Frames(frames.rotation, frames.translation + torch.randn(frames.translation.shape, generator=generator))
    assert not torch.allclose(module(x, pairs, other, mask), module(x, pairs, frames, mask), atol=1e-3)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_the_frame_aligned_error_does_not_see_turns_and_moves_but_sees_mirrors(seed):
    true, mask = random_frames(1, 8, seed=seed), torch.ones(1, 8, dtype=torch.bool)
    predicted = random_frames(1, 8, seed=seed + 1)
    for unclamped in (0.0, 1.0):
        here, there = (fape(frames, true, mask, unclamped) for frames in (predicted, moved(predicted, seed)))
        torch.testing.assert_close(there, here, atol=1e-4, rtol=1e-4)
    assert fape(moved(true, seed), true, mask).item() == pytest.approx(1e-3, rel=0.05)  # √1e-4 / 10
    mirror = torch.diag(torch.tensor([1.0, 1.0, -1.0]))
    mirrored = Frames(mirror @ true.rotation @ mirror, true.translation @ mirror)
    assert fape(mirrored, true, mask).item() > 0.1


def test_the_structure_module_moves_frames_with_its_steps():
    module = randomised(StructureModule(
        8, 6, PointAttention(8, 6, heads=2, head_width=4, points=3, value_points=2), passes=3, dropout=0.0
    ))  # fmt: skip
    single, pairs = torch.randn(2, 5, 8), torch.randn(2, 5, 5, 6)
    state, frames = module(single, pairs, torch.ones(2, 5, dtype=torch.bool))
    assert len(frames) == 3 and state.shape == (2, 5, 8)
    for each in frames:
        torch.testing.assert_close(torch.linalg.det(each.rotation), torch.ones(2, 5), atol=1e-4, rtol=0)


# --- masks ---


def block(columns=True):
    return randomised(EvoformerBlock(
        8, 6, heads=2, head_width=4, pair_heads=2, pair_head_width=3, outer=OuterProductMean(8, 6, 4),
        triangle_width=5, columns=columns, growth=2,
    ))  # fmt: skip


@torch.no_grad()
def test_what_is_not_there_reaches_nothing_that_is():
    torch.manual_seed(0)
    rows, pairs = torch.randn(2, 4, 6, 8), torch.randn(2, 6, 6, 6)
    residues, depth = torch.arange(6)[None] < torch.tensor([[6], [4]]), torch.arange(4)[None] < torch.tensor([[4], [2]])
    layer = block()
    found, found_pairs = layer(rows, pairs, residues, depth)
    other_rows, other_pairs = rows.clone(), pairs.clone()
    other_rows[1, 2:], other_rows[1, :, 4:] = 7.0, -5.0
    other_pairs[1, 4:], other_pairs[1, :, 4:] = 9.0, -9.0
    again, again_pairs = layer(other_rows, other_pairs, residues, depth)
    torch.testing.assert_close(found[1, :2, :4], again[1, :2, :4])
    torch.testing.assert_close(found_pairs[1, :4, :4], again_pairs[1, :4, :4])
    alone, alone_pairs = layer(rows[1:, :2, :4], pairs[1:, :4, :4], residues[1:, :4], depth[1:, :2])
    torch.testing.assert_close(found[1:, :2, :4], alone, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found_pairs[1:, :4, :4], alone_pairs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("outgoing", [True, False])
@torch.no_grad()
def test_triangle_multiplication_is_its_sum_over_third_residues(outgoing):
    torch.manual_seed(0)
    layer = randomised(TriangleMultiplication(4, 3, outgoing=outgoing))
    pairs, mask = torch.randn(1, 5, 5, 4), torch.rand(1, 5, 5) > 0.2
    z = layer.norm(pairs)[0]
    there = mask[0, ..., None]
    left = layer.left(z) * torch.sigmoid(layer.left_gate(z)) * there
    right = layer.right(z) * torch.sigmoid(layer.right_gate(z)) * there
    expected = torch.zeros(5, 5, 3)
    for i in range(5):
        for j in range(5):
            for k in range(5):
                edges = (left[i, k], right[j, k]) if outgoing else (left[k, i], right[k, j])
                expected[i, j] += edges[0] * edges[1]
    expected = layer.output(layer.norm_products(expected)) * torch.sigmoid(layer.gate(z))
    torch.testing.assert_close(layer(pairs, mask)[0], expected, atol=1e-5, rtol=1e-5)


def test_lddt_of_the_truth_is_one_and_ignores_what_is_unknown():
    torch.manual_seed(0)
    true, mask = 6 * torch.randn(1, 9, 3), torch.arange(9)[None] < 7
    predicted = true.clone()
    predicted[:, 7:] += 50
    torch.testing.assert_close(lddt(predicted, true, mask)[mask], torch.ones(7))
    off = true.clone()
    off[0, 0] += torch.tensor([100.0, 0, 0])
    found = lddt(off, true, mask)[0]
    assert found[0] < 1e-6 and (found[1:7] < 1).all()
