"""Swin and Swin V2 folders of Hugging Face: the same logits and maps at every picture size, the same bits both ways."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.checkpoints import export_model, load_model
from regard.checkpoints.models import own_tensors
from regard.errors import CheckpointError
from regard.models.swin import Swin, SwinConfig

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

SHAPES = [  # (version, their config, picture sizes besides the config's)
    (1, {}, [(33, 50), (29, 64)]),
    (1, {"window_size": 3, "image_size": 30, "qkv_bias": False, "num_labels": 3}, [(41, 30)]),
    (1, {"depths": [3], "num_heads": [2], "window_size": 5, "num_channels": 1, "hidden_act": "relu"}, [(21, 37)]),
    (1, {"depths": [1, 2, 2], "num_heads": [1, 2, 4], "window_size": 2, "mlp_ratio": 1.5}, [(35, 45)]),
    (1, {"image_size": 16, "use_absolute_embeddings": True, "layer_norm_eps": 1e-3}, []),
    (1, {"patch_size": 3, "image_size": 31, "window_size": 3, "id2label": {0: "cat", 1: "dog", 2: "newt"}}, [(32, 47)]),
    (2, {}, [(33, 50), (29, 64)]),
    (2, {"window_size": 3, "image_size": 30, "qkv_bias": False, "num_labels": 3}, [(41, 30)]),
    (2, {"depths": [3], "num_heads": [2], "window_size": 5, "num_channels": 1, "hidden_act": "relu"}, [(21, 37)]),
    (2, {"depths": [1, 2, 2], "num_heads": [1, 2, 4], "window_size": 6, "mlp_ratio": 1.5}, [(35, 45)]),
    (2, {"pretrained_window_sizes": [3, 2], "layer_norm_eps": 1e-3}, [(40, 40)]),
    (2, {"patch_size": 3, "image_size": 31, "window_size": 1, "id2label": {0: "cat", 1: "dog", 2: "newt"}}, [(32, 47)]),
]  # fmt: skip
NAMES = {1: "Swin", 2: "Swinv2"}


def theirs_of(version, changes, seed=0):
    torch.manual_seed(seed)
    sizes = {"embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "image_size": 32, "patch_size": 2}
    config = getattr(transformers, f"{NAMES[version]}Config")(**{**sizes, **changes})
    model = getattr(transformers, f"{NAMES[version]}ForImageClassification")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # large enough to show a mistake
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, std=0.3)
    return model


@pytest.mark.parametrize("seed", range(len(SHAPES)))
def test_their_folder_gives_the_same_logits_and_survives_the_way_back(seed, tmp_path):
    version, changes, others = SHAPES[seed]
    theirs = theirs_of(version, changes, seed)
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = load_model(tmp_path / "theirs")
    assert loaded.name == "swin"
    side = theirs.config.image_size
    with torch.inference_mode():
        for height, width in ((side, side), *others):
            images = torch.randn(2, theirs.config.num_channels, height, width)
            expected = theirs(images, output_hidden_states=True)
            assert (loaded.model(images) - expected.logits).abs().max() <= 1e-5
            ours, last = loaded.model.features(images), expected.reshaped_hidden_states[-1]
            assert (ours[-1] - loaded.model.norm(last.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)).abs().max() <= 1e-5

    export_model("swin", loaded.model, tmp_path / "back")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention_bias": False, "class_names": ("a", "b", "c")},
        {"version": 2},
        {"version": 2, "trained_windows": (2, 3)},
    ],
)
def test_our_model_is_loaded_by_their_library(changes, tmp_path):
    torch.manual_seed(0)
    sizes = {"image_size": 24, "patch": 2, "width": 8, "depths": (2, 1), "heads": (2, 4), "window": 3, "classes": 3}
    ours = Swin(SwinConfig(**{**sizes, **changes})).eval()
    export_model("swin", ours, tmp_path / "out")
    theirs, report = transformers.AutoModelForImageClassification.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(report.values())
    images = torch.randn(2, 3, 27, 24)
    with torch.inference_mode():
        assert (ours(images) - theirs.eval()(images).logits).abs().max() <= 1e-5
    again = load_model(tmp_path / "out")
    assert again.config == ours.config
    assert all(torch.equal(tensor, again.model.state_dict()[name]) for name, tensor in own_tensors(ours).items())


@pytest.mark.parametrize(
    ("version", "change", "named"),
    [
        (1, {"hidden_act": "mish"}, "mish"),
        (1, {"window_size": 3}, r"position\.table"),
        (1, {"depths": [2, 3]}, r"lacks swin\.encoder\.layers\.1\.blocks\.2"),
        (2, {"use_absolute_embeddings": True}, "use_absolute_embeddings True"),
        (2, {"architectures": ["Swinv2ForMaskedImageModeling"]}, "Swinv2ForMaskedImageModeling"),
    ],
)
def test_what_we_have_not_is_refused_by_name(version, change, named, tmp_path):
    theirs_of(version, {}).save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, **change}))
    with pytest.raises(CheckpointError, match=named):
        load_model(tmp_path)


@pytest.mark.parametrize("version", [1, 2])
def test_what_older_versions_stored_of_the_geometry_is_passed_over(version, tmp_path):
    theirs = theirs_of(version, {})
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = f"{NAMES[version].lower()}.encoder.layers.0.blocks.0.attention.self"
    tensors[f"{name}.relative_position_index"] = torch.zeros(16, 16, dtype=torch.long)
    if version == 2:
        tensors[f"{name}.relative_coords_table"] = torch.zeros(1, 7, 7, 2)
    save_file(tensors, tmp_path / "model.safetensors")
    images = torch.randn(1, 3, 32, 32)
    with torch.inference_mode():
        assert (load_model(tmp_path).model(images) - theirs(images).logits).abs().max() <= 1e-5
