"""What the CPU of this machine can do: its instructions, and the precisions it has arithmetic for.

torch and oneDNN run bf16 and fp16 on every CPU, by emulation where it lacks the instructions: the answers are right,
but slower than in fp32. So a precision is asked about here before it is used.
"""

import os
import platform
import subprocess
from functools import cache
from typing import Any

import torch

# oneDNN may be told to use less than there is; these levels have no arithmetic of bf16.
WITHOUT_BF16 = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"}


@cache
def capabilities() -> dict[str, Any]:
    """What torch found: `architecture`, `cpu_name`, and a truth value for every set of instructions."""
    return dict(torch.cpu.get_capabilities())


def name() -> str:
    """What the CPU is called. torch has no names of ARM's, whose `/proc/cpuinfo` has numbers; `lscpu` knows them."""
    found = str(capabilities().get("cpu_name", ""))
    if found and found != "Unknown":
        return found
    try:
        told = subprocess.run(["lscpu"], capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
        rows = dict(line.split(":", 1) for line in told.stdout.splitlines() if ":" in line)
    except OSError:
        rows = {}
    parts = (rows.get(key, "").strip() for key in ("Vendor ID", "Model name"))
    return " ".join(filter(None, parts)) or platform.processor() or platform.machine()


def has(*names: str) -> bool:
    """Whether the CPU has all these sets of instructions, named as torch names them."""
    return all(bool(capabilities().get(name, False)) for name in names)


def is_arm() -> bool:
    return bool(capabilities().get("architecture", platform.machine()) in ("arm64", "aarch64"))


def has_bf16() -> bool:
    """Whether products of bf16 are instructions of the CPU that oneDNN may use."""
    if os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in WITHOUT_BF16 or not torch.backends.mkldnn.is_available():
        return False
    supported = has("bf16") if is_arm() else has("avx512_bf16") or has("amx_bf16")
    return supported and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def has_fp16() -> bool:
    """Whether torch multiplies fp16 weights by instructions: on ARM only; on x86 it converts them at every product."""
    return is_arm() and has("fhm")
