"""The precision that this CPU computes in for each one asked for, and the speed of its products."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import nn

from regard import cpu, native
from regard.runtime import compiled
from regard.runtime.linear import FAST_LINEARS, int8_is_faster, onednn_is_exact, why_unsupported

OUTPUTS, INPUTS = 2048, 512  # the timed product: a feed-forward layer of the base Transformer
ROWS = (1, 64)
SECONDS = 0.15  # for each product and number of rows
# Instruction sets that decide how a model is computed, under torch's names.
INSTRUCTIONS = (
    "avx2", "avx512_f", "avx512_bw", "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8",
    "neon", "dot", "fp16_arith", "fhm", "bf16", "i8mm", "sve",
)  # fmt: skip


@dataclass
class Form:
    """How a requested precision is computed."""

    precision: str
    use: str  # inference or training
    computed_as: str  # the precision that is used
    how: str  # a description
    rates: dict[int, float]  # GFLOP/s, by the number of rows


def instructions() -> list[str]:
    """The members of INSTRUCTIONS that the CPU has."""
    return [name for name in INSTRUCTIONS if cpu.has(name)]


def compiled_code() -> str:
    """The instruction level of our compiled code, or why there is none."""
    library = compiled.library()
    if library is not None:
        return f"{library.vector_bits()}-bit vectors, bytes by {library.bytes_by().decode()}"
    if native.compiler_command() is None:
        return "none: no C++ compiler (g++ or clang++) was found; torch computes instead, slower"
    return "none: switched off by REGARD_NATIVE=0, or its compiler failed; torch computes instead, slower"


def forms() -> list[Form]:
    """Every precision, with its rates."""
    weight = torch.randn(OUTPUTS, INPUTS)
    rates = {name: _timed(make(weight, None)) for name, make in FAST_LINEARS.items() if why_unsupported(name) is None}
    auto = "int8" if int8_is_faster() else "fp32"
    how = {"fp32": "compiled code, and torch for many rows" if compiled.library() else "torch", "int8": _how_bytes()}

    def inference(precision: str) -> Form:
        obstacle = why_unsupported(precision)
        form = "fp32" if obstacle else precision
        return Form(precision, "inference", form, obstacle or how.get(form, "torch"), rates[form])

    found = [inference(precision) for precision in (*FAST_LINEARS, "bf16")]
    found.append(Form("auto", "inference", auto, "the fastest here", rates[auto]))
    return [*found, _training()]


def _how_bytes() -> str:
    if compiled.library() is not None:
        return f"compiled code, {compiled.library().bytes_by().decode()}, exact"
    return (
        "oneDNN, exact" if onednn_is_exact() else "torch's fp32 products of whole numbers, exact, no faster than fp32"
    )


def _training() -> Form:
    computed, dtype, how = "fp32", torch.float32, "this CPU has no arithmetic of bf16, and would emulate it"
    if cpu.has_bf16():
        computed, dtype, how = "bf16", torch.bfloat16, "torch's autocast"
    return Form("bf16", "training", computed, how, _timed(nn.Linear(INPUTS, OUTPUTS, dtype=dtype), dtype))


@torch.inference_mode()
def _timed(product: nn.Module, dtype: torch.dtype = torch.float32) -> dict[int, float]:
    """GFLOP/s of a product, the best of many runs, by the number of rows."""
    rates = {}
    for rows in ROWS:
        x, best = torch.randn(rows, INPUTS, dtype=dtype), float("inf")
        product(x)
        end = time.perf_counter() + SECONDS
        while (began := time.perf_counter()) < end:
            product(x)
            best = min(best, time.perf_counter() - began)
        rates[rows] = 2 * rows * OUTPUTS * INPUTS / best / 1e9
    return rates
