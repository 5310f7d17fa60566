"""Properties of every image model: logits, feature maps of any image, recorded attention, published sizes."""

import pytest
import torch

from regard.attention import record
from regard.attention.record import attention_names
from regard.checkpoints.models import outline
from regard.errors import ConfigError
from regard.families.catalog import MODELS
from regard.runtime.convert import fast_model

SHAPES = {
    "vit": {"image_size": 16, "patch": 4, "width": 16, "heads": 2, "depth": 2, "ffn_width": 24},
    "resnet": {"image_size": 16, "stem": "small", "block": "basic", "stem_width": 8, "widths": (8, 16),
               "depths": (1, 1), "heads": 2, "window": 3},
    "swin": {"image_size": 16, "patch": 2, "width": 8, "depths": (2, 1), "heads": (1, 2), "window": 4},
    "mvit": {"image_size": 16, "patch_kernel": 3, "patch_stride": 2, "width": 8, "depths": (1, 1), "key_stride": 2},
}  # fmt: skip
VARIANTS = [
    ("vit", {}),
    ("vit", {"pool": "mean"}),
    ("vit", {"stem": "convolutions"}),
    ("resnet", {}),
    ("resnet", {"block": "bottleneck", "norm": "group", "standardise": True, "stem": "large", "widths": (16, 32)}),
    ("resnet", {"order": "pre", "norm": "group", "standardise": True}),
    ("resnet", {"order": "pre", "block": "bottleneck", "stem": "large", "widths": (32, 64)}),
    ("resnet", {"nonlocal_after": (1, 2)}),
    ("resnet", {"spatial": "local"}),
    ("resnet", {"spatial": "geometric"}),
    ("swin", {}),
    ("swin", {"version": 2}),
    ("swin", {"positions": True}),
    ("swin", {"stem": "convolutions"}),
    ("mvit", {}),
    ("mvit", {"class_token": True, "positions": "absolute", "residual_pooling": False, "widen": "feed_forward"}),
]


def built(name, changes, **more):
    torch.manual_seed(0)
    config = MODELS[name].config(**{**SHAPES[name], "classes": 5, **changes, **more})
    return MODELS[name].model(config)


@pytest.fixture(params=VARIANTS, ids=lambda case: "-".join([case[0], *map(str, case[1].values())]))
def case(request):
    return request.param


@pytest.mark.parametrize("size", [(16, 16), (23, 13), (40, 17)])
def test_pictures_of_every_size_have_logits_and_maps(case, size):
    name, changes = case
    model, images = built(name, changes).eval(), torch.randn(2, 3, *size)
    with torch.inference_mode():
        assert model(images).shape == (2, 5)
        maps = model.features(images)
    assert all(each.dim() == 4 and len(each) == 2 for each in maps)
    sides = [each.shape[2:] for each in maps]
    assert sides == sorted(sides, reverse=True)  # highest resolution first


def test_a_picture_is_judged_alone(case):
    name, changes = case
    model, images = built(name, changes).eval(), torch.randn(3, 3, 18, 21)
    with torch.inference_mode():
        together = model(images)
        for number in range(3):
            alone = model(images[number : number + 1])
            torch.testing.assert_close(together[number], alone[0], atol=1e-5, rtol=1e-5)


def test_the_form_it_is_run_by_sees_the_same(case):
    name, changes = case
    model = built(name, changes).eval()
    form = fast_model(model)
    for size in ((16, 16), (40, 17)):
        images = torch.randn(3, 3, *size)
        with torch.inference_mode():
            torch.testing.assert_close(form(images), model(images), atol=1e-5, rtol=1e-5)


def test_every_parameter_learns(case):
    name, changes = case
    model = built(name, changes)
    for parameter in model.parameters():  # gates that are closed at first would pass nothing
        if parameter.dim() <= 1:
            torch.nn.init.normal_(parameter, std=0.5)
    images = torch.randn(4, 3, 16, 16)
    (model(images).square().sum() + sum(each.square().sum() for each in model.features(images))).backward()
    without = [key for key, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    # A constant added to all scores does not change a softmax, so key biases have no effect.
    assert not [key for key in without if not key.endswith("key.bias")]


def test_branches_of_swin_v2_add_nothing_at_first():
    second, first = (built("swin", {"version": version}).eval() for version in (2, 1))
    x = torch.randn(2, 8, 8, 8)
    assert torch.equal(second.stages[0](x), x)
    assert not torch.equal(first.stages[0](x), x)


def test_all_attention_is_recorded_and_recording_changes_nothing(case):
    name, changes = case
    model, images = built(name, changes).eval(), torch.randn(2, 3, 16, 16)
    if not attention_names(model):
        assert (name, changes.get("spatial", "convolution")) == ("resnet", "convolution")
        return
    with torch.inference_mode():
        expected = model(images)
        with record(model) as looks:
            found = model(images)
    assert torch.equal(found, expected)
    assert set(looks) == set(attention_names(model))
    for weights in looks.values():
        sums = weights.sum(-1)
        assert torch.all((sums - 1).abs().lt(1e-5) | sums.eq(0))


def test_drop_path_leaves_branches_out_in_training_only():
    for name in ("vit", "swin", "mvit"):
        model, images = built(name, {}, drop_path=0.9), torch.randn(2, 3, 16, 16)
        model.train()
        assert len({model(images).sum().item() for _ in range(4)}) > 1
        model.eval()
        assert len({model(images).sum().item() for _ in range(4)}) == 1


@pytest.mark.parametrize(
    ("name", "preset", "millions"),
    [  # with 1000 classes, as counted in the papers and by torchvision, timm or transformers
        ("vit", "ti-16", 5.717), ("vit", "s-16", 22.051), ("vit", "b-32", 88.224), ("vit", "b-16", 86.568),
        ("vit", "l-16", 304.327), ("vit", "h-14", 632.046),
        ("resnet", "18", 11.690), ("resnet", "34", 21.798), ("resnet", "50", 25.557),
        ("swin", "t", 28.288), ("swin", "s", 49.606), ("swin", "b", 87.768), ("swin", "l", 196.532),
        ("swin", "v2-t", 28.347), ("swin", "v2-b", 87.919),
        ("mvit", "v1-b", 36.996), ("mvit", "v2-t", 24.173), ("mvit", "v2-s", 34.870), ("mvit", "v2-b", 51.473),
        ("mvit", "v2-l", 217.993),
    ],
)  # fmt: skip
def test_presets_are_as_large_as_published(name, preset, millions):
    entry = MODELS[name]
    model = outline(name, entry.config(**entry.presets[preset]))
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(millions, abs=6e-4)


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("resnet", {"depths": (1,)}, r"depths = \(1,\): as many stages .* as in widths"),
        ("resnet", {"nonlocal_after": (3,)}, "names stage 3; stages are 1 to 2"),
        ("resnet", {"spatial": "local", "window": 4}, "window = 4: has no middle"),
        ("resnet", {"spatial": "local", "heads": 3}, "heads = 3: 6 must divide the .* channels of stage 1"),
        ("swin", {"heads": (1,)}, r"depths = \(2, 1\): as many stages .* as in heads = \(1,\)"),
        ("swin", {"trained_windows": (2, 2)}, "trained_windows = .*: are for V2"),
        ("mvit", {"depths": ()}, "depths = .*: names no stage"),
        ("mvit", {"heads": 3}, "heads = 3: must divide width = "),
        ("vit", {"class_names": ("a",)}, "names 1 classes, but classes = 5"),
        ("vit", {"patch": 14, "stem": "convolutions"}, "patch = 14: .* it must be 1, 2, 4, 8, 16 or so on"),
        ("swin", {"patch": 3, "stem": "convolutions"}, "patch = 3: .* it must be"),
    ],
)
def test_configs_that_do_not_hold_together_are_explained(name, changes, says):
    with pytest.raises(ConfigError, match=says):
        built(name, changes)


def test_a_convolution_can_be_standardised():
    """Shifting and scaling whole filters changes nothing."""
    model = built("resnet", {"standardise": True, "norm": "group"}).eval()
    images = torch.randn(1, 3, 16, 16)
    expected = model(images)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("mix.weight"):
                parameter.mul_(3.0).add_(0.5)
    torch.testing.assert_close(model(images), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("body", ["resnet", "vit", "swin", "mvit"])
def test_every_model_of_images_can_be_the_body_of_a_segmenter(body):
    torch.manual_seed(0)
    values = {key: value for key, value in SHAPES[body].items() if key != "image_size"}
    config = MODELS["segmenter"].config(image_size=16, classes=3, width=8, body=body, body_values=values)
    model = MODELS["segmenter"].model(config)
    logits = model(torch.randn(2, 3, 16, 20))
    assert logits.shape == (2, 3, 16, 20)
    logits.square().mean().backward()
    without = [key for key, parameter in model.named_parameters() if parameter.grad is None]
    assert not without
