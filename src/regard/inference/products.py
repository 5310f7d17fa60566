"""x Wᵀ + b for weights that do not change any more: laid out in advance for the machine, exactly or with fewer bits.

`fp32` computes what `nn.Linear` does, to rounding. `fp16` halves and `int8` quarters the bytes of the weights, which is
what a single token waits for. `int8` also rounds what goes in, every row on a scale of its own, so that a sentence does
not depend on those beside it.
"""

import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from ctypes import byref
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import UsageError
from regard.inference import native
from regard.layers.blocks import even

PACKING_PAYS = 4_000_000  # multiplications; a smaller product is done before a packed one has begun
MOST_BY_TILES = 1024  # rows: the pieces they are cut into take memory
LARGEST = 127  # of a signed byte, used on both sides of zero
ZERO = 128  # as an unsigned byte: oneDNN is slow with few signed ones


class FixedProduct(nn.Module):
    """Of a few rows by compiled code, where there is some; of many by torch, where that is quicker."""

    most = 256  # rows; with more, torch's products are quicker
    too_many = 200_000_000  # multiplications, likewise
    scale: Float[Tensor, "N"] | None = None
    sums: Int[Tensor, "N"] | None = None

    def __init__(self, weight: Tensor, bias: Float[Tensor, "N"] | None):
        super().__init__()
        self.weight, self.bias = weight.contiguous(), bias

    @cached_property
    def blocks(self) -> tuple[Tensor | None, ...]:
        """As native.cpp reads them: the weights, LANES rows side by side, their scales, biases and sums; then zeros."""
        missing, together = -len(self.weight) % native.LANES, 4 // self.weight.element_size()
        rest = [
            each if each is None else functional.pad(each, (0, missing)) for each in (self.scale, self.bias, self.sums)
        ]
        rows = functional.pad(self.weight, (0, 0, 0, missing)).view(-1, native.LANES, self.inputs // together, together)
        return rows.transpose(1, 2).contiguous(), *rest

    @cached_property
    def compiled(self) -> native.Product:
        """As native.cpp knows it."""
        return native.Product(*map(native.address, self.blocks), len(self.weight), self.inputs)

    @property
    def inputs(self) -> int:
        return self.weight.shape[1]

    def forward(self, x: Float[Tensor, "*B K"]) -> Float[Tensor, "*B N"]:
        rows, library = x.numel() // x.shape[-1], native.library()
        if library is None or rows > self.most or rows * self.weight.numel() > self.too_many or self.inputs % 4:
            return self.many(x, rows)
        x, y = x.contiguous(), x.new_empty(*x.shape[:-1], len(self.weight))
        library.product(byref(self.compiled), x.data_ptr(), y.data_ptr(), rows)
        return y

    @abstractmethod
    def many(self, x: Float[Tensor, "*B K"], rows: int) -> Float[Tensor, "*B N"]: ...


class PackedProduct(FixedProduct):
    """float32: by the weights as they are, or, where there is enough to do, by a copy in oneDNN's layout."""

    def __init__(self, weight: Float[Tensor, "N K"], bias: Float[Tensor, "N"] | None):
        super().__init__(weight, bias)
        if native.has_tiles():  # quicker than torch with many rows too, and no less exact
            self.most, self.too_many = MOST_BY_TILES, sys.maxsize

    @cached_property
    def packed(self) -> Tensor | None:
        """Made when it is first needed: single sentences may never need it."""
        packs = torch.backends.mkldnn.is_available()
        return torch.ops.mkldnn._reorder_linear_weight(self.weight, None) if packs else None

    def many(self, x: Float[Tensor, "*B K"], rows: int) -> Float[Tensor, "*B N"]:
        if rows == 1 or rows * self.weight.numel() < PACKING_PAYS or self.packed is None:
            return functional.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


class ByteProduct(FixedProduct):
    """Weights of 8 bits, each row of the matrix on a scale of its own, and so each row of what goes in."""

    def __init__(self, weight: Float[Tensor, "N K"], bias: Float[Tensor, "N"] | None):
        rounded, scale = as_bytes(weight)
        super().__init__(rounded.to(torch.int8), bias)
        self.scale, self.sums = scale[:, 0].contiguous(), rounded.sum(dim=1).to(torch.int32)
        self.zeros = torch.zeros(len(weight), dtype=torch.int32)
        if on_arm():  # where oneDNN multiplies bytes slowly, however many
            self.most = self.too_many = sys.maxsize

    @cached_property
    def packed(self) -> Tensor:
        return torch.ops.onednn.qlinear_prepack(self.weight, None)

    def many(self, x: Float[Tensor, "*B K"], rows: int) -> Float[Tensor, "*B N"]:
        rounded, scale = as_bytes(x)
        y = torch.ops.onednn.qlinear_pointwise(
            rounded.add_(ZERO).to(torch.uint8), 1.0, ZERO, self.packed, self.scale, self.zeros, None, 1.0, 0,
            torch.float32, "none", [], "",
        )  # fmt: skip
        return y.mul_(scale) if self.bias is None else torch.addcmul(self.bias, y, scale)


class HalfProduct(nn.Module):
    """Weights of 16 bits; what goes in, and the sums, of 32."""

    def __init__(self, weight: Float[Tensor, "N K"], bias: Float[Tensor, "N"] | None):
        super().__init__()
        if not multiplies_halves():
            raise RuntimeError("the processor lacks the FHM instructions")
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)

    def forward(self, x: Float[Tensor, "*B K"]) -> Float[Tensor, "*B N"]:
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)


class DeviceProduct(nn.Module):
    """On a GPU: the weights as they are, an even number of them."""

    def __init__(self, weight: Float[Tensor, "N K"], bias: Float[Tensor, "N"] | None):
        super().__init__()
        self.rows = len(weight)
        self.weight, self.bias = even(weight, bias)

    def forward(self, x: Float[Tensor, "*B K"]) -> Float[Tensor, "*B N"]:
        return functional.linear(x, self.weight, self.bias)[..., : self.rows]


def on_arm() -> bool:
    return bool(torch.cpu.get_capabilities()["architecture"] == "arm64")


def multiplies_halves() -> bool:
    """Whether the processor has what torch's kernels for fp16 use: those for ARM do not ask, and the process dies."""
    return not on_arm() or bool(torch.cpu.get_capabilities()["fhm"])


def multiplies_bf16(device: torch.device) -> bool:
    """Whether the device has products of bf16; on a processor without them torch's loops are a hundred times slower."""
    if device.type != "cpu":
        return True
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def as_bytes(x: Float[Tensor, "*B K"]) -> tuple[Float[Tensor, "*B K"], Float[Tensor, "*B 1"]]:
    """Whole numbers up to 127 on either side of zero, and what one of them is worth in each row."""
    scale = x.abs().amax(dim=-1, keepdim=True).clamp_(min=torch.finfo(x.dtype).tiny).div_(LARGEST)
    return (x / scale).round_(), scale


PRODUCTS: dict[str, Callable[[Tensor, Tensor | None], nn.Module]] = {
    "fp32": PackedProduct,
    "fp16": HalfProduct,
    "int8": ByteProduct,
}


def product(
    weights: Sequence[Float[Tensor, "_ K"]], biases: Sequence[Float[Tensor, "_"] | None], precision: str
) -> nn.Module:
    """One product that yields the outputs of several matrices side by side; a matrix without bias has one of zeros."""
    weight = torch.cat([each.detach() for each in weights]) if len(weights) > 1 else weights[0].detach()
    laid_out = PRODUCTS[precision] if weight.device.type == "cpu" else DeviceProduct
    if all(each is None for each in biases):
        return laid_out(weight, None)
    whole = [w.new_zeros(len(w)) if b is None else b.detach() for w, b in zip(weights, biases, strict=True)]
    return laid_out(weight, torch.cat(whole))


def check_precision(precision: str) -> None:
    """Refuse a precision that is unknown, or that this machine cannot compute with."""
    if precision not in PRODUCTS:
        raise UsageError(f"precision {precision!r} is unknown; choose one of {', '.join(PRODUCTS)}")
    try:
        PRODUCTS[precision](torch.zeros(4, 4), None)(torch.zeros(FixedProduct.most + 1, 4))
    except (RuntimeError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"precision {precision} is not possible on this machine ({reason}); use fp32") from error
