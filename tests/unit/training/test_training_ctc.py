"""CTC's loss in tensors against torch's own and against all paths, one by one."""

from itertools import groupby, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from regard.training import losses
from regard.training.ctc import ctc_loss


def torchs(logs, lengths, labels, sizes, blank=0):
    return functional.ctc_loss(logs.transpose(0, 1), labels, lengths, sizes, blank=blank, reduction="none")


def with_gradient(loss, logs, *rest):
    """Losses of the rows and the gradient at the logits of their finite ones."""
    logits = logs.clone().requires_grad_()
    each = loss(logits.log_softmax(-1), *rest)
    each[each.isfinite()].sum().backward()
    return each.detach(), logits.grad


@st.composite
def batches(draw):
    """Rows of any lengths, with labels that repeat, that are missing, and that do not fit."""
    rows, frames, size, words = (draw(st.integers(1, most)) for most in (4, 9, 5, 4))
    blank = draw(st.integers(0, words))
    others = [word for word in range(words + 1) if word != blank]
    labels = torch.tensor(
        draw(st.lists(st.lists(st.sampled_from(others), min_size=size, max_size=size), min_size=rows, max_size=rows))
    )
    lengths, sizes = (
        torch.tensor(draw(st.lists(st.integers(least, most), min_size=rows, max_size=rows)))
        for least, most in ((1, frames), (0, size))
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scale = draw(st.sampled_from([0.1, 1.0, 20.0]))
    return scale * torch.randn(rows, frames, words + 1, generator=generator), lengths, labels, sizes, blank


@settings(max_examples=80)
@given(batches())
def test_the_loss_and_its_gradient_are_torchs(batch):
    logs, lengths, labels, sizes, blank = batch
    (found, gradient), (wanted, theirs) = (
        with_gradient(loss, logs, lengths, labels, sizes, blank) for loss in (ctc_loss, torchs)
    )
    assert torch.equal(found.isinf(), wanted.isinf())
    finite = wanted.isfinite()
    torch.testing.assert_close(found[finite], wanted[finite], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient[finite], theirs[finite], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("labels", [[], [1], [1, 1], [2, 1], [1, 1, 2]])
def test_the_loss_is_that_of_all_paths(labels):
    torch.manual_seed(0)
    logs = torch.randn(1, 4, 3, dtype=torch.float64).log_softmax(-1)
    total = sum(
        float(logs[0, range(4), path].sum().exp())
        for path in product(range(3), repeat=4)
        if [token for token, _ in groupby(path) if token] == labels
    )
    padded = torch.tensor([labels + [2] * (3 - len(labels))])
    found = ctc_loss(logs, torch.tensor([4]), padded, torch.tensor([len(labels)]), 0)
    assert float((-found).exp()) == pytest.approx(total, rel=1e-12)


def test_the_gradient_is_that_of_small_changes():
    torch.manual_seed(0)
    logs = torch.randn(3, 6, 4, dtype=torch.float64, requires_grad=True)
    rest = torch.tensor([6, 4, 5]), torch.tensor([[1, 1, 3], [2, 0, 0], [3, 2, 1]]), torch.tensor([3, 1, 0]), 0
    torch.autograd.gradcheck(lambda logs: ctc_loss(logs, *rest), [logs])


def test_a_row_without_frames_says_only_nothing():
    found = ctc_loss(torch.zeros(2, 3, 2), torch.tensor([0, 0]), torch.tensor([[1], [1]]), torch.tensor([0, 1]), 0)
    assert found.tolist() == [0.0, float("inf")]


def test_impossible_words_have_no_gradient_of_their_own():
    logs = torch.zeros(1, 3, 3)
    logs[..., 2] = float("-inf")
    logs.requires_grad_()
    ctc_loss(logs, torch.tensor([3]), torch.tensor([[1]]), torch.tensor([1]), 0).sum().backward()
    assert logs.grad.isfinite().all() and logs.grad[..., 2].eq(0).all()


def test_rows_that_do_not_fit_spoil_the_gradient_as_torchs_do():
    """So that the loop sees that the step is not finite."""
    rest = torch.tensor([1]), torch.tensor([[1, 1]]), torch.tensor([2]), 0
    for loss in (ctc_loss, torchs):
        logits = torch.zeros(1, 3, 3, requires_grad=True)
        loss(logits.log_softmax(-1), *rest).sum().backward()
        assert logits.grad.isnan().any()


def test_a_captured_step_uses_tensors_alone(monkeypatch):
    torch.manual_seed(0)
    batch = torch.randn(2, 7, 5), torch.tensor([7, 5]), torch.tensor([[1, 2, 2, 4], [3, 4, 0, 0]]), torch.tensor([3, 1])
    wanted = losses.ctc(*batch, 0)
    monkeypatch.setattr(losses, "_captures", lambda x: True)
    monkeypatch.setattr(functional, "ctc_loss", None)
    assert float(losses.ctc(*batch, 0)) == pytest.approx(float(wanted), rel=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_loss_is_captured_and_replayed_for_other_labels():
    torch.manual_seed(0)
    logits = torch.randn(3, 20, 6, device="cuda")
    lengths, sizes = torch.tensor([20, 15, 9]).cuda(), torch.tensor([4, 5, 0]).cuda()
    labels = torch.randint(1, 6, (3, 5)).cuda()
    frames, graph = logits.clone().requires_grad_(), torch.cuda.CUDAGraph()
    losses.ctc(frames, lengths, labels, sizes, 0).backward()  # a first call, as steps before a capture
    frames.grad = None
    with torch.cuda.graph(graph):
        total = losses.ctc(frames, lengths, labels, sizes, 0)
        total.backward()
    lengths.copy_(torch.tensor([18, 20, 11])), sizes.copy_(torch.tensor([5, 1, 3]))
    labels.copy_(torch.randint(1, 6, (3, 5)))
    graph.replay()
    wanted, gradient = with_gradient(torchs, logits.cpu(), lengths.cpu(), labels.cpu(), sizes.cpu())
    torch.testing.assert_close(total.detach().cpu(), wanted.sum(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(frames.grad.cpu(), gradient, rtol=1e-4, atol=1e-5)
