"""Big Transfer folders of Hugging Face (BitForImageClassification): the same logits, and exact round trips."""

import json

import pytest
import torch
from safetensors.torch import load_file

from regard.checkpoints import export_model, load_model
from regard.errors import CheckpointError, ConfigError
from regard.families.images.resnet import PRESETS, Resnet, ResnetConfig

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

SHAPES = [
    {},
    {"num_channels": 1, "embedding_size": 32, "hidden_sizes": [32, 96, 64], "depths": [1, 2, 1], "num_labels": 3},
    {"embedding_size": 64, "hidden_sizes": [128], "num_groups": 32, "depths": [3], "id2label": {0: "cat", 1: "dog"}},
]


def theirs_of(changes):
    torch.manual_seed(0)
    sizes = {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [2, 2], "num_groups": 8}
    model = transformers.BitForImageClassification(transformers.BitConfig(**{**sizes, **changes})).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.dim() == 1:
                tensor.normal_(std=0.5)
    return model


@pytest.mark.parametrize("changes", SHAPES)
def test_their_folder_gives_the_same_logits_and_survives_the_way_back(changes, tmp_path):
    theirs = theirs_of(changes)
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = load_model(tmp_path / "theirs")
    assert loaded.name == "resnet" and loaded.config.order == "pre"
    with torch.inference_mode():
        for height, width in ((32, 32), (41, 35), (64, 9)):
            images = torch.randn(2, theirs.config.num_channels, height, width)
            assert (loaded.model(images) - theirs(images).logits).abs().max() <= 1e-5
    export_model("resnet", loaded.model, tmp_path / "back")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_our_model_is_loaded_by_their_library(tmp_path):
    torch.manual_seed(0)
    sizes = {"widths": (32, 64), "depths": (1, 2), "stem_width": 32, "classes": 3, "groups": 8}
    ours = Resnet(ResnetConfig(**{**PRESETS["50-bit"], **sizes})).eval()
    export_model("resnet", ours, tmp_path / "out")
    kind = transformers.AutoModelForImageClassification
    theirs, report = kind.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values()) and type(theirs).__name__ == "BitForImageClassification"
    images = torch.randn(2, 3, 33, 31)
    with torch.inference_mode():
        assert (ours(images) - theirs.eval()(images).logits).abs().max() <= 1e-5


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"layer_type": "bottleneck"}, "layer_type 'bottleneck'"),
        ({"global_padding": "SAME"}, "has global_padding"),
        ({"width_factor": 3}, "width_factor 3"),
        ({"output_stride": 8}, "output_stride 8"),
    ],
)
def test_what_we_have_not_is_refused_by_name(change, named, tmp_path):
    theirs_of({}).save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, **change}))
    with pytest.raises(CheckpointError, match=named):
        load_model(tmp_path)


def test_widths_that_theirs_cannot_have_are_refused():
    with pytest.raises(ConfigError, match="multiples of 32"):
        ResnetConfig(order="pre", widths=(24, 64), depths=(1, 1))
    with pytest.raises(ConfigError, match="groups = 32"):
        ResnetConfig(order="pre", norm="group", widths=(32, 64), depths=(1, 1))
