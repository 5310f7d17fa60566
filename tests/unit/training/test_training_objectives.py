import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from regard.layers.blocks import Factors
from regard.plan.recorder import peak_bytes
from regard.training import losses
from regard.training.losses import cross_entropy, hinge_critic, hinge_generator, r_drop, symmetric_divergence


def example(seed, batch=3, length=5, vocab=11):
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(batch, length, vocab, generator=generator)
    labels = torch.randint(0, vocab, (batch, length), generator=generator)
    mask = torch.rand(batch, length, generator=generator) < 0.7
    return logits, labels, mask


def torch_loss(logits, labels, mask, smoothing):
    ignored = labels.masked_fill(~mask, -100)
    return functional.cross_entropy(logits.flatten(0, 1), ignored.flatten(), label_smoothing=smoothing, reduction="sum")


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), smoothing=st.sampled_from([0.0, 0.1, 0.5]))
def test_cross_entropy_and_its_gradient_are_those_of_torch(seed, smoothing):
    logits, labels, mask = example(seed)
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss, expected = cross_entropy(ours, labels, mask, smoothing), torch_loss(theirs, labels, mask, smoothing)
    (loss / 7).backward()
    (expected / 7).backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_formula_that_compilers_see_is_the_same(monkeypatch, smoothing):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    logits, labels, mask = example(3)
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss, expected = cross_entropy(ours, labels, mask, smoothing), torch_loss(theirs, labels, mask, smoothing)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)


def test_cross_entropy_passes_gradcheck():
    logits, labels, mask = example(0)
    assert torch.autograd.gradcheck(lambda x: cross_entropy(x, labels, mask, 0.1), logits.double().requires_grad_())


@pytest.mark.parametrize("piece", [1, 40, 1 << 24])  # a row at a time, three rows (the last two alone), all at once
def test_bfloat16_logits_are_summed_in_float32(monkeypatch, piece):
    monkeypatch.setattr(losses, "PIECE", piece)
    logits, labels, mask = example(1, batch=2, length=7)
    half = logits.bfloat16().requires_grad_()
    single = half.detach().float().requires_grad_()
    loss = cross_entropy(half, labels, mask, 0.1)
    loss.backward()
    expected = torch_loss(single, labels, mask, 0.1)
    expected.backward()
    assert loss.dtype == torch.float32
    assert half.grad.dtype == torch.bfloat16
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(half.grad.float(), single.grad, rtol=1e-2, atol=1e-3)


def factors(seed, width=4, vocab=11, *, bias=True, kind=torch.float64):
    """Factors that need gradients, with labels and a mask; the last sentence is fully masked."""
    _, labels, mask = example(seed, vocab=vocab)
    mask[-1] = False
    generator = torch.Generator().manual_seed(seed)
    shapes = (*labels.shape, width), (vocab, width), (vocab,)
    hidden, weight, offset = (
        torch.randn(shape, generator=generator, dtype=kind).requires_grad_() for shape in shapes
    )  # fmt: skip
    return Factors(hidden, weight, offset if bias else None), labels, mask


@pytest.fixture(params=[(1, 4), (22, 1), (1 << 21, 256)], ids=["four rows", "two rows", "all"])
def piece(request, monkeypatch):
    numbers, rows = request.param
    monkeypatch.setattr(losses, "AT_A_TIME", {"cpu": numbers})
    monkeypatch.setattr(losses, "LEAST_ROWS", rows)


def gradients_of(loss, parts):
    return torch.autograd.grad(loss / 7, [part for part in parts if part is not None])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_factors_is_that_of_their_product(piece, bias, smoothing):
    parts, labels, mask = factors(4, bias=bias)
    ours = cross_entropy(parts, labels, mask, smoothing)
    theirs = torch_loss(functional.linear(*parts), labels, mask, smoothing)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients_of(ours, parts), gradients_of(theirs, parts))


def test_r_drop_of_factors_is_that_of_their_products(piece):
    both, _, _ = factors(5)
    both = both._replace(hidden=torch.cat([both.hidden, both.hidden.flip(0)]))
    _, labels, mask = factors(5)
    settings = {"weight": 3.0, "smoothing": 0.1}
    ours = r_drop(*both.chunk(2), labels, mask, **settings)
    theirs = r_drop(*functional.linear(*both).chunk(2), labels, mask, **settings)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients_of(ours, both), gradients_of(theirs, both))


def test_where_rows_are_not_left_out_they_count_for_nothing(piece):
    """As on a GPU, where selecting rows would force a sync."""
    parts, labels, mask = factors(6)
    flat = parts.hidden.flatten(0, 1), parts.weight, parts.bias, labels.flatten(), mask.flatten()
    judge = losses.partial(losses._loss_and_gradient, smoothing=0.1)
    ours = losses._InPieces.apply(*flat, judge, True, losses.AT_A_TIME["cpu"], False)
    theirs = cross_entropy(parts, labels, mask, 0.1)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(gradients_of(ours, parts), gradients_of(theirs, parts))


def test_the_loss_of_factors_passes_gradcheck(piece):
    parts, labels, mask = factors(7)
    assert torch.autograd.gradcheck(lambda *each: cross_entropy(Factors(*each), labels, mask, 0.1), tuple(parts))


def test_without_gradients_factors_have_a_loss_too():
    parts, labels, mask = factors(8)
    expected = torch_loss(functional.linear(*parts), labels, mask, 0.0)
    with torch.no_grad():
        torch.testing.assert_close(cross_entropy(parts, labels, mask), expected.detach())
    with torch.inference_mode():
        torch.testing.assert_close(cross_entropy(parts, labels, mask), expected.detach())
    assert cross_entropy(parts, labels, torch.zeros_like(mask)).item() == 0.0


def test_under_autocast_factors_are_multiplied_in_bfloat16_and_their_loss_summed_in_float32(piece):
    parts, labels, mask = factors(9, kind=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        ours = cross_entropy(parts, labels, mask, 0.1)
        theirs = torch_loss(functional.linear(*parts).float(), labels, mask, 0.1)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    for mine, other in zip(gradients_of(ours, parts), gradients_of(theirs, parts), strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, other, rtol=2e-2, atol=2e-2)


def test_never_all_logits_exist():
    words, rows = 8192, 2000
    parts = Factors(torch.randn(1, rows, 4, requires_grad=True), torch.randn(words, 4, requires_grad=True))
    labels, mask = torch.zeros(1, rows, dtype=torch.long), torch.ones(1, rows, dtype=torch.bool)
    peak = peak_bytes(lambda: cross_entropy(parts, labels, mask, 0.1).backward(), parts[:2], torch.device("cpu"))
    assert peak < 4 * words * rows / 2


def test_an_extreme_logit_gives_a_finite_loss():
    logits = torch.tensor([[[200.0, -200.0, 0.0]]])
    loss = cross_entropy(logits, torch.tensor([[1]]), torch.tensor([[True]]))
    assert loss.item() == 400.0


def test_symmetric_divergence_is_the_mean_of_both_kl_divergences():
    first, _, mask = example(2)
    second, _, _ = example(3)
    p, q = first.softmax(-1), second.softmax(-1)
    both = (p * (p / q).log()).sum(-1) + (q * (q / p).log()).sum(-1)
    torch.testing.assert_close(symmetric_divergence(first, second, mask), 0.5 * both[mask].sum(), rtol=1e-4, atol=1e-4)


def test_r_drop_is_half_of_the_papers_sum():
    first, labels, mask = example(4)
    second, _, _ = example(5)
    paper = torch_loss(first, labels, mask, 0.1) + torch_loss(second, labels, mask, 0.1)
    paper = paper + 5.0 * symmetric_divergence(first, second, mask)
    loss = r_drop(first, second, labels, mask, weight=5.0, smoothing=0.1)
    torch.testing.assert_close(loss, 0.5 * paper)


def test_r_drop_of_equal_passes_is_the_plain_loss():
    logits, labels, mask = example(6)
    loss = r_drop(logits, logits, labels, mask, weight=5.0, smoothing=0.1)
    torch.testing.assert_close(loss, cross_entropy(logits, labels, mask, 0.1))


def test_the_hinge_asks_for_a_margin_and_no_more():
    real, fake = torch.tensor([2.0, 0.5, -1.0]), torch.tensor([-3.0, 0.25, -0.5])
    assert hinge_critic(real, fake).item() == 0 + 0.5 + 2 + 0 + 1.25 + 0.5
    assert hinge_generator(fake).item() == 3.25
