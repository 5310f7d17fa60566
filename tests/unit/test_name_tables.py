"""Name tables in both directions: to_theirs is the inverse of to_ours, and nothing is silently ignored."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.checkpoints import tables
from regard.checkpoints.tables import TABLES, NameTable, read_table
from regard.config import Config
from regard.errors import CheckpointError, ConfigError
from regard.families.translation.transformer import Transformer, TransformerConfig

SOURCE = Path("folder")


class Sizes(Config):
    """A stand-in for a model's config."""

    tie: str = "all"
    vocab: int = 5
    norm: str = "post"


def table(*rows):
    config = {
        "same": {"vocab": "vocab_size"},
        "defaults": {"shared": True},
        "fallbacks": {},
        "copies": {"decoder_vocab_size": "vocab_size"},
        "choices": [
            [
                {"theirs": {"shared": True}, "ours": {"tie": "all"}},
                {"theirs": {"shared": False}, "ours": {"tie": "none"}},
            ],
            [{"theirs": {}, "ours": {"norm": "post"}}],
        ],
        "written": {"model_type": "toy"},
    }
    placeholders = {"layer": r"\d+", "kind": "weight|bias"}
    return NameTable.parse({"model": "toy", "placeholders": placeholders, "config": config, "tensors": rows})


ROWS = [
    {"theirs": "h.{layer}.qkv", "ours": ["{layer}.q", "{layer}.k", "{layer}.v"], "ops": [{"op": "split", "dim": 1}]},
    {"theirs": ["h.{layer}.gate", "h.{layer}.up"], "ours": "{layer}.ffn", "ops": [{"op": "concat"}]},
    {"theirs": "h.{layer}.out.{kind}", "ours": "{layer}.output.{kind}"},
    {
        "theirs": "h.{layer}.conv",
        "ours": "{layer}.linear",
        "ops": [{"op": "reshape", "theirs": [3, 2, 1], "ours": [3, 2]}, {"op": "transpose"}],
    },
    {"theirs": ["wte", "lm_head"], "ours": ["embedding", "output"], "ops": [{"op": "tie"}], "when": {"tie": "all"}},
    {"theirs": "bias", "ops": [{"op": "drop", "value": "zeros", "shape": [1, "vocab"]}]},
    {"theirs": "positions", "ops": [{"op": "drop", "value": "sinusoidal_halves"}]},
]


def theirs(layers):
    tensors = {"wte": torch.randn(5, 4), "bias": torch.zeros(1, 5)}
    for layer in range(layers):
        tensors[f"h.{layer}.qkv"] = torch.randn(4, 6)
        tensors[f"h.{layer}.gate"], tensors[f"h.{layer}.up"] = torch.randn(3, 4), torch.randn(3, 4)
        tensors[f"h.{layer}.out.weight"], tensors[f"h.{layer}.out.bias"] = torch.randn(4, 4), torch.randn(4)
        tensors[f"h.{layer}.conv"] = torch.randn(3, 2, 1)
    return tensors


@given(layers=st.integers(0, 12), seed=st.integers(0, 2**31))
def test_export_undoes_import_bit_for_bit(layers, seed):
    torch.manual_seed(seed)
    before = theirs(layers)
    ours = table(*ROWS).to_ours(before, Sizes(), [], SOURCE)
    after = table(*ROWS).to_theirs(ours, Sizes())
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_each_operation_does_what_its_name_says():
    before = theirs(1)
    ours = table(*ROWS).to_ours(before, Sizes(), [], SOURCE)
    assert torch.equal(ours["0.k"], before["h.0.qkv"][:, 2:4])
    assert torch.equal(ours["0.ffn"], torch.cat([before["h.0.gate"], before["h.0.up"]]))
    assert torch.equal(ours["0.linear"], before["h.0.conv"][:, :, 0].T)
    assert ours["embedding"] is ours["output"] is before["wte"]
    assert "bias" not in ours


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.update({"h.0.scale": torch.ones(1)}), r"folder has tensors .* not explain: h\.0\.scale"),
        (lambda t: t.update({"h.x.qkv": torch.ones(1)}), r"not explain: h\.x\.qkv"),
        (lambda t: t.pop("h.0.up"), r"lacks h\.0\.up"),
        (lambda t: t.pop("wte"), r"lacks wte"),
        (lambda t: t.update(lm_head=torch.zeros(5, 4)), r"lm_head, wte of folder: .*different values"),
        (lambda t: t.update(bias=torch.ones(1, 5)), r"bias of folder: should hold zeros"),
        (lambda t: t.update(positions=torch.ones(2, 4)), r"positions of folder: should hold sinusoidal_halves"),
        (lambda t: t.update({"h.0.qkv": torch.ones(4, 5)}), r"h\.0\.qkv of folder: .*3 equal parts"),
    ],
)
def test_what_the_table_cannot_explain_is_named(change, says):
    tensors = theirs(1)
    change(tensors)
    with pytest.raises(CheckpointError, match=says):
        table(*ROWS).to_ours(tensors, Sizes(), ["0.ffn", "embedding"], SOURCE)


def test_tensors_of_ours_without_a_row_are_not_lost_in_silence():
    ours = table(*ROWS).to_ours(theirs(1), Sizes(), [], SOURCE)
    with pytest.raises(CheckpointError, match=r"no row for our tensors 0\.novelty"):
        table(*ROWS).to_theirs({**ours, "0.novelty": torch.ones(1)}, Sizes())
    with pytest.raises(CheckpointError, match="no row for our tensors embedding, output"):
        table(*ROWS).to_theirs(ours, Sizes(tie="none"))


def test_configs_translate_both_ways():
    config = table().config
    for shared, tie in ((True, "all"), (False, "none")):
        ours = config.to_ours({"vocab_size": 7, "shared": shared}, SOURCE)
        assert ours == {"vocab": 7, "tie": tie, "norm": "post"}
        assert config.to_theirs(ours) == {
            "model_type": "toy",
            "vocab_size": 7,
            "decoder_vocab_size": 7,
            "shared": shared,
        }


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "folder lacks vocab_size"),
        ({"vocab_size": 7, "decoder_vocab_size": 8}, "decoder_vocab_size 8 but vocab_size 7"),
        ({"vocab_size": 7, "shared": "maybe"}, "cannot be read: it has shared 'maybe'; expected shared True or False"),
    ],
)
def test_a_config_of_theirs_without_a_counterpart_is_refused(values, says):
    with pytest.raises(CheckpointError, match=says):
        table().config.to_ours(values, SOURCE)


def test_a_wrong_config_is_told_by_the_one_key_that_is_wrong():
    options = [{"act": "relu", "gated": False}, {"act": "gelu", "gated": True}, {"act": "silu", "gated": True}]
    for values, says in (
        ({"act": "swish", "gated": True}, "act 'swish' beside gated True; expected act 'gelu' or 'silu'"),
        ({"act": "relu", "gated": True}, "gated True beside act 'relu'; expected gated False"),
        ({"act": "tanh"}, "act 'tanh'; expected act 'relu' or 'gelu' or 'silu'"),
    ):
        with pytest.raises(CheckpointError) as refused:
            tables._choose(values, options, "no")
        assert str(refused.value) == f"no: it has {says}"


def test_a_config_of_ours_without_a_counterpart_is_refused():
    with pytest.raises(CheckpointError, match=r"cannot be exported.*norm 'pre'"):
        table().config.to_theirs(Sizes(norm="pre").model_dump())


def test_an_unknown_operation_is_an_error_when_the_table_is_read():
    with pytest.raises(ConfigError, match="rotate"):
        table({"theirs": "a", "ours": "b", "ops": [{"op": "rotate"}]})


@pytest.mark.parametrize("tie", ["none", "target", "all"])
@pytest.mark.parametrize("output_bias", [True, False])
def test_the_marian_table_covers_exactly_the_transformer(tie, output_bias):
    config = TransformerConfig(
        source_vocab=7, target_vocab=7, width=4, heads=1, encoder_depth=1, decoder_depth=12, ffn_width=3, tie=tie,
        output_bias=output_bias, positions="sinusoidal_halves",
    )  # fmt: skip
    marian, state = read_table("marian"), Transformer(config).state_dict()
    back = marian.to_ours(marian.to_theirs(state, config), config, state.keys(), SOURCE)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


@pytest.mark.parametrize("model_type", TABLES)
def test_every_shipped_table_is_valid(model_type):
    assert read_table(model_type).tensors
