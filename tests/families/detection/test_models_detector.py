"""The detector: bodies, losses, and answers that depend on one image alone."""

import pytest
import torch

from regard.errors import ConfigError
from regard.families.detection.model import PRESETS, Detector, DetectorConfig
from regard.families.detection.proposals import Truth

MVIT = {
    "body": "mvit", "body_preset": "tiny", "body_values": {}, "pooled": False,
    "proposals": {**PRESETS["tiny"]["proposals"], "sizes": ((12.0, 20.0), (24.0, 40.0))},
}  # fmt: skip


def made(preset="tiny", **changes):
    torch.manual_seed(0)
    return Detector(DetectorConfig.parse({**PRESETS[preset], **changes}))


def truth(boxes, labels):
    return Truth(torch.tensor(boxes, dtype=torch.float32), torch.tensor(labels))


@pytest.mark.parametrize(("preset", "changes"), [("tiny", {}), ("tiny-swin", {}), ("tiny-vit", {}), ("tiny", MVIT)])
def test_every_body_detects_and_learns(preset, changes):
    model = made(preset, **changes)
    images = torch.randn(2, 3, 64, 64)
    boxes = [[[5, 8, 30, 40], [0, 0, 0, 0]], [[20, 20, 50, 60], [3, 3, 20, 18]]]
    losses = model(images, truth=truth(boxes, [[2, 0], [1, 5]]))
    assert len(losses) == 4 and all(each.shape == (2,) and torch.isfinite(each).all() for each in losses)
    sum(each.sum() for each in losses).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert sum(p.grad is None for p in model.body.parameters()) <= 4  # norms and positions after the last map
    found = model.eval()(images)
    assert found.boxes.shape[2] == 4 and ((found.labels >= 0) == (found.scores > 0)).all()
    assert (found.boxes >= 0).all() and (found.boxes <= 64).all()
    assert (found.scores.diff(dim=1) <= 0).all()


def test_anchors_of_the_pooled_map_stand_on_the_cells_that_it_has():
    """Its cells are every second one of the map before it, whatever the sides of the image."""
    body = {"norm": "group", "widths": (8, 8, 8, 8), "stem_width": 8}
    model = made("small", width=8, body_values=body).eval()
    with torch.no_grad():
        maps, strides, _ = model._maps(torch.randn(1, 3, 96, 160), None)
        scored = model.proposals(maps, strides)
    assert [tuple(each.shape[2:]) for each in maps[-2:]] == [(3, 5), (2, 3)]
    centres = [(each[:, :2] + each[:, 2:]) / 2 for each in scored.anchors.split(scored.counts)]
    coarse, pooled = (each.view(*one.shape[2:], -1, 2) for each, one in zip(centres[-2:], maps[-2:], strict=True))
    torch.testing.assert_close(pooled, coarse[::2, ::2], atol=0.5, rtol=0)  # sides are rounded to pixels


def test_images_without_objects_are_learnt_from_too():
    losses = made()(torch.randn(1, 3, 64, 64), truth=truth([[[0, 0, 0, 0]]], [[0]]))
    assert torch.isfinite(torch.stack(losses)).all() and losses.anchor_boxes.item() == losses.boxes.item() == 0


def test_an_answer_depends_on_its_image_alone():
    model = made().eval()
    model.regions.label.bias.data[1] = 3.0  # so that something is found
    images, sizes = torch.randn(3, 3, 64, 96), torch.tensor([[64.0, 96.0], [50.0, 96.0], [64.0, 70.0]])
    for image, (height, width) in zip(images, sizes.int().tolist(), strict=True):
        image[:, height:], image[:, :, width:] = 0, 0
    with torch.no_grad():
        together = model(images, sizes)
        for row in range(3):
            alone = model(images[row : row + 1], sizes[row : row + 1])
            assert (alone.labels >= 0).any()
            for ours, theirs in zip(alone[:3], together[:3], strict=True):
                torch.testing.assert_close(ours[0], theirs[row], rtol=1e-4, atol=1e-4)
        height, width = sizes[1].int().tolist()
        cut = model(images[1:2, :, :height, :width])  # the model pads as the batch was padded
        torch.testing.assert_close(cut.boxes[0], together.boxes[1], rtol=1e-4, atol=1e-4)
    assert (together.boxes[1, :, 3] <= 50).all() and (together.boxes[2, :, 2] <= 70).all()


def test_a_few_images_are_learnt_by_heart():
    torch.manual_seed(1)
    model, images = made(), torch.zeros(2, 3, 64, 64)
    boxes, labels = [[[8, 8, 24, 24]], [[30, 20, 60, 50]]], [[1], [4]]
    images[0, 0, 8:24, 8:24], images[1, 1, 20:50, 30:60] = 3.0, 3.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(40):
        optimizer.zero_grad()
        sum(each.sum() for each in model(images, truth=truth(boxes, labels))).backward()
        optimizer.step()
    with torch.no_grad():
        found = model.eval()(images)
    assert found.labels[:, 0].tolist() == [0, 3]
    torch.testing.assert_close(found.boxes[:, 0], torch.tensor(boxes, dtype=torch.float32)[:, 0], rtol=0, atol=4.0)


def test_torchvisions_model_has_as_many_weights():
    """torchvision's fasterrcnn_resnet50_fpn has 41,755,286 parameters, and 53,120 in batch norms if they are learnt."""
    with torch.device("meta"):
        model = Detector(DetectorConfig.parse(PRESETS["resnet-50-fpn"]))
    assert sum(parameter.numel() for parameter in model.parameters()) == 41_755_286 + 53_120


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"body": "bert"}, "yields no feature maps"),
        ({"proposals": {"sizes": ((8.0,),)}}, "there are 3 maps"),
        ({"pyramid": "simple"}, "is for a body with one map"),
        ({"pyramid": "none"}, "have several widths"),
        ({"proposals": {"sizes": ((8.0,), (9.0,), (1.0, 2.0))}}, "equally many sizes"),
    ],
)
def test_what_does_not_fit_is_refused(changes, says):
    with pytest.raises(ConfigError, match=says):
        DetectorConfig.parse({**PRESETS["tiny"], **changes})


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_whole(preset):
    with torch.device("meta"):
        Detector(DetectorConfig.parse(PRESETS[preset]))
