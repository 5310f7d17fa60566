"""GPT-2 and Llama folders of Hugging Face: the same logits, and exact round trips."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.checkpoints import export_model, load_model, save_model
from regard.checkpoints.models import own_tensors
from regard.errors import CheckpointError
from regard.families.language.gpt import LLAMA, Gpt, GptConfig

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

GPT2 = [
    {},
    {"n_inner": 17, "activation_function": "gelu", "n_layer": 3},
    {"scale_attn_weights": False, "activation_function": "relu", "n_head": 2},
    {"tie_word_embeddings": False, "layer_norm_epsilon": 1e-3, "activation_function": "silu"},
    {"n_embd": 24, "n_head": 6, "n_positions": 12, "resid_pdrop": 0.3, "embd_pdrop": 0.0},
    {"activation_function": "gelu_pytorch_tanh", "n_layer": 1, "n_embd": 8, "n_head": 1},
]
LLAMAS = [
    {},
    {"num_key_value_heads": 2, "tie_word_embeddings": True},
    {"head_dim": 6, "num_key_value_heads": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-3},
    {"hidden_act": "gelu_pytorch_tanh", "num_hidden_layers": 3, "intermediate_size": 11},
    {"hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 3, "attention_dropout": 0.2},
]
SHAPES = [("gpt2", shape) for shape in GPT2] + [("llama", shape) for shape in LLAMAS]


def theirs_of(kind, changes, seed):
    torch.manual_seed(seed)
    if kind == "gpt2":
        sizes = {"vocab_size": 31, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32, **changes}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=1)).eval()
    else:
        sizes = {
            "vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 40, "max_position_embeddings": 32, **changes,
        }  # fmt: skip
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # the initial weights are too small to reveal a mistake, and biases are 0
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, std=0.2)
    return model


def greatest_difference(ours, theirs, side="right"):
    tokens, places = torch.randint(31, (3, 9)), torch.arange(9)
    real = places < torch.tensor([9, 5, 1])[:, None]
    mask = real if side == "right" else real.flip(1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.inference_mode():
        expected = theirs(input_ids=tokens, attention_mask=mask.long(), position_ids=positions).logits
        return (ours(tokens, mask) - expected)[mask].abs().max().item()


@pytest.mark.parametrize("seed", range(len(SHAPES)))
def test_their_folder_gives_the_same_logits_and_survives_the_way_back(seed, tmp_path):
    kind, shape = SHAPES[seed]
    theirs = theirs_of(kind, shape, seed)
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = load_model(tmp_path / "theirs")
    assert loaded.name == "gpt"
    assert greatest_difference(loaded.model, theirs, "right") <= 1e-5
    assert greatest_difference(loaded.model, theirs, "left") <= 1e-5

    export_model("gpt", loaded.model, tmp_path / "back")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie": False, "ffn_width": 20, "activation": "gelu"},
        LLAMA,
        {**LLAMA, "kv_heads": 2, "tie": True, "rotary_base": 777.0},
        {**LLAMA, "head_width": 10, "attention_bias": True, "dropout": 0.1},
    ],
)
def test_our_model_is_loaded_by_their_library(changes, tmp_path):
    torch.manual_seed(0)
    config = GptConfig(
        **{"vocab": 31, "width": 16, "heads": 4, "depth": 2, "ffn_width": 24, "max_length": 40, **changes}
    )
    ours = Gpt(config).eval()
    export_model("gpt", ours, tmp_path / "out")
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values())
    assert greatest_difference(ours, theirs.eval()) <= 1e-5

    again = load_model(tmp_path / "out").model
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in own_tensors(ours).items())


def test_the_first_checkpoints_of_gpt2_have_other_names_and_masks(tmp_path):
    """The checkpoints on the hub were saved by the model without its head, with the causal mask of every layer."""
    theirs = theirs_of("gpt2", {}, 7)
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    for layer in range(2):
        old[f"h.{layer}.attn.bias"] = torch.ones(32, 32).tril().view(1, 1, 32, 32)
        old[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(old, tmp_path / "model.safetensors")
    assert greatest_difference(load_model(tmp_path).model, theirs) <= 1e-5


def test_llama_configs_of_older_versions_are_read(tmp_path):
    theirs = theirs_of("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 1234.0}}, 8)
    theirs.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    for key in ("rope_parameters", "head_dim", "num_key_value_heads", "mlp_bias", "attention_bias"):
        del values[key]
    (tmp_path / "config.json").write_text(json.dumps({**values, "rope_theta": 1234.0, "rope_scaling": None}))
    assert greatest_difference(load_model(tmp_path).model, theirs) <= 1e-5


@pytest.mark.parametrize(
    ("kind", "change", "named"),
    [
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("llama", {"per_layer_config": {"0": {"intermediate_size": 11}}}, "per_layer_config"),
        ("llama", {"hidden_act": "mish"}, r"hidden_act 'mish'"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention True"),
        ("gpt2", {"n_layer": 3}, r"lacks transformer\.h\.2"),
        ("gpt2", {"n_layer": 1}, r"decoder\.1"),
        ("gpt2", {"n_embd": 8, "n_head": 2}, r"output_weight.*\[31, 16\]"),
        ("gpt2", {"model_type": "gpt-j"}, "gpt-j"),
    ],
)
def test_what_we_have_not_is_refused_by_name(kind, change, named, tmp_path):
    theirs_of(kind, {}, 9).save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, **change}))
    with pytest.raises(CheckpointError, match=named):
        load_model(tmp_path)


def test_a_mixture_of_both_shapes_has_no_form_of_theirs(tmp_path):
    mixed = Gpt(GptConfig(vocab=9, width=8, heads=2, depth=1, norm="rms"))
    with pytest.raises(CheckpointError, match=r"as gpt2, it has norm 'rms'.*as llama, .*positions 'learned'"):
        export_model("gpt", mixed, tmp_path / "out")
    grouped = Gpt(GptConfig(vocab=9, width=8, heads=2, kv_heads=1, depth=1))
    with pytest.raises(CheckpointError, match="kv_heads 1"):
        export_model("gpt", grouped, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_our_own_folder_keeps_every_bit(tmp_path):
    ours = Gpt(GptConfig(vocab=9, width=8, heads=2, depth=1, norm="rms"))
    save_model(tmp_path / "out", "gpt", ours)
    again = load_model(tmp_path / "out").model.state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in ours.state_dict().items())


def test_shards_are_read(tmp_path):
    theirs = theirs_of("llama", {}, 10)
    theirs.save_pretrained(tmp_path, max_shard_size="10KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert greatest_difference(load_model(tmp_path).model, theirs) <= 1e-5
