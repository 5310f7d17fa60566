"""The kernels of detectors against their torch versions: on a GPU, else in Triton's interpreter."""

import pytest
import torch

from full_counts import combined
from regard.families.detection import regions

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def boxes(sets, count, seed=0, size=60.0):
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(sets, count, 2, generator=generator) * size
    return torch.cat([corners, corners + 1 + torch.rand(sets, count, 2, generator=generator) * size / 2], dim=-1)


@pytest.mark.parametrize(
    ("count", "threshold"),
    combined((1, 7, 64, 100), (0.1, 0.5, 0.9), usual=[(1, 0.5), (7, 0.1), (7, 0.9), (64, 0.5), (100, 0.1)]),
)
def test_the_kernel_keeps_what_the_fixed_point_keeps(count, threshold):
    found = boxes(4, count, count)
    found[0, count // 2 :] = 0.0  # boxes without area overlap nothing
    counts = torch.tensor([count, count // 2, 0, count])
    expected = regions.suppress(found, counts, threshold)
    kept = regions.suppress_on_gpu(found.to(DEVICE), counts.to(DEVICE), threshold)
    assert torch.equal(kept.cpu(), expected)


def test_no_boxes_are_no_error():
    none = torch.zeros(2, 0, 4, device=DEVICE), torch.zeros(2, dtype=torch.long, device=DEVICE)
    assert regions.suppress_on_gpu(*none, 0.5).shape == (2, 0)


@pytest.mark.parametrize(("channels", "samples", "count"), [(3, 1, 5), (16, 4, 9), (40, 16, 20)])
def test_sums_of_rows_and_their_gradients_are_torchs(channels, samples, count):
    generator = torch.Generator().manual_seed(channels)
    rows = torch.randn(11, channels, generator=generator)
    places = torch.randint(11, (count, samples), generator=generator)
    weights = torch.rand(count, samples, generator=generator)
    ours, theirs = (rows.clone().to(device).requires_grad_() for device in (DEVICE, "cpu"))
    summed = regions.weighted_rows_on_gpu(ours, places.to(DEVICE), weights.to(DEVICE))
    expected = (theirs[places] * weights[..., None]).sum(dim=1)
    torch.testing.assert_close(summed.cpu(), expected, rtol=1e-5, atol=1e-5)
    slope = torch.randn(expected.shape, generator=generator)
    summed.backward(slope.to(DEVICE))
    expected.backward(slope)
    torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_a_detector_on_a_gpu_finds_what_it_finds_on_a_cpu(monkeypatch):
    from regard.families.detection.model import PRESETS, Detector, DetectorConfig
    from regard.families.detection.proposals import Truth

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    model = Detector(DetectorConfig.parse(PRESETS["tiny"])).eval()
    with torch.no_grad():
        model.regions.label.bias[1] = 4.0  # so that something is found
        images = torch.randn(2, 3, 64, 64)
        ours, theirs = model(images), model.cuda()(images.cuda())
    torch.testing.assert_close(ours.scores, theirs.scores.cpu(), rtol=1e-3, atol=1e-3)
    for scores, boxes, others in zip(ours.scores, ours.boxes, theirs.boxes.cpu(), strict=True):
        found = scores > 0  # the other rows are padding; nearly equal scores may come in another order
        near = torch.cdist(boxes[found], others[found], p=torch.inf).min(dim=1).values < 0.1
        assert found.sum() > 10 and near.float().mean() > 0.9
    model.train()
    truth = Truth(torch.tensor([[[10.0, 10.0, 40.0, 40.0]]] * 2).cuda(), torch.ones(2, 1, dtype=torch.long).cuda())
    losses = model(images.cuda(), truth=truth)
    sum(each.sum() for each in losses).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
