"""One saver for every report: PNG, SVG, the offline page or JSON, by the suffix of the file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from regard.data.files import write_whole
from regard.errors import UsageError
from regard.families.catalog import FIGURES, imported
from regard.look.figures import View, draw, save_figure
from regard.look.image_figures import draw_over_image
from regard.look.page import render_page
from regard.look.panels import Grid, Point
from regard.look.report import AttentionReport, to_json

SUFFIXES = (".png", ".svg", ".html", ".json")


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
    if suffix == ".html":
        write_whole(path, render_page(report))
    elif suffix == ".json":
        write_whole(path, json.dumps(to_json(report), ensure_ascii=False))
    elif report.view == Grid.view:
        save_figure(lambda: draw_over_image(report, points), path)
    elif report.view in FIGURES:
        save_figure(lambda: imported(FIGURES[report.view])(report, points), path)
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
