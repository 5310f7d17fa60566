"""Attention over short rows against the readable reference: on a GPU if there is one, else in Triton's interpreter."""

import pytest
import torch

from full_counts import combined
from regard.attention import short_rows
from regard.attention.core import attention_weights
from regard.attention.short_rows import applies, attend_short

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def drawn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def rows(B, H, Tq, Tk, K, Kv=None, dtype=torch.float32):
    """Random q, k and v."""
    shapes = (B, H, Tq, K), (B, H, Tk, K), (B, H, Tk, Kv or K)
    return [drawn(*shape, seed=i, dtype=dtype) for i, shape in enumerate(shapes)]


def compare(q, k, v, mask=None, bias=None, causal=False, scale=0.3, atol=1e-5, learned_bias=True):
    """Outputs and all gradients, compared with a materialised softmax in twice the precision."""
    inputs = [q, k, v] if bias is None else [q, k, v, bias]
    fast = [each.detach().requires_grad_(learned_bias or each is not bias) for each in inputs]
    slow = [each.detach().double().requires_grad_(each.requires_grad) for each in fast]
    fast_bias, slow_bias = (None, None) if bias is None else (fast[3], slow[3])
    out = attend_short(*fast[:3], mask, fast_bias, causal, scale)
    weights = attention_weights(*slow[:2], mask=mask, bias=slow_bias, causal=causal, scale=scale)
    expected = weights @ slow[2]
    assert out.dtype == q.dtype and out.transpose(1, 2).is_contiguous()
    torch.testing.assert_close(out.double(), expected, atol=atol, rtol=atol)
    d_out = drawn(*out.shape, seed=9, dtype=q.dtype)
    gradients = torch.autograd.grad(out, [each for each in fast if each.requires_grad], d_out)
    references = torch.autograd.grad(expected, [each for each in slow if each.requires_grad], d_out.double())
    for name, gradient, reference, of in zip("qkvb", gradients, references, inputs, strict=False):
        assert gradient.dtype == of.dtype and gradient.shape == of.shape
        torch.testing.assert_close(
            gradient.double(), reference, atol=atol, rtol=atol, msg=lambda text, name=name: f"d{name}: {text}"
        )


SIZES = [
    (49, 49, 32, 32), (32, 32, 64, 64), (64, 64, 16, 16), (2, 2, 16, 16), (17, 17, 24, 24),
    (2, 64, 16, 16), (17, 49, 24, 40), (16, 33, 64, 8), (5, 7, 3, 128),
]  # fmt: skip
ONE_WAY = [(sizes, number % 2 == 1) for number, sizes in enumerate(SIZES)]  # causal or not


@pytest.mark.parametrize(
    ("sizes", "causal"),
    combined(SIZES, (False, True), usual=[*ONE_WAY, ((17, 17, 24, 24), True), ((17, 49, 24, 40), True)]),
)
def test_shapes(sizes, causal):
    compare(*rows(2, 2, *sizes), causal=causal)


@pytest.mark.parametrize(
    ("shape", "causal"),
    combined(
        [(3, 2, 17, 20), (3, 1, 17, 20), (1, 2, 17, 20), (3, 1, 1, 20), (1, 1, 17, 1)], (False, True),
        usual=[
            ((3, 2, 17, 20), False), ((3, 2, 17, 20), True), ((3, 1, 17, 20), True), ((1, 2, 17, 20), False),
            ((3, 1, 1, 20), True), ((1, 1, 17, 1), False),
        ],
    ),
)  # fmt: skip
def test_masks_of_every_form_and_rows_that_may_look_nowhere(shape, causal):
    mask = drawn(*shape, seed=5) > 0
    mask[0, 0, -1] = False
    q, k, v = rows(3, 2, 17, 20, 24)
    compare(q, k, v, mask=mask, bias=drawn(1, 2, 17, 20, seed=6), causal=causal)
    assert attend_short(q, k, v, mask, None, causal, 0.3)[0, 0, -1].eq(0).all()


@pytest.mark.parametrize(
    ("shape", "programs"),
    combined(
        [(1, 2, 49, 49), (1, 1, 49, 49), (1, 2, 1, 49), (1, 1, 49, 1)], (1, 4),
        usual=[((1, 2, 49, 49), 1), ((1, 2, 49, 49), 4), ((1, 1, 49, 49), 4), ((1, 2, 1, 49), 1), ((1, 1, 49, 1), 4)],
    ),
)  # fmt: skip
def test_gradient_of_a_bias_however_many_elements_a_program_takes(monkeypatch, shape, programs):
    monkeypatch.setattr(short_rows, "PROGRAMS", programs)
    compare(*rows(5, 2, 49, 49, 32), mask=drawn(5, 1, 49, 49, seed=5) > -1, bias=drawn(*shape, seed=6))


@pytest.mark.parametrize("learned", [False, True])
def test_a_bias_of_each_element(learned):
    compare(*rows(3, 2, 17, 20, 16), bias=drawn(3, 1, 17, 20, seed=6), learned_bias=learned)


def test_views_of_one_packed_product():
    whole = drawn(3, 17, 3 * 2 * 24)
    q, k, v = (each.view(3, 17, 2, 24).transpose(1, 2) for each in whole.split(48, dim=-1))
    table = drawn(17, 17, 2, seed=6).permute(2, 0, 1)[None]
    compare(q, k, v, mask=(drawn(3, 17, seed=5) > 0)[:, None, None, :], bias=table)


def test_a_gradient_that_is_one_number_everywhere():
    q, k, v = (each.requires_grad_() for each in rows(2, 2, 5, 5, 16))
    out = attend_short(q, k, v, None, None, False, 0.3)
    out.sum().backward()  # the gradient is expanded: all strides are 0
    torch.testing.assert_close(v.grad.sum(2), torch.full_like(v.grad.sum(2), 5.0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias_dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_half_precision(causal, bias_dtype, dtype):
    if dtype == torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("Triton's interpreter multiplies the bits of bf16 as if they were integers")
    bias = drawn(1, 2, 32, 32, seed=6, dtype=bias_dtype)
    tolerance = 4 * torch.finfo(dtype).eps
    compare(*rows(3, 2, 32, 32, 64, dtype=dtype), bias=bias, causal=causal, scale=0.125, atol=tolerance)


def test_rows_scattered_over_gigabytes_are_copied(monkeypatch):
    monkeypatch.setattr(short_rows, "FARTHEST", 100)
    compare(*(each.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for each in rows(3, 2, 5, 6, 24)))


@pytest.mark.parametrize("learned", [False, True])
def test_it_is_a_proper_operation_of_torch(learned):
    q, k, v = (each.requires_grad_() for each in rows(2, 2, 5, 6, 16))
    mask, bias = drawn(2, 1, 1, 6, seed=5) > 0, drawn(1, 2, 5, 6, seed=6).requires_grad_(learned)
    torch.library.opcheck(short_rows.attend_short, (q, k, v, mask, bias, True, 0.3))
    torch.library.opcheck(short_rows.attend_short, (q, k, v, None, None, False, 0.3))
    plain = [each.detach() for each in (q, q, k, v, mask, bias)]
    torch.library.opcheck(short_rows._short_attention_gradients, (*plain, True, 0.3, learned))


@pytest.mark.skipif(DEVICE == "cpu", reason="only a GPU is asked for kernels")
def test_where_it_applies():
    q, k, v = rows(3, 2, 17, 20, 24, dtype=torch.bfloat16)
    mask, bias = drawn(3, 1, 1, 20) > 0, drawn(3, 1, 17, 20)
    assert applies(q, k, v, mask, bias, 0.0)
    assert applies(q, k, v, None, bias[:1].requires_grad_(), 0.0)
    assert not applies(q, k, v, None, bias.requires_grad_(), 0.0)
    assert not applies(q, k, v, None, None, 0.1)
    assert not applies(q, k, v, mask.float(), None, 0.0)
    assert not applies(q, k, v, mask[:, 0], None, 0.0)
    assert not applies(q, k[:, :1], v[:, :1], None, None, 0.0)
    assert not applies(q[:, :, :1], k, v, None, None, 0.0)
    assert not applies(q.float(), k.float(), v.float(), None, None, 0.0)
    assert not applies(*rows(1, 1, 17, 65, 24, dtype=torch.bfloat16), None, None, 0.0)


def test_no_kernel_for_a_processor():
    assert not applies(*(each.cpu().bfloat16() for each in rows(1, 1, 4, 4, 16)), None, None, 0.0)
