"""The fused cross-entropy kernel against torch's own: on a GPU, else in Triton's interpreter."""

import pytest
import torch
from torch.nn import functional

from regard.layers.blocks import Factors
from regard.training import fused_loss, losses
from regard.training.losses import cross_entropy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def several_blocks_a_row(monkeypatch):
    monkeypatch.setattr(fused_loss, "BLOCK", 16)
    monkeypatch.setattr(fused_loss, "WARPS", 1)
    monkeypatch.setattr(fused_loss, "applies", lambda device: True)


def drawn(rows, vocabulary, dtype=torch.float32):
    generator = torch.Generator().manual_seed(rows + vocabulary)
    logits = 3 * torch.randn(rows, vocabulary, generator=generator, dtype=dtype)
    labels = torch.randint(vocabulary, (rows,), generator=generator)
    counted = torch.rand(rows, generator=generator) > 0.3
    return logits.to(DEVICE), labels.to(DEVICE), counted.to(DEVICE)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("vocabulary", [2, 16, 33, 100])
def test_logits_become_the_gradient_of_torchs_loss(vocabulary, smoothing):
    logits, labels, counted = drawn(7, vocabulary)
    leaf = logits.clone().requires_grad_()
    expected = functional.cross_entropy(leaf, labels, label_smoothing=smoothing, reduction="none") * counted
    expected.sum().backward()
    padded = functional.pad(logits, (0, 5), value=9.0)  # values beyond the vocabulary must not count
    losses = fused_loss.judge_in_place(padded, labels, counted, vocabulary=vocabulary, smoothing=smoothing, wanted=True)
    torch.testing.assert_close(losses, expected.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(padded[:, :vocabulary], leaf.grad, atol=1e-6, rtol=1e-5)
    assert not padded[:, vocabulary:].any()


def test_where_no_gradient_is_wanted_the_logits_stay():
    logits, labels, _ = drawn(5, 40)
    before = logits.clone()
    losses = fused_loss.judge_in_place(logits, labels, None, vocabulary=40, smoothing=0.0, wanted=False)
    torch.testing.assert_close(losses, functional.cross_entropy(before, labels, reduction="none"))
    assert torch.equal(logits, before)


def test_rows_that_do_not_count_may_hold_anything():
    logits, labels, counted = drawn(6, 20)
    logits[~counted, 3] = torch.nan
    losses = fused_loss.judge_in_place(logits, labels, counted, vocabulary=20, smoothing=0.1, wanted=True)
    assert losses.isfinite().all() and logits.isfinite().all()
    assert not counted.all() and not logits[~counted].any()


def test_a_number_that_is_none_is_seen():
    logits, labels, _ = drawn(6, 20)
    logits[2, 7] = torch.nan
    losses = fused_loss.judge_in_place(logits, labels, None, vocabulary=20, smoothing=0.0, wanted=True)
    assert losses.isnan().tolist() == [False, False, True, False, False, False]


def test_labels_that_are_no_words_count_only_where_they_are_masked():
    logits, labels, _ = drawn(3, 20)
    labels[:2], counted = -100, torch.tensor([True, False, True], device=DEVICE)
    losses = fused_loss.judge_in_place(logits, labels, counted, vocabulary=20, smoothing=0.1, wanted=True)
    assert losses.isnan().tolist() == [True, False, False] and losses[1] == 0


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("piece", [64, 1 << 20])
def test_factors_have_the_gradients_of_whole_logits(monkeypatch, piece, bias):
    """With an odd vocabulary, which is padded, and a few rows at a time."""
    monkeypatch.setattr(losses, "IN_PLACE", piece)
    monkeypatch.setattr(losses, "LEAST_ROWS", 2)
    generator = torch.Generator().manual_seed(1)
    hidden, weight, offset = (torch.randn(*shape, generator=generator) for shape in ((3, 4, 8), (21, 8), (21,)))
    leaves = [each.to(DEVICE).requires_grad_() for each in ((hidden, weight, offset) if bias else (hidden, weight))]
    labels = torch.randint(21, (3, 4), generator=generator).to(DEVICE)
    mask = torch.rand(3, 4, generator=generator).to(DEVICE) > 0.2
    ours = cross_entropy(Factors(*leaves), labels, mask, 0.1) / 5
    gradients = torch.autograd.grad(ours, leaves)
    logits = functional.linear(*leaves)
    each = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1, reduction="none")
    expected = (each * mask.flatten()).sum() / 5
    torch.testing.assert_close(ours, expected)
    for gradient, reference in zip(gradients, torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(gradient, reference, atol=1e-5, rtol=1e-4)
