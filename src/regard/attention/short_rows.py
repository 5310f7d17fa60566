"""Attention over short rows on a GPU: one kernel forward, one backward.

torch's fused kernels are made for long rows. For sentences of 32 words or windows of 49 tokens they spend most of their
time on empty parts of tiles. Here the whole score matrix of one head is in registers. Queries, keys, values and outputs
pass through memory once, and the backward pass recomputes the weights instead of keeping them.

A program computes one head of one batch element. If all elements share a bias, it computes one head of many elements:
the bias is read once for all of them, and its gradient is summed in registers.
"""

import os
from importlib.util import find_spec
from typing import Any, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor

# Triton comes with torch's builds for CUDA. On a CPU its interpreter runs kernels, which only tests use.
TRITON = find_spec("triton") is not None and (torch.version.cuda is not None or "TRITON_INTERPRET" in os.environ)
LONGEST = 64  # queries or keys: their scores fit into the registers of four warps
WIDEST = 128
PROGRAMS = 2048  # about the most programs if each takes many elements: a few per multiprocessor of a large GPU
WARPS = {16: 2, 32: 2, 64: 4}  # by the larger side of the score matrix, rounded up; see `_block`
STAGES = 2  # pipeline stages if a program takes many elements: the next is fetched while one is computed
FARTHEST = 2**23  # the largest stride of rows and columns for which offsets within a tile fit 32 bits


def applies(
    q: Float[Tensor, "B H Tq K"],
    k: Float[Tensor, "B G Tk K"],
    v: Float[Tensor, "B G Tk Kv"],
    mask: Tensor | None,
    bias: Tensor | None,
    dropout: float,
) -> bool:
    """Whether `attend_short` can compute this attention, and is faster."""
    if not (TRITON and q.is_cuda and dropout == 0 and q.dtype == k.dtype == v.dtype):
        return False
    if len(q) == 0 or q.shape[1] != k.shape[1] or max(q.shape[-1], v.shape[-1]) > WIDEST:
        return False
    scores = (*q.shape[:3], k.shape[2])
    if not (2 <= scores[2] <= LONGEST and 2 <= scores[3] <= LONGEST):
        return False
    if mask is not None and not (mask.dtype == torch.bool and _broadcasts(mask, scores)):
        return False
    if bias is not None:
        if not (bias.is_floating_point() and _broadcasts(bias, scores)):
            return False
        if bias.requires_grad and len(bias) != 1:  # its gradient would be as large as all the scores
            return False
    return q.dtype in (torch.bfloat16, torch.float16)


def _broadcasts(part: Tensor, shape: tuple[int, ...]) -> bool:
    return part.ndim == len(shape) and all(own in (1, full) for own, full in zip(part.shape, shape, strict=True))


@torch.library.custom_op("regard::short_attention", mutates_args=())
def attend_short(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """softmax(q kᵀ · scale + bias) v, as `attend` defines it; only if `applies` returns True."""
    out = _new_rows(q, v)
    chunks = _chunks(q, bias)
    with torch.cuda.device_of(q):
        _forward_kernel[(chunks * q.shape[1],)](
            *_inputs(q, k, v, mask, bias), out, scale, *_sizes(q, k), chunks, **_constants(q, k, v, mask, bias, causal)
        )
    return out


@attend_short.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, causal: bool, scale: float) -> Tensor:
    return _new_rows(q, v)


@torch.library.custom_op("regard::short_attention_gradients", mutates_args=())
def _short_attention_gradients(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    scale: float,
    of_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v and, if needed, of the bias."""
    dq, dk, dv = (_new_rows(each, each) for each in (q, k, v))
    chunks = _chunks(q, bias)
    parts = q.new_empty(chunks, q.shape[1], q.shape[2], k.shape[2], dtype=torch.float32) if of_bias else None
    with torch.cuda.device_of(q):
        _backward_kernel[(chunks * q.shape[1],)](
            *_inputs(q, k, v, mask, bias),
            *_strided(d_out),
            *(dq, dk, dv, dq if parts is None else parts),
            scale,
            *_sizes(q, k),
            chunks,
            BIAS_GRADIENT=of_bias,
            **_constants(q, k, v, mask, bias, causal),
        )
    if parts is None or bias is None:
        return dq, dk, dv, q.new_empty(0)
    d_bias = torch.empty(bias.shape, dtype=bias.dtype, device=bias.device)
    return dq, dk, dv, d_bias.copy_(parts.sum_to_size(bias.shape))


@_short_attention_gradients.register_fake
def _(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    scale: float,
    of_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv = (_new_rows(each, each) for each in (q, k, v))
    if not of_bias or bias is None:
        return dq, dk, dv, q.new_empty(0)
    return dq, dk, dv, torch.empty(bias.shape, dtype=bias.dtype, device=bias.device)


def _keep(ctx: Any, inputs: tuple, output: Tensor) -> None:
    q, k, v, mask, bias, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, mask, bias)


def _backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
    of_bias = ctx.needs_input_grad[4]
    dq, dk, dv, d_bias = _short_attention_gradients(d_out, *ctx.saved_tensors, ctx.causal, ctx.scale, of_bias)
    return dq, dk, dv, None, d_bias if of_bias else None, None, None


attend_short.register_autograd(_backward, setup_context=_keep)


def _new_rows(long: Float[Tensor, "B H T _"], wide: Float[Tensor, "B H _ W"]) -> Float[Tensor, "B H T W"]:
    """An uninitialised tensor whose heads are adjacent in memory, as the linear layers around attention need them."""
    batch, heads, length = long.shape[:3]
    return long.new_empty(batch, length, heads, wide.shape[3]).transpose(1, 2)


def _chunks(q: Tensor, bias: Tensor | None) -> int:
    """The number of programs per head among which the batch is divided."""
    batch, heads = q.shape[:2]
    if bias is None or len(bias) != 1:  # nothing is shared
        return batch
    elements = -(-batch * heads // PROGRAMS)  # batch elements of each program
    return -(-batch // elements)


def _inputs(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None) -> list[Tensor | int]:
    """Each tensor and its strides, which are 0 where it is broadcast; q stands in for a missing mask or bias."""
    scores = (*q.shape[:3], k.shape[2])
    if mask is not None:
        mask = mask.view(torch.uint8).expand(scores)
    if bias is not None:
        bias = bias.expand(scores)
    found = [q if each is None else each for each in (q, k, v, mask, bias)]
    return [part for each in found for part in _strided(each)]


def _strided(x: Tensor) -> tuple[Tensor | int, ...]:
    """A tensor and its strides, as a kernel takes them; copied if a stride is above FARTHEST."""
    if max(x.stride()[2:]) > FARTHEST:
        x = x.contiguous()
    return x, *x.stride()


def _sizes(q: Tensor, k: Tensor) -> tuple[int, ...]:
    return *q.shape[:3], k.shape[2]


def _constants(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, causal: bool
) -> dict[str, Any]:
    """The compile-time constants of a kernel."""
    block_q, block_k = _block(q.shape[2]), _block(k.shape[2])
    shared = bias is not None and len(bias) == 1
    return {
        "K": q.shape[3],
        "KV": v.shape[3],
        "BLOCK_Q": block_q,
        "BLOCK_K": block_k,
        "BLOCK_D": _block(q.shape[3]),
        "BLOCK_V": _block(v.shape[3]),
        "CAUSAL": causal,
        "MASK": mask is not None,
        "MASK_OF_QUERIES": mask is not None and mask.shape[2] > 1,
        "BIAS_SHARED": shared,
        "OWN_BIAS": bias is not None and not shared,
        "num_warps": WARPS[max(block_q, block_k)],
        "num_stages": STAGES if shared else 1,
    }


def _block(size: int) -> int:
    """The tile size: a power of two of at least 16, which tensor cores need."""
    return max(16, 1 << (size - 1).bit_length())


if TRITON:
    import triton
    import triton.language as tl

    # Triton reads the source of these functions, so no type checker may wrap them.

    @triton.jit
    @no_type_check
    def _load(first, rows, columns, row_stride, column_stride, row_count, column_count):
        """A tile, zero outside of the tensor."""
        inside = (rows[:, None] < row_count) & (columns[None, :] < column_count)
        return tl.load(first + rows[:, None] * row_stride + columns[None, :] * column_stride, mask=inside, other=0)

    @triton.jit
    @no_type_check
    def _store(first, tile, rows, columns, row_stride, row_count, column_count):
        inside = (rows[:, None] < row_count) & (columns[None, :] < column_count)
        tl.store(first + rows[:, None] * row_stride + columns[None, :], tile, mask=inside)

    @triton.jit
    @no_type_check
    def _load_scores(first, rows, columns, row_stride, column_stride, Tq, Tk):
        """Bias or mask of every score; values outside of the score matrix are not used.

        These kernels are short of registers. A load mask would need as many registers as the elements, and a tile of
        pointers twice as many as offsets from one pointer.
        """
        rows, columns = tl.minimum(rows, Tq - 1), tl.minimum(columns, Tk - 1)
        return tl.load(first + (rows[:, None] * row_stride + columns[None, :] * column_stride))

    @triton.jit
    @no_type_check
    def _added(bias, row_stride, column_stride, rows, columns, Tq, Tk, CAUSAL: tl.constexpr, BIAS_SHARED: tl.constexpr):
        """The sum to add to the scores of every batch element: a shared bias, and -∞ where none may attend."""
        added = tl.zeros([rows.shape[0], columns.shape[0]], dtype=tl.float32)
        if BIAS_SHARED:
            added += _load_scores(bias, rows, columns, row_stride, column_stride, Tq, Tk).to(tl.float32)
        allowed = (rows[:, None] < Tq) & (columns[None, :] < Tk)
        if CAUSAL:
            allowed = allowed & (columns[None, :] <= rows[:, None] + (Tk - Tq))
        return tl.where(allowed, added, float("-inf"))

    @triton.jit
    @no_type_check
    def _weights(
        scores, mask, mask_row, mask_column, bias, bias_row, bias_column, rows, columns, Tq, Tk,
        MASK: tl.constexpr, MASK_OF_QUERIES: tl.constexpr, OWN_BIAS: tl.constexpr,
    ):  # fmt: skip
        """The softmax of each row with the mask and the bias of one batch element; zeros if all keys are masked."""
        if OWN_BIAS:
            scores += _load_scores(bias, rows, columns, bias_row, bias_column, Tq, Tk).to(tl.float32)
        if MASK:
            if MASK_OF_QUERIES:
                seen = _load_scores(mask, rows, columns, mask_row, mask_column, Tq, Tk)
            else:  # padding: one row for all queries
                seen = tl.load(mask + tl.minimum(columns, Tk - 1) * mask_column)[None, :]
            scores = tl.where(seen != 0, scores, float("-inf"))
        highest = tl.max(scores, 1)
        highest = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp(scores - highest[:, None])
        total = tl.sum(weights, 1)
        return weights * (1.0 / tl.where(total == 0.0, 1.0, total))[:, None]

    @triton.jit
    @no_type_check
    def _forward_kernel(
        q_first, q_batch, q_head, q_row, q_column,
        k_first, k_batch, k_head, k_row, k_column,
        v_first, v_batch, v_head, v_row, v_column,
        mask_first, mask_batch, mask_head, mask_row, mask_column,
        bias_first, bias_batch, bias_head, bias_row, bias_column,
        out_first, scale, B, H, Tq, Tk, chunks,
        K: tl.constexpr, KV: tl.constexpr,
        BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
        CAUSAL: tl.constexpr, MASK: tl.constexpr, MASK_OF_QUERIES: tl.constexpr,
        BIAS_SHARED: tl.constexpr, OWN_BIAS: tl.constexpr,
    ):  # fmt: skip
        program = tl.program_id(0)
        h = (program % H).to(tl.int64)  # 64 bits, since its product with a stride may be large
        rows, columns = tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_K)
        widths, value_widths = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
        added = _added(bias_first + h * bias_head, bias_row, bias_column, rows, columns, Tq, Tk, CAUSAL, BIAS_SHARED)
        for number in range(program // H, B, chunks):
            b = tl.cast(number, tl.int64)
            q = _load(q_first + b * q_batch + h * q_head, rows, widths, q_row, q_column, Tq, K)
            k = _load(k_first + b * k_batch + h * k_head, columns, widths, k_row, k_column, Tk, K)
            v = _load(v_first + b * v_batch + h * v_head, columns, value_widths, v_row, v_column, Tk, KV)
            weights = _weights(
                tl.dot(q, tl.trans(k), input_precision="ieee") * scale + added,
                mask_first + b * mask_batch + h * mask_head, mask_row, mask_column,
                bias_first + b * bias_batch + h * bias_head, bias_row, bias_column,
                rows, columns, Tq, Tk, MASK, MASK_OF_QUERIES, OWN_BIAS,
            )  # fmt: skip
            out = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            _store(out_first + (b * Tq * H + h) * KV, out.to(v.dtype), rows, value_widths, H * KV, Tq, KV)

    @triton.jit
    @no_type_check
    def _backward_kernel(
        q_first, q_batch, q_head, q_row, q_column,
        k_first, k_batch, k_head, k_row, k_column,
        v_first, v_batch, v_head, v_row, v_column,
        mask_first, mask_batch, mask_head, mask_row, mask_column,
        bias_first, bias_batch, bias_head, bias_row, bias_column,
        do_first, do_batch, do_head, do_row, do_column,
        dq_first, dk_first, dv_first, parts_first, scale, B, H, Tq, Tk, chunks,
        BIAS_GRADIENT: tl.constexpr, K: tl.constexpr, KV: tl.constexpr,
        BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
        CAUSAL: tl.constexpr, MASK: tl.constexpr, MASK_OF_QUERIES: tl.constexpr,
        BIAS_SHARED: tl.constexpr, OWN_BIAS: tl.constexpr,
    ):  # fmt: skip
        program = tl.program_id(0)
        h = (program % H).to(tl.int64)
        rows, columns = tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_K)
        widths, value_widths = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
        added = _added(bias_first + h * bias_head, bias_row, bias_column, rows, columns, Tq, Tk, CAUSAL, BIAS_SHARED)
        if BIAS_GRADIENT:
            d_bias = tl.zeros([BLOCK_Q, BLOCK_K], dtype=tl.float32)
        for number in range(program // H, B, chunks):
            b = tl.cast(number, tl.int64)
            q = _load(q_first + b * q_batch + h * q_head, rows, widths, q_row, q_column, Tq, K)
            k = _load(k_first + b * k_batch + h * k_head, columns, widths, k_row, k_column, Tk, K)
            do = _load(do_first + b * do_batch + h * do_head, rows, value_widths, do_row, do_column, Tq, KV)
            v = _load(v_first + b * v_batch + h * v_head, columns, value_widths, v_row, v_column, Tk, KV)
            weights = _weights(
                tl.dot(q, tl.trans(k), input_precision="ieee") * scale + added,
                mask_first + b * mask_batch + h * mask_head, mask_row, mask_column,
                bias_first + b * bias_batch + h * bias_head, bias_row, bias_column,
                rows, columns, Tq, Tk, MASK, MASK_OF_QUERIES, OWN_BIAS,
            )  # fmt: skip
            dv = tl.dot(tl.trans(weights.to(do.dtype)), do, input_precision="ieee")
            _store(dv_first + (b * Tk * H + h) * KV, dv.to(v.dtype), columns, value_widths, H * KV, Tk, KV)
            d_weights = tl.dot(do, tl.trans(v), input_precision="ieee")
            d_scores = weights * (d_weights - tl.sum(weights * d_weights, 1)[:, None])
            if BIAS_GRADIENT:
                d_bias += d_scores
            narrow = d_scores.to(q.dtype)
            dq = tl.dot(narrow, k, input_precision="ieee") * scale
            _store(dq_first + (b * Tq * H + h) * K, dq.to(q.dtype), rows, widths, H * K, Tq, K)
            dk = tl.dot(tl.trans(narrow), q, input_precision="ieee") * scale
            _store(dk_first + (b * Tk * H + h) * K, dk.to(k.dtype), columns, widths, H * K, Tk, K)
        if BIAS_GRADIENT:
            part = parts_first + program.to(tl.int64) * Tq * Tk
            _store(part, d_bias, rows, columns, Tk, Tq, Tk)
