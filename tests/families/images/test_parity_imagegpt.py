"""ImageGPT folders of Hugging Face: the same logits, and exact round trips."""

import json

import pytest
import torch
from safetensors.torch import load_file

from regard.checkpoints import export_model, load_model
from regard.checkpoints.models import own_tensors
from regard.errors import CheckpointError
from regard.families.language.gpt import IGPT, PRESETS, Gpt, GptConfig

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

SHAPES = [
    {},
    {"n_inner": 17, "activation_function": "gelu", "n_layer": 3},
    {"scale_attn_weights": False, "activation_function": "relu", "n_head": 2},
    {"layer_norm_epsilon": 1e-2, "activation_function": "silu"},
    {"n_embd": 24, "n_head": 6, "n_positions": 12, "vocab_size": 6, "attn_pdrop": 0.0},
]


def theirs_of(changes, seed=0):
    torch.manual_seed(seed)
    config = {"vocab_size": 31, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 20, **changes}
    model = transformers.ImageGPTForCausalImageModeling(transformers.ImageGPTConfig(**config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, std=0.2)
    return model


def greatest_difference(ours, theirs):
    """For pixels after the start token, which is the last of the vocabulary."""
    config = ours.config
    pixels = torch.randint(config.vocab - 1, (3, 11))
    tokens = torch.cat([torch.full((3, 1), config.vocab - 1), pixels], dim=1)
    with torch.inference_mode():
        expected = theirs(input_ids=tokens).logits
        assert expected.shape[-1] == config.vocab - 1
        return (ours(tokens) - expected).abs().max().item()


@pytest.mark.parametrize("seed", range(len(SHAPES)))
def test_their_folder_gives_the_same_logits_and_survives_the_way_back(seed, tmp_path):
    theirs = theirs_of(SHAPES[seed], seed)
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = load_model(tmp_path / "theirs")
    assert loaded.name == "gpt"
    assert greatest_difference(loaded.model, theirs) <= 1e-5

    export_model("gpt", loaded.model, tmp_path / "back")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_our_model_is_loaded_by_their_library(tmp_path):
    torch.manual_seed(0)
    ours = Gpt(GptConfig(**{**IGPT, "vocab": 31, "width": 16, "heads": 4, "depth": 2, "max_length": 20})).eval()
    export_model("gpt", ours, tmp_path / "out")
    theirs, report = transformers.ImageGPTForCausalImageModeling.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(report.values())
    assert greatest_difference(ours, theirs.eval()) <= 1e-5
    again = load_model(tmp_path / "out").model
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in own_tensors(ours).items())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True"),
        ({"add_cross_attention": True}, "add_cross_attention True"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings True"),
        ({"activation_function": "mish"}, "mish"),
        ({"n_layer": 3}, r"lacks transformer\.h\.2"),
    ],
)
def test_what_we_have_not_is_refused_by_name(change, named, tmp_path):
    theirs_of({}).save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, **change}))
    with pytest.raises(CheckpointError, match=named):
        load_model(tmp_path)


def test_the_presets_are_those_of_the_paper():
    """Chen et al. 2020, section 2.5: 76, 455 and 1362 million parameters, with 512 colours."""
    with torch.device("meta"):
        sizes = {
            name: sum(p.numel() for p in Gpt(GptConfig(**{**PRESETS[f"igpt-{name}"], "vocab": 513})).parameters())
            for name in ("small", "medium", "large")
        }
    assert sizes == pytest.approx({"small": 76e6, "medium": 455e6, "large": 1362e6}, rel=0.01)
