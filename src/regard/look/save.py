"""One saver for every report: PNG, SVG, the offline page or JSON, by the suffix of the file."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import font_manager
from matplotlib.figure import Figure

from regard.errors import UsageError
from regard.look.box_figures import draw_boxes
from regard.look.figures import View, draw
from regard.look.house_figures import draw_house
from regard.look.image_figures import draw_over_image
from regard.look.page import render_page
from regard.look.panels import Agents, Boxes, Frames, Grid, Point, Residues, Steps
from regard.look.report import AttentionReport, to_json
from regard.look.scene_figures import draw_scene
from regard.look.speech_figures import draw_speech
from regard.look.strip_figures import draw_strip
from regard.look.structure_figures import draw_structure

SUFFIXES = (".png", ".svg", ".html", ".json")
DPI = 160
# Figures of views other than the labelled matrix; `points` are the places of an image whose attention is drawn.
FIGURES: dict[str, Callable[[AttentionReport, Sequence[Point]], Figure]] = {
    Grid.view: draw_over_image,
    Steps.view: draw_house,
    Agents.view: draw_scene,
    Boxes.view: draw_boxes,
    Frames.view: draw_speech,
    Residues.view: draw_structure,
    "strip": draw_strip,
}
# Tried after DejaVu for scripts it lacks, when the system has them.
FALLBACK_FONTS = (
    "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans Devanagari", "Noto Sans Bengali", "Noto Sans Tamil",
    "Noto Sans Thai", "Arial Unicode MS", "Hiragino Sans", "PingFang SC", "Microsoft YaHei", "Malgun Gothic",
    "Nirmala UI",
)  # fmt: skip


def save(
    report: AttentionReport,
    path: str | Path,
    *,
    panels: str | None = None,
    head: int | None = None,
    view: View | None = None,
    points: Sequence[Point] = (),
) -> Path:
    """Write a report as .png, .svg, .html or .json, by the suffix of `path`.

    `panels` (a pattern such as `decoder.*.cross`) and `head` (from 0) choose what is written. A figure of a text shows
    the word alignment if there is one and nothing was chosen, otherwise every head of every layer; `view` overrides
    this. A figure of an image shows what the cells at `points` look at.
    """
    path = Path(path)
    suffix = check_suffix(path)
    chosen = panels is not None or head is not None
    if chosen:
        report = report.select(panels or "*", head)
    path.parent.mkdir(parents=True, exist_ok=True)
    if suffix == ".html":
        path.write_text(render_page(report), encoding="utf-8")
    elif suffix == ".json":
        path.write_text(json.dumps(to_json(report), ensure_ascii=False), encoding="utf-8")
    elif report.view in FIGURES:
        save_figure(lambda: FIGURES[report.view](report, points), path)
    else:
        shown: View = view or ("alignment" if report.alignment and not chosen else "heads")
        save_figure(lambda: draw(report, shown), path)
    return path


def check_suffix(path: Path) -> str:
    """The suffix of a file that a report can be written to; others are refused."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"cannot write attention as {path.name!r}; name a file ending in .png, .svg, .html or .json")
    return suffix


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
        make().savefig(path, format=file_format, dpi=DPI, metadata=metadata)
    return path


def _font_families() -> list[str]:
    installed = set(font_manager.get_font_names())
    return ["DejaVu Sans", *(name for name in FALLBACK_FONTS if name in installed), "sans-serif"]
