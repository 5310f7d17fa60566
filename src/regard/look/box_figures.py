"""Attention to boxes of an image as PNG and SVG: the image once for every query, bright where its boxes are."""

from __future__ import annotations

from textwrap import wrap

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from regard.errors import UsageError
from regard.look.figures import INK, MUTED
from regard.look.image_figures import CELL, POINT_COLOURS, facts, show_image
from regard.look.panels import Boxes, Panel
from regard.look.report import AttentionReport

COLUMNS = 8  # images of a row
PANELS = 2  # layers that are drawn: the first ones of the report, which are those between words and regions
WORDS = 3  # the words that a region looks at most, written beside it
LETTERS = 16  # of the title, for each column
WHOLE_SIDE = 0.999  # sides of a box that is taken for the whole image
DETAIL = 96  # cells of a side of the map of what is looked at


def draw_regions(report: AttentionReport) -> Figure:
    """What every word and every region of the first layers looks at (the mean of the heads).

    Boxes that are looked at are bright; what falls on a box of the whole image is written beside the word. A region has
    a frame, and the words that it looks at most beside it.
    """
    panels = [panel for panel in report.panels if isinstance(panel.queries, Boxes) or isinstance(panel.keys, Boxes)]
    if report.image is None or not panels:
        raise UsageError("there is no attention between words and regions to draw: nothing was recorded")
    lines = [
        (panel, range(first, min(first + COLUMNS, len(panel.queries))))
        for panel in panels[:PANELS]
        for first in range(0, len(panel.queries), COLUMNS)
    ]
    figure = Figure(figsize=(CELL * (COLUMNS + 1) + 0.2, (CELL + 0.45) * len(lines) + 0.5))
    axes = figure.subplots(len(lines), COLUMNS + 1, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    show_image(axes[0][0], report.image)
    for number, (row, (panel, places)) in enumerate(zip(axes, lines, strict=True)):
        if places.start == 0:
            row[0].set_title(panel.name, fontsize=6, color=MUTED, loc="left")
            if number:
                row[0].text(0.02, 0.5, f"what {panel.queries.kind} look at", fontsize=6, color=MUTED)
        for axis, place in zip(row[1:], places, strict=False):
            _draw_place(axis, report, panel, place)
    title = wrap(f"{report.title}  {facts(report)}", LETTERS * (COLUMNS + 1))
    figure.suptitle("\n".join(title), fontsize=9, color=INK)
    figure.tight_layout(pad=0.3, rect=(0, 0, 1, 1 - (0.2 + 0.15 * len(title)) / figure.get_figheight()))
    return figure


def _draw_place(axis: Axes, report: AttentionReport, panel: Panel, place: int) -> None:
    """The image as one query sees it."""
    assert report.image is not None
    weights, said = panel.weights[:, place].mean(axis=0), panel.queries.labels()[place]
    if isinstance(panel.keys, Boxes):
        boxes = panel.keys.boxes
        whole = (boxes[:, 2:] - boxes[:, :2] >= WHOLE_SIDE).all(axis=1)
        seen = None if whole.all() else brightness(boxes[~whole], weights[~whole])
        show_image(axis, report.image, seen)
        said += f"\nwhole image {weights[whole].sum():.2f}" if whole.any() else ""
    else:
        show_image(axis, report.image)
        words = panel.keys.labels()
        said += "\n" + " ".join(words[each] for each in np.argsort(-weights, kind="stable")[:WORDS])
    if isinstance(panel.queries, Boxes):
        left, top, right, bottom = panel.queries.boxes[place]
        height, width = report.image.shape[1:]
        corner = left * width - 0.5, top * height - 0.5
        size = (right - left) * width, (bottom - top) * height
        axis.add_patch(Rectangle(corner, *size, fill=False, edgecolor=POINT_COLOURS[0], linewidth=1.2))
    axis.set_title(said, fontsize=6, color=INK, loc="left")


def brightness(boxes: Float[np.ndarray, "N 4"], weights: Float[np.ndarray, " N"]) -> Float[np.ndarray, "S S"]:
    """At every place of the image, the largest weight of a box that covers it."""
    middles = (np.arange(DETAIL) + 0.5) / DETAIL
    x, y = middles[None, None, :], middles[None, :, None]
    left, top, right, bottom = (edge[:, None, None] for edge in boxes.T)
    inside = (left <= x) & (x <= right) & (top <= y) & (y <= bottom)
    return np.where(inside, weights[:, None, None], 0.0).max(axis=0)
