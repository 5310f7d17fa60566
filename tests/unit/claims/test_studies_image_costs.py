"""The costs of image models against real modules; the cost of one image is the difference of two batches."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import record
from regard.families.catalog import MODELS
from regard.families.detection.proposals import Truth
from regard.studies.costs.models import COSTS

SIZES = {
    "vit": {"image_size": 20, "patch": 4, "width": 32, "heads": 4, "depth": 3, "ffn_width": 80, "classes": 7},
    "resnet": {"image_size": 20, "stem": "small", "stem_width": 16, "widths": (16, 32), "depths": (2, 2), "classes": 7,
               "block": "basic", "heads": 4},
    "swin": {"image_size": 24, "patch": 2, "width": 16, "depths": (2, 2), "heads": (2, 4), "window": 4, "classes": 7,
             "drop_path": 0.0},
    "mvit": {"image_size": 32, "width": 16, "depths": (1, 2), "key_stride": 2, "classes": 7, "drop_path": 0.0},
    "segmenter": {"image_size": 24, "width": 16, "classes": 5},
    "detector": {
        "image_size": 64, "width": 16, "classes": 5, "pooled": False,
        "proposals": {"sizes": ((8.0,), (16.0,)), "ratios": (1.0,), "train_before": 20, "train_after": 20,
                      "sampled": 8},
        "regions": {"width": 24, "sampled": 12},
    },
    "sagan": {"image_size": 16, "widths": (32, 16), "latent": 12, "attention_at": 8, "classes": 3},
}  # fmt: skip
SMALL_SWIN = {key: SIZES["swin"][key] for key in ("patch", "width", "depths", "heads", "window", "drop_path")}
CASES = [
    ("vit", {}),
    ("vit", {"pool": "mean", "activation": "relu", "attention_bias": False, "channels": 1}),
    ("vit", {"dropout": 0.1, "attention_dropout": 0.1, "image_size": 22}),
    ("vit", {"stem": "convolutions"}),
    ("vit", {"stem": "convolutions", "patch": 8, "image_size": 43, "channels": 1}),
    ("resnet", {}),
    ("resnet", {"stem": "large", "block": "bottleneck", "image_size": 41, "widths": (32, 48, 64), "depths": (1, 2, 1)}),
    ("resnet", {"norm": "group", "standardise": True, "nonlocal_after": (1, 2)}),
    ("resnet", {"order": "pre", "norm": "group", "standardise": True, "nonlocal_after": (1, 2)}),
    ("resnet", {"spatial": "local", "window": 5}),
    ("resnet", {"spatial": "local", "window": 3, "block": "bottleneck", "widths": (64, 96), "image_size": 17}),
    ("resnet", {"spatial": "geometric", "window": 5}),
    ("swin", {}),
    ("swin", {"attention_bias": False, "image_size": 27, "positions": True, "ffn_ratio": 2.0}),
    ("swin", {"version": 2, "window": 3, "activation": "relu"}),
    ("swin", {"version": 2, "attention_bias": False, "dropout": 0.1, "attention_dropout": 0.1, "image_size": 25}),
    ("swin", {"stem": "convolutions"}),
    ("swin", {"stem": "convolutions", "patch": 4, "width": 48, "image_size": 47}),
    ("swin", {"stem": "convolutions", "patch": 1, "image_size": 12}),
    ("mvit", {}),
    ("mvit", {"class_token": True, "widen": "feed_forward", "heads": 2, "depths": (2, 1, 1), "key_stride": 4}),
    ("mvit", {"positions": "absolute", "residual_pooling": False, "image_size": 30}),
    ("segmenter", {"body_values": SMALL_SWIN}),
    ("segmenter", {"body": "vit", "body_values": {"patch": 4, "width": 16, "heads": 2, "depth": 2, "ffn_width": 32}}),
    ("detector", {"body_values": {**SIZES["resnet"], "stem": "large"}}),
    ("detector", {"body": "swin", "body_values": {**SMALL_SWIN, "patch": 4}, "norm": "group"}),
    (
        "detector",
        {
            "body": "vit",
            "body_values": {"patch": 8, "width": 16, "heads": 2, "depth": 2, "ffn_width": 32},
            "pyramid": "simple",
            "proposals": {**SIZES["detector"]["proposals"], "sizes": ((8.0,),) * 4},
        },
    ),
    ("sagan", {}),
    ("sagan", {"attention_at": 0, "conditional": False, "widths": (16, 16, 8), "channels": 1}),
]
BATCHES = 2, 5


@pytest.fixture(params=CASES, ids=lambda case: "-".join([case[0], *map(str, case[1].values())]))
def case(request):
    """A model, a function that runs it on a number of images, and its planned costs."""
    name, changes = request.param
    torch.manual_seed(0)
    config = MODELS[name].config(**{**SIZES[name], **changes})
    model = MODELS[name].model(config).train()

    def call(pictures):
        if name == "sagan":
            labels = torch.zeros(pictures, dtype=torch.long)
            return model.critic(model(model.draw(labels), labels), labels).sum()
        images = torch.randn(pictures, config.channels, config.image_size, config.image_size)
        if name == "detector":
            box = torch.tensor([10.0, 12.0, 40.0, 44.0]).expand(pictures, 1, 4)
            truth = Truth(box, torch.ones(pictures, 1, dtype=torch.long))
            return sum(each.sum() for each in model(images, truth=truth))
        return model(images).log_softmax(1)[:, 0].sum()

    return model, call, COSTS[name](config, 0, 0)


def test_parameters_are_exact(case):
    model, _, costs = case
    assert costs.total.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_flops_of_one_more_picture_are_those_torch_counts(case):
    _, call, costs = case
    counts = []
    for pictures in BATCHES:  # torch's counter does not support the fused kernels of CPUs
        unfused = torch.backends.mkldnn.flags(enabled=False, allow_tf32=None), sdpa_kernel(SDPBackend.MATH)
        with unfused[0], unfused[1], FlopCounterMode(display=False) as counter:
            call(pictures)
        counts.append(counter.get_total_flops())
    assert costs.total.flops == (counts[1] - counts[0]) / (BATCHES[1] - BATCHES[0])


def test_activations_of_one_more_picture_are_those_autograd_keeps(case):
    model, call, costs = case
    owned = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    sizes = []
    for pictures in BATCHES:
        kept = {}  # by storage, so that views of one tensor count once; the tensor keeps its address from being reused

        def keep(tensor, kept=kept):
            kept[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            call(pictures)
        sizes.append(sum(t.untyped_storage().nbytes() for place, t in kept.items() if place not in owned))
    measured = (sizes[1] - sizes[0]) / (BATCHES[1] - BATCHES[0])
    assert 4 * costs.total.kept == pytest.approx(measured, rel=0.1)


def test_matrices_are_those_the_recorder_sees(case):
    model, call, costs = case
    if not costs.matrices:
        with pytest.raises(KeyError), record(model):
            pass
        return
    with record(model) as looks, torch.no_grad():
        call(3)
    planned = {m.name: (3 * m.windows, m.heads, m.queries, m.keys) for m in costs.matrices}
    assert planned == {name: tuple(weights.shape) for name, weights in looks.items()}
    assert all(3 * matrix.entries == looks[matrix.name].numel() for matrix in costs.matrices)
