"""Boxes and regions against torchvision's numbers (where the shared data are) and against brute force."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from regard.data.sources import data_root
from regard.families.detection import regions
from regard.families.detection.proposals import ProposalNetwork, ProposalSettings, RegionHead, RegionSettings

GOLDEN = Path(data_root()) / "goldens" / "torchvision_detection.npz"
needs_golden = pytest.mark.skipif(not GOLDEN.exists(), reason="the shared data are not there")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN, allow_pickle=False) as table:
        return {name: torch.from_numpy(np.asarray(table[name])) for name in table.files}


def drawn(count, seed=0, size=100.0, *shape):
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(*shape, count, 2, generator=generator) * size
    return torch.cat([corners, corners + 1 + torch.rand(*shape, count, 2, generator=generator) * size / 2], dim=-1)


# --- torchvision's numbers ---


@needs_golden
def test_box_coding_overlaps_matching_and_anchors_are_torchvisions(golden):
    truth, anchors = golden["box/truth"], golden["box/anchors"]
    torch.testing.assert_close(regions.encode(truth, anchors, (10.0, 5.0)), golden["box/encoded"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(regions.decode(golden["box/deltas"], anchors, (10.0, 5.0)), golden["box/decoded"])
    torch.testing.assert_close(regions.iou(truth, anchors), golden["match/iou"])
    real = torch.ones(len(truth), dtype=torch.bool)
    kept = regions.match(golden["match/iou"], real, high=0.7, low=0.3, keep_best=True)
    assert torch.equal(kept, golden["match/high7_low3_keep_best"])
    plain = regions.match(golden["match/iou"], real, high=0.5, low=0.5, keep_best=False)
    assert torch.equal(plain, golden["match/high5_low5"])
    maps = ((32.0, (8, 10), (8, 8)), (64.0, (4, 5), (16, 16)), (128.0, (2, 3), (32, 26)))
    made = [regions.anchors((size,), (0.5, 1.0, 2.0), grid, stride, CPU) for size, grid, stride in maps]
    assert torch.equal(torch.cat(made), golden["anchors"])


@needs_golden
@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("ratio", [2, -1])
def test_roi_align_is_torchvisions(golden, aligned, ratio):
    rois, scale = golden["roi_align/rois"], float(golden["roi_align/scale"])
    by_image = [rois[rois[:, 0] == number, 1:] for number in (0, 1)]
    found = regions.roi_align(
        [golden["roi_align/features"]], torch.stack(by_image), torch.zeros(2, 2, dtype=torch.long), [scale], 7, ratio,
        bool(aligned),
    )  # fmt: skip
    expected = golden[f"roi_align/aligned{aligned}_ratio{ratio}"]
    torch.testing.assert_close(found.flatten(0, 1).permute(0, 3, 1, 2), expected, rtol=1e-5, atol=1e-5)


@needs_golden
def test_a_whole_faster_rcnn_detects_what_torchvisions_does(golden):
    weights = {name.removeprefix("model/weights/"): value for name, value in golden.items() if "/weights/" in name}
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    image = (golden["model/image"][None] - mean[:, None, None]) / std[:, None, None]
    size = torch.tensor([[64.0, 96.0]])
    mapped = functional.conv2d(image, weights["backbone.c.weight"], weights["backbone.c.bias"], stride=4, padding=1)
    mapped = mapped.relu()
    proposing = ProposalNetwork(8, ProposalSettings(sizes=((16.0, 32.0),), after=30)).eval()
    names = {"mix": "conv.0.0", "score": "cls_logits", "box": "bbox_pred"}
    proposing.load_state_dict(
        {f"{ours}.{kind}": weights[f"rpn.head.{theirs}.{kind}"] for ours, theirs in names.items() for kind in KINDS}
    )
    head = RegionHead(8, 3, RegionSettings(score=0.01)).eval()
    weights["roi_heads.box_head.fc6.weight"] = (  # their channels come first
        weights["roi_heads.box_head.fc6.weight"].view(1024, 8, 7, 7).permute(0, 2, 3, 1).reshape(1024, -1)
    )
    names = {
        "first": "box_head.fc6", "second": "box_head.fc7", "label": "box_predictor.cls_score",
        "box": "box_predictor.bbox_pred",
    }  # fmt: skip
    head.load_state_dict(
        {f"{ours}.{kind}": weights[f"roi_heads.{theirs}.{kind}"] for ours, theirs in names.items() for kind in KINDS}
    )
    with torch.no_grad():
        proposals = proposing.proposals(proposing([mapped], [4]), size)
        found = head.detect(head.features([mapped], [4], proposals.boxes), proposals, size)
    count = int((found.labels[0] >= 0).sum())
    assert count == len(golden["model/out/scores"])
    torch.testing.assert_close(found.scores[0, :count], golden["model/out/scores"], rtol=1e-5, atol=2e-5)
    # equal scores may change places
    distances = (found.boxes[0, :count, None] - golden["model/out/boxes"]).abs().amax(-1)
    other = found.labels[0, :count, None] + 1 != golden["model/out/labels"]
    assert distances.masked_fill(other, math.inf).amin(0).max() < 1e-3


KINDS = "weight", "bias"


# --- brute force ---


def greedy(found, threshold):
    kept = []
    for number, box in enumerate(found):
        if all(regions.iou(box[None], found[other][None]).item() <= threshold for other in kept):
            kept.append(number)
    return kept


@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.9])
def test_suppression_is_the_greedy_algorithm(threshold):
    found = drawn(40, 1, 60.0, 3)
    counts = torch.tensor([40, 17, 0])
    kept = regions.suppress(found, counts, threshold)
    for row, count, mask in zip(found, counts.tolist(), kept, strict=True):
        assert mask.nonzero().flatten().tolist() == greedy(row[:count], threshold)


def test_suppression_follows_long_chains():
    """Each box overlaps the next one only: every second is kept, which takes as many rounds as there are regions."""
    left = torch.arange(50) * 5.0
    chain = torch.stack([left, torch.zeros(50), left + 8, torch.full((50,), 10.0)], dim=1)[None]
    kept = regions.suppress(chain, torch.tensor([50]), 0.2)
    assert kept[0].nonzero().flatten().tolist() == list(range(0, 50, 2))


def test_overlaps_are_those_of_counted_pixels():
    generator = torch.Generator().manual_seed(4)
    low = torch.randint(0, 20, (6, 2), generator=generator)
    found = torch.cat([low, low + torch.randint(1, 15, (6, 2), generator=generator)], dim=1).float()
    pixels = torch.zeros(6, 40, 40, dtype=torch.bool)
    for mask, (x1, y1, x2, y2) in zip(pixels, found.int().tolist(), strict=True):
        mask[y1:y2, x1:x2] = True
    both = (pixels[:, None] & pixels[None]).sum((2, 3))
    either = (pixels[:, None] | pixels[None]).sum((2, 3))
    torch.testing.assert_close(regions.iou(found, found), both / either)
    empty = torch.tensor([[3.0, 3.0, 3.0, 9.0]])
    assert regions.iou(empty, empty).item() == 0.0


def test_boxes_come_back_from_their_coding_and_are_clipped():
    anchors, truth = drawn(20, 5), drawn(20, 6)
    torch.testing.assert_close(regions.decode(regions.encode(truth, anchors, (10.0, 5.0)), anchors, (10.0, 5.0)), truth)
    huge = regions.decode(torch.full((1, 4), 1e4), anchors[:1], (1.0, 1.0))
    assert torch.isfinite(huge).all()
    clipped = regions.clip(torch.tensor([[[-5.0, -5.0, 300.0, 300.0]]]), torch.tensor([[40.0, 60.0]]))
    assert clipped.tolist() == [[[0.0, 0.0, 60.0, 40.0]]]


def test_padding_and_truths_far_from_all_anchors_match_nothing():
    overlaps = torch.tensor([[0.9, 0.1], [0.0, 0.0], [0.8, 0.8]])
    matched = regions.match(overlaps, torch.tensor([True, True, False]), high=0.7, low=0.3, keep_best=True)
    assert matched.tolist() == [0, regions.BELOW]


def test_roi_align_of_a_plane_is_the_plane():
    """Bilinear samples of a linear function are exact, on every level of a pyramid."""

    def plane(side, scale):
        y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        return torch.stack([(x + 0.5) / scale, (y + 0.5) / scale])[None].float()

    maps = [plane(64, 0.5), plane(32, 0.25)]
    found = torch.tensor([[[20.0, 30.0, 60.0, 50.0], [24.0, 16.0, 88.0, 96.0]]])
    pooled = regions.roi_align(maps, found, torch.tensor([[0, 1]]), [0.5, 0.25], 4, 2, aligned=True)
    for box, each in zip(found[0], pooled[0], strict=True):
        for axis in (0, 1):
            centres = box[axis] + (torch.arange(4) + 0.5) * (box[axis + 2] - box[axis]) / 4
            line = each[0, :, 0] if axis == 0 else each[:, 0, 1]
            torch.testing.assert_close(line, centres)


def test_roi_align_has_the_gradient_of_its_sums():
    maps = torch.randn(1, 3, 6, 7, dtype=torch.float32, requires_grad=True)
    found = torch.tensor([[[2.0, 3.0, 20.0, 17.0]]])
    pooled = regions.roi_align([maps], found, torch.zeros(1, 1, dtype=torch.long), [0.25], 2, 2)
    pooled.sum().backward()
    assert maps.grad is not None
    torch.testing.assert_close(maps.grad.sum(), torch.tensor(3 * 4.0))  # the weights of every bin sum to 1


def test_large_boxes_are_read_from_coarse_maps():
    sides = torch.tensor([10.0, 56.0, 112.0, 224.0, 448.0, 2000.0])
    found = torch.stack([0 * sides, 0 * sides, sides, sides], dim=1)
    assert regions.pyramid_levels(found, 2, 4).tolist() == [0, 0, 1, 2, 3, 3]


@pytest.mark.parametrize(("positives", "expected"), [(0, 0), (3, 3), (30, 8)])
def test_samples_have_at_most_their_share_of_positives(positives, expected):
    positive = (torch.arange(100) < positives)[None]
    numbers, chosen = regions.sample(positive, (torch.arange(100) >= 50)[None], 16, 0.5)
    taken = numbers[0][chosen[0]]
    assert len(set(taken.tolist())) == 16 and int((taken < positives).sum()) == expected
    numbers, chosen = regions.sample(positive, torch.zeros(1, 100, dtype=torch.bool), 16, 0.5)
    assert int(chosen.sum()) == expected and (numbers[chosen] < max(positives, 1)).all()
