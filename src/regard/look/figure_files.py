"""Figures as PNG and SVG files: fonts of many scripts, and equal files for equal figures."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import font_manager
from matplotlib.figure import Figure

from regard.data.files import atomic_write
from regard.errors import UsageError

DPI = 160
# Tried after DejaVu for scripts it lacks, when the system has them.
FALLBACK_FONTS = (
    "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans Devanagari", "Noto Sans Bengali", "Noto Sans Tamil",
    "Noto Sans Thai", "Arial Unicode MS", "Hiragino Sans", "PingFang SC", "Microsoft YaHei", "Malgun Gothic",
    "Nirmala UI",
)  # fmt: skip


def save_figure(make: Callable[[], Figure], path: Path) -> Path:
    """Write a figure as .png or .svg; equal figures give equal files. Matplotlib's global state stays as it is."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise UsageError(f"cannot draw a figure to {path.name!r}; name a file ending in .png or .svg")
    file_format = path.suffix.lower()[1:]
    path.parent.mkdir(parents=True, exist_ok=True)
    style: dict[Any, Any] = {
        "font.family": _font_families(),
        "svg.fonttype": "none",  # words stay text: searchable, and drawn with the reader's fonts
        "svg.hashsalt": "regard",  # ids inside the file do not depend on the time or the process
    }
    metadata = {"Date": None} if file_format == "svg" else {"Software": None}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from", category=UserWarning)
        figure = make()
        with atomic_write(path) as file:
            figure.savefig(file, format=file_format, dpi=DPI, metadata=metadata)
    return path


def _font_families() -> list[str]:
    installed = set(font_manager.get_font_names())
    return ["DejaVu Sans", *(name for name in FALLBACK_FONTS if name in installed), "sans-serif"]
