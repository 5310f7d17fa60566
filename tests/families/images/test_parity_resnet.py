"""ResNet folders of Hugging Face: the same logits at every image size, and exact round trips."""

import json

import pytest
import torch
from safetensors.torch import load_file

from regard.checkpoints import export_model, load_model
from regard.checkpoints.models import own_tensors
from regard.errors import CheckpointError
from regard.families.images.resnet import Resnet, ResnetConfig

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

SHAPES = [
    {},
    {"layer_type": "basic", "hidden_sizes": [8, 12], "depths": [2, 1], "num_labels": 3},
    {"num_channels": 1, "embedding_size": 6, "hidden_sizes": [16, 24, 32], "depths": [1, 2, 1]},
    {"layer_type": "basic", "embedding_size": 5, "hidden_sizes": [5, 5], "depths": [1, 3]},
    {"hidden_sizes": [8], "depths": [2], "id2label": {0: "cat", 1: "dog", 2: "newt"}},
]


def theirs_of(changes, seed=0):
    torch.manual_seed(seed)
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2]}
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(**{**sizes, **changes})).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 2)
            elif tensor.dim() == 1:
                tensor.normal_(std=0.5)
    return model


@pytest.mark.parametrize("seed", range(len(SHAPES)))
def test_their_folder_gives_the_same_logits_and_survives_the_way_back(seed, tmp_path):
    theirs = theirs_of(SHAPES[seed], seed)
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = load_model(tmp_path / "theirs")
    assert loaded.name == "resnet"
    with torch.inference_mode():
        for height, width in ((32, 32), (17, 35), (1, 9)):
            images = torch.randn(2, theirs.config.num_channels, height, width)
            assert (loaded.model(images) - theirs(images).logits).abs().max() <= 1e-5
            stages = theirs(images, output_hidden_states=True).hidden_states[1:]
            for ours, expected in zip(loaded.model.features(images), stages, strict=True):
                assert (ours - expected).abs().max() <= 1e-4

    export_model("resnet", loaded.model, tmp_path / "back")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("changes", [{}, {"block": "basic", "class_names": ("a", "b", "c")}])
def test_our_model_is_loaded_by_their_library(changes, tmp_path):
    torch.manual_seed(0)
    config = ResnetConfig(**{"widths": (8, 16), "depths": (1, 2), "stem_width": 8, "classes": 3, **changes})
    ours = Resnet(config)
    ours(torch.randn(4, 3, 32, 32))  # so that the running means differ from their initial values
    export_model("resnet", ours.eval(), tmp_path / "out")
    theirs, report = transformers.AutoModelForImageClassification.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(report.values())
    images = torch.randn(2, 3, 33, 31)
    with torch.inference_mode():
        assert (ours(images) - theirs.eval()(images).logits).abs().max() <= 1e-5
    again = load_model(tmp_path / "out")
    assert again.config == ours.config
    assert all(torch.equal(tensor, again.model.state_dict()[name]) for name, tensor in own_tensors(ours).items())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"downsample_in_bottleneck": True}, "downsample_in_bottleneck True"),
        ({"downsample_in_first_stage": True}, "downsample_in_first_stage True"),
        ({"depths": [2, 3]}, r"lacks resnet\.encoder\.stages\.1\.layers\.2"),
        ({"depths": [2]}, "depths"),
    ],
)
def test_what_we_have_not_is_refused_by_name(change, named, tmp_path):
    theirs_of({}).save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, **change}))
    with pytest.raises(CheckpointError, match=named):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"stem": "small"}, "stem 'small'"),
        ({"nonlocal_after": (1,)}, "nonlocal_after"),
        ({"spatial": "local", "heads": 2}, "spatial 'local'"),
        ({"norm": "group"}, "norm 'group'"),
    ],
)
def test_what_theirs_have_not_is_not_exported(changes, named, tmp_path):
    model = Resnet(ResnetConfig(widths=(16, 16), depths=(1, 1), stem_width=8, **changes))
    with pytest.raises(CheckpointError, match=named):
        export_model("resnet", model, tmp_path / "out")
