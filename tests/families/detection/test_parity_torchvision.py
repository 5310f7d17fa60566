"""Suppression, RoI align and box coding against torchvision's compiled code, where it is installed."""

import pytest
import torch

from regard.families.detection import regions

torchvision = pytest.importorskip("torchvision", exc_type=ImportError)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def drawn(count, size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(count, 2, generator=generator) * size * 0.7
    found = torch.cat([corners, corners + 2 + torch.rand(count, 2, generator=generator) * size * 0.28], dim=1)
    return found.to(DEVICE)


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7])
def test_nms(threshold):
    found = drawn(700, 100.0).view(5, 140, 4)  # five classes, best boxes first
    kept = regions.suppress(found, torch.full((5,), 140, device=DEVICE), threshold)
    scores = torch.arange(140, 0, -1, device=DEVICE).float().repeat(5)
    classes = torch.arange(5, device=DEVICE).repeat_interleave(140)
    expected = torchvision.ops.batched_nms(found.flatten(0, 1), scores, classes, threshold)
    assert torch.equal(kept.flatten().nonzero().flatten(), expected.sort().values)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("ratio", [2, -1])
def test_roi_align_and_its_gradient(aligned, ratio):
    maps = torch.randn(2, 8, 32, 32, device=DEVICE, requires_grad=True)
    found = drawn(40, 128.0).view(2, 20, 4)
    pooled = regions.roi_align(
        [maps], found, torch.zeros(2, 20, dtype=torch.long, device=DEVICE), [0.25], 7, ratio, aligned
    )
    expected = torchvision.ops.roi_align(maps, list(found), 7, 0.25, ratio, aligned)
    torch.testing.assert_close(pooled.flatten(0, 1).permute(0, 3, 1, 2), expected, rtol=1e-4, atol=1e-4)
    slope = torch.randn_like(expected)
    (ours,) = torch.autograd.grad(pooled.flatten(0, 1).permute(0, 3, 1, 2), maps, slope)
    (theirs,) = torch.autograd.grad(expected, maps, slope)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_box_coding_and_overlaps():
    truth, anchors = drawn(50, 100.0, 2), drawn(50, 100.0, 3)
    coder = torchvision.models.detection._utils.BoxCoder((10.0, 10.0, 5.0, 5.0))
    coded = coder.encode_single(truth, anchors)
    torch.testing.assert_close(regions.encode(truth, anchors, (10.0, 5.0)), coded, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(regions.decode(coded, anchors, (10.0, 5.0)), coder.decode_single(coded, anchors))
    torch.testing.assert_close(regions.iou(truth, anchors), torchvision.ops.box_iou(truth, anchors))
