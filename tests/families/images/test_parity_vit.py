"""ViT folders of Hugging Face: the same logits at every image size, and exact round trips."""

import json

import pytest
import torch
from safetensors.torch import load_file

from regard.checkpoints import export_model, load_model
from regard.checkpoints.models import own_tensors
from regard.errors import CheckpointError
from regard.families.images.vit import Vit, VitConfig

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

SHAPES = [
    {},
    {"image_size": 15, "patch_size": 5, "hidden_act": "relu", "num_labels": 3},
    {"image_size": 13, "patch_size": 4, "qkv_bias": False, "num_channels": 1},
    {"hidden_size": 24, "num_attention_heads": 6, "intermediate_size": 17, "layer_norm_eps": 1e-5},
    {"num_hidden_layers": 1, "hidden_act": "gelu_new", "patch_size": 2, "image_size": 7},
    {"hidden_act": "quick_gelu", "id2label": {0: "cat", 1: "dog", 2: "newt"}, "hidden_dropout_prob": 0.1},
]


def theirs_of(changes, seed=0):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}
    config = transformers.ViTConfig(**{**sizes, "image_size": 16, "patch_size": 4, **changes})
    model = transformers.ViTForImageClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # large enough to reveal a mistake
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, std=0.3)
    return model


@pytest.mark.parametrize("seed", range(len(SHAPES)))
def test_their_folder_gives_the_same_logits_and_survives_the_way_back(seed, tmp_path):
    theirs = theirs_of(SHAPES[seed], seed)
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = load_model(tmp_path / "theirs")
    assert loaded.name == "vit"
    side = theirs.config.image_size
    with torch.inference_mode():
        for height, width in ((side, side), (2 * side + 3, side + 5), (side, 2 * side), (side - 1, side + 1)):
            images = torch.randn(3, theirs.config.num_channels, height, width)
            expected = theirs(images, interpolate_pos_encoding=(height, width) != (side, side)).logits
            assert (loaded.model(images) - expected).abs().max() <= 1e-5

    export_model("vit", loaded.model, tmp_path / "back")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("changes", [{}, {"classes": 2, "class_names": ("cat", "dog"), "attention_bias": False}])
def test_our_model_is_loaded_by_their_library(changes, tmp_path):
    torch.manual_seed(0)
    sizes = {"image_size": 12, "patch": 4, "width": 16, "heads": 4, "depth": 2, "ffn_width": 24, "classes": 5}
    ours = Vit(VitConfig(**{**sizes, **changes})).eval()
    export_model("vit", ours, tmp_path / "out")
    theirs, report = transformers.AutoModelForImageClassification.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(report.values())
    images = torch.randn(2, 3, 12, 12)
    with torch.inference_mode():
        assert (ours(images) - theirs.eval()(images).logits).abs().max() <= 1e-5
    if ours.config.class_names:
        assert tuple(theirs.config.id2label.values()) == ours.config.class_names
    again = load_model(tmp_path / "out")
    assert again.config == ours.config
    assert all(torch.equal(tensor, again.model.state_dict()[name]) for name, tensor in own_tensors(ours).items())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["ViTForMaskedImageModeling"]}, "ViTForMaskedImageModeling"),
        ({"hidden_act": "mish"}, "mish"),
        ({"image_size": 32}, r"positions\.table"),
        ({"num_hidden_layers": 4}, r"lacks vit\.encoder\.layer\.3"),
    ],
)
def test_what_we_have_not_is_refused_by_name(change, named, tmp_path):
    theirs_of({}).save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, **change}))
    with pytest.raises(CheckpointError, match=named):
        load_model(tmp_path)


def test_a_model_without_a_class_token_has_no_form_of_theirs(tmp_path):
    with pytest.raises(CheckpointError, match="pool 'mean'"):
        export_model("vit", Vit(VitConfig(image_size=8, patch=4, width=8, heads=2, depth=1, pool="mean")), tmp_path)
