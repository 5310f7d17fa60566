"""Swin and Swin V2 folders of Hugging Face: the same logits and feature maps, and exact round trips.

This holds at every image size, except where a V2 map is no wider than a window and the config's map is: see
`families/images/swin.py`.
"""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.checkpoints import export_model, load_model
from regard.checkpoints.models import own_tensors
from regard.errors import CheckpointError
from regard.families.images.swin import Swin, SwinConfig

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

SHAPES = [  # (version, their config, image sizes besides the config's)
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
        for parameter in model.parameters():  # large enough to reveal a mistake
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
    ("changes", "windows", "sizes"),
    [
        ({}, [4, 4], [16, 8, 24]),  # the last map is equal to, smaller than and larger than a window
        ({"window_size": 3}, [3, 3], [12, 4]),
        ({"image_size": 64, "window_size": 8, "depths": [2, 2, 2], "num_heads": [1, 2, 4]}, [8, 8, 8], [56, 16]),
        ({"pretrained_window_sizes": [3, 2]}, [3, 2], [16, 8]),
    ],
)
def test_a_smaller_picture_is_read_as_by_a_v2_made_for_its_size(changes, windows, sizes, tmp_path):
    """The authors' V2 is built for one image size: a map no wider than the window is one window, without shift or
    padding, and `pretrained_window_sizes` keeps the window sizes that its distances are relative to."""
    theirs = theirs_of(2, changes)
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path).model
    for size in sizes:
        made = theirs_of(2, {**changes, "image_size": size, "pretrained_window_sizes": windows})
        made.load_state_dict(theirs.state_dict())
        images = torch.randn(2, 3, size, size)
        with torch.inference_mode():
            assert (ours(images) - made(images).logits).abs().max() <= 1e-5


def test_a_map_smaller_than_the_window_of_v1_keeps_the_numbers_of_its_distances():
    """Their class fails for such maps; the authors' class has a table for the size of the map."""
    torch.manual_seed(0)
    sizes = {"patch": 2, "width": 8, "depths": (2, 2), "heads": (2, 4)}
    larger, smaller = (Swin(SwinConfig(**sizes, image_size=4 * side, window=side)).eval() for side in (5, 3))
    tensors = larger.state_dict()
    for name, tensor in tensors.items():
        if name.endswith("position.table"):  # 9 x 9 distances; those of 3 x 3 tokens are the middle 5 x 5
            torch.nn.init.normal_(tensor)
            tensors[name] = tensor.view(9, 9, -1)[2:7, 2:7].flatten(0, 1)
    smaller.load_state_dict(tensors)
    images = torch.randn(2, 3, 6, 6)  # maps of 3 x 3 and 2 x 2
    with torch.inference_mode():
        torch.testing.assert_close(larger(images), smaller(images), atol=1e-6, rtol=0)


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
