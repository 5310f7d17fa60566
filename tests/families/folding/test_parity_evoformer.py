"""The layers of an Evoformer and its losses beside OpenFold's numbers, and beside transformers' modules of ESMFold."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from regard.data.sources import data_root
from regard.families.folding.layers import (
    ColumnAttention,
    EvoformerBlock,
    Frames,
    OuterProductMean,
    PairProducts,
    PointAttention,
    RowAttention,
    StructureModule,
    TriangleAttention,
    TriangleMultiplication,
)
from regard.families.folding.metrics import distogram_loss, fape, lddt
from regard.families.folding.model import distance_edges

GOLDENS = Path(data_root()) / "goldens" / "openfold_modules.npz"
ATTENTION = {
    "attention.query": "mha.linear_q", "attention.key": "mha.linear_k", "attention.value": "mha.linear_v",
    "attention.output": "mha.linear_o", "attention.gate": "mha.linear_g",
}  # fmt: skip
ROW = {**ATTENTION, "norm": "layer_norm_m", "bias.norm": "layer_norm_z", "bias.linear": "linear_z"}
COLUMN = {ours: f"_msa_att.{theirs}" for ours, theirs in {**ATTENTION, "norm": "layer_norm_m"}.items()}
OUTER = {"norm": "layer_norm", "left": "linear_1", "right": "linear_2", "output": "linear_out"}
TRIANGLE = {
    "left": "linear_a_p", "left_gate": "linear_a_g", "right": "linear_b_p", "right_gate": "linear_b_g",
    "gate": "linear_g", "output": "linear_z", "norm": "layer_norm_in", "norm_products": "layer_norm_out",
}  # fmt: skip
TRIANGLE_ATTENTION = {**ATTENTION, "norm": "layer_norm", "bias": "linear"}


@pytest.fixture(scope="module")
def goldens():
    if not GOLDENS.is_file():
        pytest.skip(f"{GOLDENS} is not there")
    with np.load(GOLDENS) as stored:
        return {name: torch.from_numpy(stored[name]) for name in stored.files}


def fill(module: nn.Module, weights: dict[str, torch.Tensor], names: dict[str, str]) -> nn.Module:
    """The module with another library's weights; each of them must be used once."""
    found = {f"{ours}.{kind}": weights.pop(f"{theirs}.{kind}") for ours, theirs in names.items()
             for kind in ("weight", "bias") if f"{theirs}.{kind}" in weights}  # fmt: skip
    assert not weights, f"weights without a place: {list(weights)}"
    module.load_state_dict(found)
    return module.eval()


def part(goldens: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    return {key.removeprefix(f"{name}/"): value for key, value in goldens.items() if key.startswith(f"{name}/")}


def same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "module", "names"),
    [
        ("row_attention_pair_bias", RowAttention(16, 12, 4, 8), ROW),
        ("column_attention", ColumnAttention(16, 4, 8), COLUMN),
        ("outer_product_mean", OuterProductMean(16, 12, 6), OUTER),
        ("triangle_mul_out", TriangleMultiplication(12, 10, outgoing=True), TRIANGLE),
        ("triangle_mul_in", TriangleMultiplication(12, 10, outgoing=False), TRIANGLE),
        ("triangle_att_start", TriangleAttention(12, 3, 6, starting=True), TRIANGLE_ATTENTION),
        ("triangle_att_end", TriangleAttention(12, 3, 6, starting=False), TRIANGLE_ATTENTION),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
@torch.no_grad()
def test_layers_give_openfolds_numbers(goldens, name, module, names):
    stored = part(goldens, name)
    fill(module, part(stored, "weights"), names)
    given, mask = part(stored, "in"), stored["in/mask"].bool()
    inputs = [given[key] for key in ("m", "z") if key in given]
    ours, theirs = module(*inputs, mask), stored["out"]
    seen = mask if ours.shape[:3] == mask.shape else torch.einsum("bni,bnj->bij", *[stored["in/mask"]] * 2) > 0
    assert seen.any()
    same(ours[seen], theirs[seen])


def points_in_theirs(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """OpenFold's rows of points are x of all, then y, then z; ours are x, y, z of each."""
    return weight.unflatten(0, (3, -1)).transpose(0, 1).flatten(0, 1)


def point_weights(theirs: dict[str, torch.Tensor], heads: int, width: int, points: int, values: int) -> dict:
    """The weights of OpenFold's invariant point attention under our names and in our order."""
    theirs = {key.replace("_points.linear.", "_points."): value for key, value in theirs.items()}
    found = {"log_weight": theirs["head_weights"]}
    for kind in ("weight", "bias"):
        found[f"query.{kind}"], found[f"pair_bias.{kind}"] = theirs[f"linear_q.{kind}"], theirs[f"linear_b.{kind}"]
        both = theirs[f"linear_kv.{kind}"].unflatten(0, (heads, 2, width))
        found[f"key.{kind}"], found[f"value.{kind}"] = both[:, 0].flatten(0, 1), both[:, 1].flatten(0, 1)
        found[f"query_points.{kind}"] = points_in_theirs(theirs[f"linear_q_points.{kind}"], heads)
        placed = points_in_theirs(theirs[f"linear_kv_points.{kind}"], heads).unflatten(0, (heads, points + values, 3))
        found[f"key_points.{kind}"] = placed[:, :points].flatten(0, 2)
        found[f"value_points_of.{kind}"] = placed[:, points:].flatten(0, 2)
    out = theirs["linear_out.weight"]
    plain, placed, rest = out.split([heads * width, heads * values * 3, out.shape[1] - heads * (width + 3 * values)], 1)
    placed = placed.unflatten(1, (3, -1)).transpose(1, 2).flatten(1)
    found["output.weight"], found["output.bias"] = torch.cat([plain, placed, rest], 1), theirs["linear_out.bias"]
    return found


@torch.no_grad()
def test_point_attention_gives_openfolds_numbers(goldens):
    stored = part(goldens, "ipa")
    heads, width = 4, 5
    module = PointAttention(16, 12, heads=heads, head_width=width, points=4, value_points=8).eval()
    module.load_state_dict(point_weights(part(stored, "weights"), heads, width, 4, 8))
    frames, mask = Frames(stored["in/rotations"], stored["in/translations"]), stored["in/mask"].bool()
    ours = module(stored["in/s"], stored["in/z"], frames, mask)
    same(ours[mask], stored["out"][mask])


def test_losses_give_openfolds_numbers(goldens):
    stored = part(goldens, "fape")
    predicted, true = (Frames(stored[f"{side}_rot"], stored[f"{side}_trans"]) for side in ("pred", "true"))
    mask = stored["mask"].bool()
    same(fape(predicted, true, mask), stored["clamped"])
    same(fape(predicted, true, mask, unclamped=1.0), stored["unclamped"])
    stored = part(goldens, "distogram")
    found = distogram_loss(stored["logits"], stored["pseudo_beta"], stored["mask"].bool(), distance_edges(64))
    same(found.mean(), stored["loss"])
    stored = part(goldens, "lddt_ca")
    mask = stored["mask"].bool()
    same(lddt(stored["pred"], stored["true"], mask)[mask], stored["per_residue"][mask])


esmfold = pytest.importorskip("transformers.models.esm.modeling_esmfold")


def randomised(module: nn.Module, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data = 0.4 * torch.randn(parameter.shape, generator=generator)
    return module.eval()


def trunk(**sizes):
    from transformers.models.esm.configuration_esm import TrunkConfig

    return TrunkConfig(**sizes)


SEQUENCE_BLOCK = {
    "row.norm": "layernorm_1", "row.bias.norm": "pair_to_sequence.layernorm",
    "row.bias.linear": "pair_to_sequence.linear", "row.attention.output": "seq_attention.o_proj",
    "row.attention.gate": "seq_attention.g_proj", "outer.norm": "sequence_to_pair.layernorm",
    "outer.output": "sequence_to_pair.o_proj",
    "transition.norm": "mlp_seq.mlp.0", "transition.up": "mlp_seq.mlp.1", "transition.down": "mlp_seq.mlp.3",
    "pair_transition.norm": "mlp_pair.mlp.0", "pair_transition.up": "mlp_pair.mlp.1",
    "pair_transition.down": "mlp_pair.mlp.3",
    **{f"outgoing.{ours}": f"tri_mul_out.{theirs}" for ours, theirs in TRIANGLE.items()},
    **{f"incoming.{ours}": f"tri_mul_in.{theirs}" for ours, theirs in TRIANGLE.items()},
    **{f"starting.{ours}": f"tri_att_start.{theirs}" for ours, theirs in TRIANGLE_ATTENTION.items()},
    **{f"ending.{ours}": f"tri_att_end.{theirs}" for ours, theirs in TRIANGLE_ATTENTION.items()},
}  # fmt: skip


def block_weights(theirs: nn.Module, heads: int) -> dict[str, torch.Tensor]:
    """The weights of ESMFold's block; queries, keys and values, and the two sides of a pair, are apart in ours."""
    weights = dict(theirs.state_dict())
    q, k, v = weights.pop("seq_attention.proj.weight").unflatten(0, (heads, 3, -1)).unbind(1)
    for name, each in (("q", q), ("k", k), ("v", v)):
        weights[f"split.{name}.weight"] = each.flatten(0, 1)
    for kind in ("weight", "bias"):
        # Theirs multiplies q of the column with k of the row.
        left, right = weights.pop(f"sequence_to_pair.proj.{kind}").chunk(2)
        weights[f"split.left.{kind}"], weights[f"split.right.{kind}"] = left, right
    return weights


def our_block(theirs: nn.Module, config) -> EvoformerBlock:
    width, pair = config.sequence_state_dim, config.pairwise_state_dim
    heads = width // config.sequence_head_width
    block = EvoformerBlock(
        width, pair, heads=heads, head_width=config.sequence_head_width,
        pair_heads=pair // config.pairwise_head_width, pair_head_width=config.pairwise_head_width,
        outer=PairProducts(width, pair, pair // 2), triangle_width=pair, columns=False,
    )  # fmt: skip
    names = {
        **SEQUENCE_BLOCK, "row.attention.query": "split.q", "row.attention.key": "split.k",
        "row.attention.value": "split.v", "outer.left": "split.left", "outer.right": "split.right",
    }  # fmt: skip
    return fill(block, block_weights(theirs, heads), names)


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_a_block_gives_esmfolds_numbers(seed):
    random = np.random.default_rng(seed)
    head, pair_head = (int(random.choice([4, 8])) for _ in range(2))
    sizes = {
        "sequence_head_width": head, "sequence_state_dim": head * int(random.integers(1, 4)),
        "pairwise_head_width": pair_head, "pairwise_state_dim": pair_head * 2 * int(random.integers(1, 3)),
        "dropout": 0,
    }  # fmt: skip
    config = trunk(**sizes)
    theirs = randomised(esmfold.EsmFoldTriangularSelfAttentionBlock(config), seed)
    length, generator = int(random.integers(5, 12)), torch.Generator().manual_seed(seed)
    state = torch.randn(2, length, config.sequence_state_dim, generator=generator)
    pairs = torch.randn(2, length, length, config.pairwise_state_dim, generator=generator)
    mask = torch.arange(length)[None] < torch.tensor([[length], [length - 2]])
    expected, expected_pairs = theirs(state, pairs, mask=mask.float())
    rows, found = our_block(theirs, config)(state[:, None], pairs, mask, torch.ones(2, 1, dtype=torch.bool))
    torch.testing.assert_close(rows[:, 0][mask], expected[mask], rtol=1e-4, atol=1e-4)
    square = mask[:, :, None] & mask[:, None]
    torch.testing.assert_close(found[square], expected_pairs[square], rtol=1e-4, atol=1e-4)


STRUCTURE = {
    "norm": "layer_norm_s", "norm_pairs": "layer_norm_z", "input": "linear_in", "after_attention": "layer_norm_ipa",
    "transition.0": "transition.layers.0.linear_1", "transition.2": "transition.layers.0.linear_2",
    "transition.4": "transition.layers.0.linear_3", "after_transition": "transition.layer_norm",
    "move": "bb_update.linear",
}  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
@torch.no_grad()
def test_the_structure_module_gives_esmfolds_frames(seed):
    from transformers.models.esm.configuration_esm import StructureModuleConfig

    config = StructureModuleConfig(
        sequence_dim=16, pairwise_dim=12, ipa_dim=8, resnet_dim=8, num_heads_ipa=3, num_blocks=3, dropout_rate=0.0
    )
    theirs = randomised(esmfold.EsmFoldStructureModule(config), seed)
    theirs.bb_update.linear.weight.data *= 0.3
    weights = {key: value for key, value in theirs.state_dict().items() if not key.startswith("angle_resnet")}
    own = {key.removeprefix("ipa."): weights.pop(key) for key in list(weights) if key.startswith("ipa.")}
    points = point_weights(own, 3, 8, config.num_qk_points, config.num_v_points)
    attention = PointAttention(16, 12, heads=3, head_width=8, points=4, value_points=8)
    ours = StructureModule(16, 12, attention, passes=3, dropout=0.0).eval()
    found = {f"{mine}.{kind}": weights.pop(f"{other}.{kind}") for mine, other in STRUCTURE.items()
             for kind in ("weight", "bias")}  # fmt: skip
    assert not weights, list(weights)
    ours.load_state_dict(found | {f"attention.{name}": value for name, value in points.items()})
    generator = torch.Generator().manual_seed(seed)
    single, pairs = torch.randn(1, 7, 16, generator=generator), torch.randn(1, 7, 7, 12, generator=generator)
    expected = theirs({"single": single, "pair": pairs}, torch.zeros(1, 7, dtype=torch.long))
    state, frames = ours(single, pairs, torch.ones(1, 7, dtype=torch.bool))
    torch.testing.assert_close(state, expected["single"], rtol=1e-4, atol=1e-4)
    for mine, other in zip(frames, expected["frames"], strict=True):  # a quaternion, and a translation
        torch.testing.assert_close(mine.translation, other[..., 4:], rtol=1e-4, atol=1e-3)
