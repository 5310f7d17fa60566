"""Compiled code (native.cpp) that computes a whole layer for new tokens in one call, if there is a C++ compiler.

Without it (`regard/native.py` says when) torch computes the same, one operation after another.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from regard import native

SOURCE = Path(__file__).with_name("native.cpp")
INCLUDED = ("native_candidates.h", "native_products.h", "native_tiles.h")
LANES = 32  # as in native.cpp
Pointer, Int = ctypes.c_void_p, ctypes.c_int64


class Product(ctypes.Structure):
    _fields_ = [
        ("weight", Pointer), ("scale", Pointer), ("bias", Pointer), ("sum", Pointer), ("outputs", Int), ("inputs", Int),
    ]  # fmt: skip


class Norm(ctypes.Structure):
    _fields_ = [("weight", Pointer), ("bias", Pointer), ("eps", ctypes.c_float), ("centred", ctypes.c_int32)]


class Keys(ctypes.Structure):
    _fields_ = [
        ("k", Pointer), ("v", Pointer), ("sentence", Int), ("head", Int), ("key", Int), ("length", Int),
        ("ancestry", Pointer), ("known", Int), ("mask", Pointer), ("mask_row", Int), ("rows", Pointer),
    ]  # fmt: skip


class Bias(ctypes.Structure):
    _fields_ = [("values", Pointer), ("head", Int), ("query", Int)]


class Look(ctypes.Structure):
    _fields_ = [
        ("norm", Norm), ("into", Product), ("out", Product), ("heads", Int), ("groups", Int), ("width", Int),
        ("scale", ctypes.c_float), ("frequencies", Pointer),
    ]  # fmt: skip


class Feed(ctypes.Structure):
    _fields_ = [
        ("norm", Norm), ("up", Product), ("gate", Product), ("down", Product), ("activation", ctypes.c_int32),
        ("gated", ctypes.c_int32),
    ]  # fmt: skip


class Layer(ctypes.Structure):
    _fields_ = [
        ("own", Look), ("cross", Look), ("feed", Feed), ("pre", ctypes.c_int32), ("looks_across", ctypes.c_int32),
    ]  # fmt: skip


@cache
def library() -> Any:
    """The compiled code; None if it is switched off or cannot be compiled."""
    found = native.load(SOURCE, INCLUDED, "models run without compiled code, slower")
    if found is None:
        return None
    found.layer_step.argtypes = [
        Pointer, Pointer, Int, Int, Pointer, Pointer, Pointer, Pointer, Int, ctypes.c_int32, Pointer, Int, Pointer,
    ]  # fmt: skip
    found.product.argtypes = [Pointer, Pointer, Pointer, Int]
    found.choose_best.argtypes = [
        Pointer, Pointer, Int, Int, Int, Pointer, Int, Int, Pointer, Pointer, Pointer,
    ]  # fmt: skip
    found.layer_step.restype = found.product.restype = None
    found.choose_best.restype = Int
    found.bytes_by.restype = ctypes.c_char_p
    return found


def has_tiles() -> bool:
    """Whether compiled code multiplies many rows on the CPU's tile unit (native_tiles.h)."""
    return library() is not None and bool(library().has_tiles())


def address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
