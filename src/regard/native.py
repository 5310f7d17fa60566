"""C++ files of this library, compiled once for this CPU and kept in the user's cache folder.

Without a compiler, or with REGARD_NATIVE=0, torch computes the same. REGARD_NATIVE=LEVEL compiles for an older level of
instructions than that of the CPU; the tests use it to cover other CPUs.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import platformdirs
import torch
from filelock import FileLock

from regard import cpu
from regard.errors import UsageError

# No instruction scheduling: gcc on ARM moves loads forward, which takes registers that hold sums.
FLAGS = ("-std=c++17", "-O3", "-ffast-math", "-fno-schedule-insns", "-fopenmp", "-fPIC")
NATIVE = "native"
Levels = dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
# What to compile for, and the instructions that a CPU of that level has, named as torch names them.
X86_LEVELS: Levels = {
    "x86-64": (("-march=x86-64",), ()),
    "avx2": (("-march=haswell",), ("avx2", "fma3", "f16c", "bmi2")),
    "avx2-vnni": (("-march=haswell", "-mavxvnni"), ("avx2", "fma3", "f16c", "bmi2", "avx_vnni")),
    # The same arithmetic on vectors of the same width, with the instruction's AVX-512 encoding.
    "avx2-vnni-by-avx512": (
        ("-march=haswell", "-mavx512vl", "-mavx512vnni", "-mprefer-vector-width=256", "-DREGARD_NARROW"),
        ("avx512_f", "avx512_vl", "avx512_vnni"),
    ),
    "avx512": (("-march=skylake-avx512",), ("avx512_f", "avx512_bw", "avx512_dq", "avx512_vl", "avx512_cd")),
    "avx512-vnni": (("-march=cascadelake",), ("avx512_f", "avx512_bw", "avx512_dq", "avx512_vl", "avx512_vnni")),
    "amx": (("-march=sapphirerapids",), ("avx512_f", "avx512_vnni", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8")),
}
ARM_LEVELS: Levels = {
    "neon": (("-march=armv8-a",), ()),
    "neon-dot": (("-march=armv8.2-a+dotprod",), ("dot",)),
}


def load(source: Path, included: Sequence[str], without: str) -> ctypes.CDLL | None:
    """The compiled `source`, which includes files beside it; None if it is switched off or cannot be compiled.

    `without` says what happens then, in the warning that a compiler failed.
    """
    level, compiler = os.environ.get("REGARD_NATIVE") or NATIVE, compiler_command()
    if level == "0" or compiler is None:
        return None
    _check_level(level)
    try:
        _show_threads()
        return ctypes.CDLL(str(_compiled(source, included, compiler, level)))
    except (OSError, subprocess.SubprocessError) as error:
        warnings.warn(f"{without}: {compiler} failed ({_reason(error)})", stacklevel=3)
        return None


def compiler_command() -> str | None:
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")


def levels() -> Levels:
    """The levels of instructions of this architecture: compiler flags, and what a CPU must have."""
    return ARM_LEVELS if cpu.is_arm() else X86_LEVELS


def runnable_levels() -> list[str]:
    """The levels whose code this CPU can run."""
    return [name for name, (_, needed) in levels().items() if cpu.has(*needed)]


def _check_level(level: str) -> None:
    if level != NATIVE and level not in runnable_levels():
        known = ", ".join(["0", NATIVE, *runnable_levels()])
        raise UsageError(f"REGARD_NATIVE={level} is no level that this CPU can run; choose one of {known}")


def _reason(error: Exception) -> str:
    """The first error a compiler printed; else what failed."""
    lines = (getattr(error, "stderr", None) or b"").decode(errors="replace").splitlines()
    return next((line for line in lines if "error" in line), str(error))


def _show_threads() -> None:
    """Make the symbols of torch's OpenMP global, which not every build of torch does (ARM): compiled code uses them."""
    for file in (Path(torch.__file__).parent / "lib").glob("lib[gi]omp*.so*"):
        with suppress(OSError):  # a library that exists but is not loaded
            ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL | getattr(os, "RTLD_NOLOAD", 0))


def _compiled(source: Path, included: Sequence[str], compiler: str, level: str) -> Path:
    """The library for this source, compiler and level; compiled if it does not exist."""
    code = [file.read_text("utf-8") for file in (source, *map(source.with_name, included))]
    flags = [*FLAGS, *(("-march=native",) if level == NATIVE else levels()[level][0])]
    identity = "\n".join([*code, compiler, *flags, *_cpu_identity()])
    name = hashlib.sha256(identity.encode()).hexdigest()[:20]
    file = Path(platformdirs.user_cache_dir("regard")) / "native" / f"{name}.so"
    if file.is_file():
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")):  # several processes that begin at once compile it once
        if not file.is_file():
            _compile(source, compiler, flags, file)
    return file


def _compile(source: Path, compiler: str, flags: list[str], file: Path) -> None:
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        parts, whole = Path(folder) / "native.o", Path(folder) / "native.so"
        # Linked without -fopenmp, so that the threads are torch's; without -ffast-math, which would change its sums.
        for command in ([*flags, "-c", str(source), "-o", str(parts)], ["-shared", str(parts), "-o", str(whole)]):
            subprocess.run([compiler, *command], check=True, capture_output=True, timeout=120)
        whole.replace(file)


def _cpu_identity() -> list[str]:
    """What decides which instructions the code may use."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else [platform.processor() or platform.machine()]
    return sorted({line for line in lines if line.startswith(("model name", "flags", "Features")) or len(lines) == 1})
