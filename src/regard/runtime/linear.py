"""Linear layers for inference: x Wᵀ + b with weights laid out in advance for the machine, in fp32, fp16 or int8.

`fp32` computes what `nn.Linear` does, up to rounding. `fp16` halves and `int8` quarters the bytes of the weights, whose
reading takes most of the time of a single token. `int8` also quantizes the input, every row with its own scale, so that
a sentence does not depend on the others in its batch. Bytes are multiplied as integers, exactly, on every CPU and by
every implementation here, and scaled in the same order, so that all implementations agree to the last bit.
"""

import sys
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from ctypes import byref
from functools import cache, cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard import cpu
from regard.checkpoints.int8 import LARGEST, quantize_rows
from regard.errors import UsageError
from regard.layers.blocks import even
from regard.runtime import compiled

PACKING_PAYS = 4_000_000  # multiplications; for smaller products, the overhead of a packed one is larger than its gain
MAX_TILE_ROWS = 1024  # rows of a product on the tile unit, whose buffers take memory
ZERO = 128  # as an unsigned byte: oneDNN is slow with few signed ones
EXACT_INPUTS = 2**24 // LARGEST**2  # whose products add up exactly in float32, whatever the order


class FastLinear(nn.Module):
    """A few rows are multiplied by compiled code, if there is any; many rows by torch, where that is faster."""

    most = 256  # rows; with more, torch's products are faster
    too_many = 200_000_000  # multiplications, likewise
    scale: Float[Tensor, "N"] | None = None
    sums: Int[Tensor, "N"] | None = None

    def __init__(self, weight: Tensor, bias: Float[Tensor, "N"] | None):
        super().__init__()
        self.weight, self.bias = weight.contiguous(), bias

    @cached_property
    def blocks(self) -> tuple[Tensor | None, ...]:
        """The layout of native.cpp: the weights, LANES rows interleaved, their scales, biases and sums; zero-padded."""
        missing, together = -len(self.weight) % compiled.LANES, 4 // self.weight.element_size()
        rest = [
            each if each is None else functional.pad(each, (0, missing)) for each in (self.scale, self.bias, self.sums)
        ]
        rows = functional.pad(self.weight, (0, 0, 0, missing)).view(
            -1, compiled.LANES, self.inputs // together, together
        )
        return rows.transpose(1, 2).contiguous(), *rest

    @cached_property
    def compiled(self) -> compiled.Product:
        """The struct that native.cpp reads."""
        return compiled.Product(*map(compiled.address, self.blocks), len(self.weight), self.inputs)

    @property
    def inputs(self) -> int:
        return self.weight.shape[1]

    def forward(self, x: Float[Tensor, "*B K"]) -> Float[Tensor, "*B N"]:
        rows, library = x.numel() // x.shape[-1], compiled.library()
        if library is None or rows > self.most or rows * self.weight.numel() > self.too_many or self.inputs % 4:
            return self.many(x, rows)
        x, y = x.contiguous(), x.new_empty(*x.shape[:-1], len(self.weight))
        library.product(byref(self.compiled), x.data_ptr(), y.data_ptr(), rows)
        return y

    @abstractmethod
    def many(self, x: Float[Tensor, "*B K"], rows: int) -> Float[Tensor, "*B N"]: ...


class Fp32Linear(FastLinear):
    """float32: with the weights as they are or, for large products, with a copy in oneDNN's layout."""

    def __init__(self, weight: Float[Tensor, "N K"], bias: Float[Tensor, "N"] | None):
        super().__init__(weight, bias)
        if compiled.has_tiles():  # faster than torch with many rows too, and as exact
            self.most, self.too_many = MAX_TILE_ROWS, sys.maxsize

    @cached_property
    def packed(self) -> Tensor | None:
        """Made when first needed: single sentences may never need it."""
        packs = torch.backends.mkldnn.is_available()
        return torch.ops.mkldnn._reorder_linear_weight(self.weight, None) if packs else None

    def many(self, x: Float[Tensor, "*B K"], rows: int) -> Float[Tensor, "*B N"]:
        if rows == 1 or rows * self.weight.numel() < PACKING_PAYS or self.packed is None:
            return functional.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


class Int8Linear(FastLinear):
    """int8: each row of the weights and each row of the input has its own scale."""

    def __init__(self, weight: Float[Tensor, "N K"], bias: Float[Tensor, "N"] | None):
        rounded, scale = quantize_rows(weight)
        super().__init__(rounded.to(torch.int8), bias)
        self.scale, self.sums = scale[:, 0].contiguous(), rounded.sum(dim=1).to(torch.int32)
        if not (cpu.has("amx_int8") and onednn_is_exact()):  # else compiled code is as fast with any number of rows
            self.most = self.too_many = sys.maxsize

    @cached_property
    def packed(self) -> tuple[Tensor, Tensor, Tensor]:
        """The weights in oneDNN's layout, scales and zero points."""
        return torch.ops.onednn.qlinear_prepack(self.weight, None), *_neutral(len(self.weight))

    @cached_property
    def slices(self) -> list[Float[Tensor, "N _"]]:
        """The weights for products in float32, split into as many inputs as add up exactly."""
        return [each.float().contiguous() for each in self.weight.split(EXACT_INPUTS, dim=1)]

    def many(self, x: Float[Tensor, "*B K"], rows: int) -> Float[Tensor, "*B N"]:
        rounded, scale = quantize_rows(x)
        whole = (
            int8_matmul_onednn(rounded, *self.packed)
            if onednn_is_exact()
            else int8_matmul_float32(rounded, self.slices)
        )
        assert self.scale is not None
        y = whole.mul_(self.scale).mul_(scale)
        return y if self.bias is None else y.add_(self.bias)


def int8_matmul_onednn(
    x: Float[Tensor, "*B K"], packed: Tensor, scales: Float[Tensor, "N"], zeros: Int[Tensor, "N"]
) -> Float[Tensor, "*B N"]:
    """Integers x times int8 weights, by oneDNN."""
    unsigned = (x + ZERO).to(torch.uint8)
    return torch.ops.onednn.qlinear_pointwise(
        unsigned, 1.0, ZERO, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )


def int8_matmul_float32(x: Float[Tensor, "*B K"], slices: Sequence[Float[Tensor, "N _"]]) -> Float[Tensor, "*B N"]:
    """Integers x times int8 weights, in float32: exact, but no faster than fp32."""
    parts = [functional.linear(some, weight) for some, weight in zip(x.split(EXACT_INPUTS, -1), slices, strict=True)]
    return parts[0] if len(parts) == 1 else sum(part.int() for part in parts).float()  # type: ignore[union-attr]


@cache
def onednn_is_exact() -> bool:
    """Whether oneDNN multiplies bytes exactly on this machine.

    Without VNNI, AMX or ARM's dot products it adds two products in 16 bits, which saturates. This is tested with the
    largest possible sums and with random ones, because the kernel depends on the CPU, its settings and the shape.
    """
    generator = torch.Generator().manual_seed(0)
    try:
        return all(
            _is_exact(outputs, inputs, rows, generator)
            for outputs, inputs in ((16, 16), (64, 512), (40, 2052))
            for rows in (1, 8, 300)
        )
    except (RuntimeError, AttributeError):  # torch without oneDNN
        return False


def _is_exact(outputs: int, inputs: int, rows: int, generator: torch.Generator) -> bool:
    weight = torch.randint(-LARGEST, LARGEST + 1, (outputs, inputs), generator=generator, dtype=torch.int8)
    weight[0], weight[1], weight[2, ::2] = LARGEST, -LARGEST, LARGEST
    x = torch.randint(-LARGEST, LARGEST + 1, (rows, inputs), generator=generator).float()
    x[0], x[-1, ::2] = LARGEST, -LARGEST
    found = int8_matmul_onednn(x, torch.ops.onednn.qlinear_prepack(weight, None), *_neutral(outputs))
    return torch.equal(found, (x.double() @ weight.double().t()).float())


def _neutral(outputs: int) -> tuple[Float[Tensor, "N"], Int[Tensor, "N"]]:
    """Scales of 1 and zero points of 0."""
    return torch.ones(outputs), torch.zeros(outputs, dtype=torch.int32)


class Fp16Linear(nn.Module):
    """fp16 weights; inputs and sums in fp32."""

    def __init__(self, weight: Float[Tensor, "N K"], bias: Float[Tensor, "N"] | None):
        super().__init__()
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)

    def forward(self, x: Float[Tensor, "*B K"]) -> Float[Tensor, "*B N"]:
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)


class GpuLinear(nn.Module):
    """On a GPU: the weights as they are, zero-padded to a number of rows for which kernels are fast."""

    def __init__(self, weight: Float[Tensor, "N K"], bias: Float[Tensor, "N"] | None):
        super().__init__()
        self.rows = len(weight)
        self.weight, self.bias = even(weight, bias)

    def forward(self, x: Float[Tensor, "*B K"]) -> Float[Tensor, "*B N"]:
        return functional.linear(x, self.weight, self.bias)[..., : self.rows]


FAST_LINEARS: dict[str, Callable[[Tensor, Tensor | None], nn.Module]] = {
    "fp32": Fp32Linear,
    "fp16": Fp16Linear,
    "int8": Int8Linear,
}
CPU_PRECISIONS = (*FAST_LINEARS, "bf16", "auto")


def fast_linear(
    weights: Sequence[Float[Tensor, "_ K"]], biases: Sequence[Float[Tensor, "_"] | None], precision: str
) -> nn.Module:
    """One linear layer with the outputs of several matrices side by side; a missing bias becomes zeros."""
    weight = torch.cat([each.detach() for each in weights]) if len(weights) > 1 else weights[0].detach()
    laid_out = FAST_LINEARS[precision] if weight.device.type == "cpu" else GpuLinear
    if all(each is None for each in biases):
        return laid_out(weight, None)
    whole = [w.new_zeros(len(w)) if b is None else b.detach() for w, b in zip(weights, biases, strict=True)]
    return laid_out(weight, torch.cat(whole))


def check_precision(precision: str) -> None:
    """Refuse a precision that is unknown."""
    if precision not in CPU_PRECISIONS:
        raise UsageError(f"precision {precision!r} is unknown; choose one of {', '.join(CPU_PRECISIONS)}")


def resolve_precision(precision: str) -> str:
    """The precision that this CPU will compute in. If it is not the one asked for, a warning says why."""
    check_precision(precision)
    if precision == "auto":
        return "int8" if int8_is_faster() else "fp32"
    obstacle = why_unsupported(precision)
    if obstacle:
        warnings.warn(f"precision {precision} is computed as fp32: {obstacle}", stacklevel=2)
        return "fp32"
    if precision == "int8" and not int8_is_faster():
        warnings.warn("precision int8 is exact here, but no faster than fp32: there is no C++ compiler, and this CPU "
                      "has no products of bytes", stacklevel=2)  # fmt: skip
    return precision


def why_unsupported(precision: str) -> str | None:
    """Why this CPU has no fast products in a precision; None if it has."""
    if precision == "fp16" and not cpu.has_fp16():
        return "this CPU has no products of fp16, and torch would convert the weights at every one"
    if precision == "bf16":
        return "on a CPU models infer in fp32 or int8; bf16 is for GPUs, and for training"
    return None


def int8_is_faster() -> bool:
    """Whether int8 is faster than fp32 here: compiled code multiplies bytes, or oneDNN does so exactly."""
    return compiled.library() is not None or onednn_is_exact()
