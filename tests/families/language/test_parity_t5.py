"""T5 folders of Hugging Face, v1.0 and v1.1: the same logits, and exact round trips."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.checkpoints import export_model, load_model
from regard.checkpoints.models import own_tensors
from regard.errors import CheckpointError
from regard.families.language.t5 import T5, V1_1, T5Config

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

V1_0_SHAPES = [
    {},
    {"d_kv": 3, "num_layers": 3, "num_decoder_layers": 1},
    {"relative_attention_num_buckets": 6, "relative_attention_max_distance": 9, "num_heads": 2},
    {"feed_forward_proj": "gelu", "layer_norm_epsilon": 1e-3, "d_ff": 17},
    {"feed_forward_proj": "gelu_new", "d_model": 24, "num_heads": 6, "num_decoder_layers": 3},
]
V1_1_SHAPES = [
    {"feed_forward_proj": "gated-gelu"},
    {"feed_forward_proj": "gated-gelu", "d_kv": 6, "num_layers": 1, "num_decoder_layers": 3},
    {"feed_forward_proj": "gated-silu", "relative_attention_num_buckets": 8},
    {"feed_forward_proj": "gated-relu", "d_ff": 11, "relative_attention_max_distance": 20},
    {"feed_forward_proj": "gated-gelu", "d_model": 8, "num_heads": 1, "layer_norm_epsilon": 1e-3},
]
SHAPES = [*V1_0_SHAPES, *({**shape, "tie_word_embeddings": False} for shape in V1_1_SHAPES)]


def theirs_of(changes, seed):
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": 31, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4,
        "relative_attention_num_buckets": 32, "decoder_start_token_id": 0, **changes,
    }  # fmt: skip
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).eval()
    if changes.get("tie_word_embeddings") is False:  # their class ties them all the same, but loads separate tensors
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    with torch.no_grad():
        for parameter in model.parameters():  # the initial weights are too small to reveal a mistake
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, std=0.2)
    return model


def save(model, folder):
    """Save as published: `save_pretrained` would write an untied output matrix with the config of a tied one."""
    model.save_pretrained(folder)
    save_file({name: t.contiguous() for name, t in model.state_dict().items() if "embed_tokens" not in name
               and (name != "lm_head.weight" or t.data_ptr() != model.shared.weight.data_ptr())},
              folder / "model.safetensors", metadata={"format": "pt"})  # fmt: skip


def greatest_difference(ours, theirs):
    source, inputs = torch.randint(31, (3, 40)), torch.randint(31, (3, 25))
    mask = torch.arange(40) < torch.tensor([40, 21, 1])[:, None]
    with torch.inference_mode():
        expected = theirs(input_ids=source, attention_mask=mask.long(), decoder_input_ids=inputs).logits
        return (ours(source, mask, inputs) - expected).abs().max().item()


@pytest.mark.parametrize("seed", range(len(SHAPES)))
def test_their_folder_gives_the_same_logits_and_survives_the_way_back(seed, tmp_path):
    theirs = theirs_of(SHAPES[seed], seed)
    save(theirs, tmp_path / "theirs")
    loaded = load_model(tmp_path / "theirs")
    assert loaded.name == "t5"
    assert loaded.config.tie == loaded.config.scale_output == (seed < len(V1_0_SHAPES))
    assert greatest_difference(loaded.model, theirs) <= 1e-5

    export_model("t5", loaded.model, tmp_path / "back")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    "changes",
    [{}, V1_1, {"head_width": 6, "activation": "swish", "decoder_depth": 3}, {"gated": True, "activation": "relu"},
     {"scale_output": False}],
)  # fmt: skip
def test_our_model_is_loaded_by_their_library(changes, tmp_path):
    torch.manual_seed(0)
    sizes = {"source_vocab": 31, "target_vocab": 31, "width": 16, "heads": 4, "head_width": 4, "encoder_depth": 2,
             "decoder_depth": 2, "ffn_width": 24}  # fmt: skip
    ours = T5(T5Config(**{**sizes, **changes})).eval()
    export_model("t5", ours, tmp_path / "out", values={"decoder_start_token_id": 0, "eos_token_id": 1})
    theirs, report = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values())
    assert greatest_difference(ours, theirs.eval()) <= 1e-5

    again = load_model(tmp_path / "out").model
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in own_tensors(ours).items())


def test_the_config_of_v1_1_as_it_was_published(tmp_path):
    theirs = theirs_of(SHAPES[5], 11)
    save(theirs, tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    for key in ("scale_decoder_outputs", "dense_act_fn", "is_gated_act", "relative_attention_max_distance"):
        del values[key]
    (tmp_path / "config.json").write_text(json.dumps({**values, "tie_word_embeddings": False}))
    assert greatest_difference(load_model(tmp_path).model, theirs) <= 1e-5
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks lm_head\.weight"):
        load_model(tmp_path)


def test_copies_and_leftovers_of_the_first_checkpoints_are_read(tmp_path):
    theirs = theirs_of({}, 12)
    save(theirs, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors["shared.weight"].clone()
    tensors["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.randn(32, 4)
    save_file(tensors, tmp_path / "model.safetensors")
    assert greatest_difference(load_model(tmp_path).model, theirs) <= 1e-5


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"feed_forward_proj": "gated-mish"}, "gated-mish"),
        ({"num_layers": 3}, r"lacks encoder\.block\.2"),
        ({"relative_attention_num_buckets": 16}, r"position\.table.*\[32, 4\]"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder False"),
        ({"relative_attention_num_buckets": 2}, "buckets"),
    ],
)
def test_what_we_have_not_is_refused_by_name(change, named, tmp_path):
    save(theirs_of({}, 13), tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, **change}))
    with pytest.raises(CheckpointError, match=named):
        load_model(tmp_path)
