"""Attention to an image as PNG and SVG: the image, dark where it is not looked at.

Between its cells, there is one image for every layer and head; between words and boxes, one for every query.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from regard.data.images.reading import Pixels
from regard.errors import UsageError
from regard.look.figures import INK, MUTED
from regard.look.panels import Boxes, Grid, Panel, Point
from regard.look.report import AttentionReport

POINT_COLOURS = ("#ff7a1a", "#19c37d", "#3f8cff", "#e0409f", "#f5d400")
VEIL, CONTRAST = 0.86, 0.8  # opacity over a cell of weight 0, and the exponent with which it falls
CELL = 1.25  # inches of one small image


def draw_over_image(report: AttentionReport, points: Sequence[Point] = ()) -> Figure:
    """The image and its rollout, then a row of heads for each layer and point.

    A point says which cell's attention is drawn. Without points it is the class token, or the middle of the image in
    layers that have none.
    """
    if report.image is None or not report.panels:
        raise UsageError("there are no attention layers to draw over an image: nothing was recorded")
    image, chosen = report.image, list[Point | None](points)
    rows = [
        (panel, point)
        for panel in report.panels
        for point in (chosen or [None if grids(panel)[0].extra else (0.5, 0.5)])
    ]
    columns = max(2, *(panel.heads for panel in report.panels))
    figure = Figure(figsize=(CELL * columns + 0.2, (CELL + 0.2) * (len(rows) + 1) + 0.4))
    axes = figure.subplots(len(rows) + 1, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    show_image(axes[0][0], image)
    for number, each in enumerate(points):
        mark_point(axes[0][0], image, each, number)
    if report.rollout is not None:
        show_image(axes[0][1], image, report.rollout)
        axes[0][1].set_title("all layers (rollout)", fontsize=6, color=MUTED, loc="left")
    for line, (panel, point) in zip(axes[1:], rows, strict=True):
        _draw_heads(line, image, panel, point, points.index(point) if points and point is not None else 0)
    figure.suptitle(f"{report.title}  {facts(report)}", fontsize=9, color=INK)
    figure.tight_layout(pad=0.3, rect=(0, 0, 1, 1 - 0.3 / figure.get_figheight()))
    return figure


def _draw_heads(line: Sequence[Axes], image: Pixels, panel: Panel, point: Point | None, number: int) -> None:
    """One row: what the cell at a point looks at in every head; without a point, what the class token looks at."""
    queries, keys = grids(panel)
    row = 0 if point is None else queries.place_at(point)
    for head, (axis, weights) in enumerate(zip(line, panel.weights[:, row, keys.extra :], strict=False)):
        show_image(axis, image, weights.reshape(keys.rows, keys.columns))
        _outline_windows(axis, image, queries)
        if point is not None:
            mark_point(axis, image, point, number)
        axis.set_title(f"{panel.name} · {head}" if head == 0 else str(head), fontsize=6, color=MUTED, loc="left")


def grids(panel: Panel) -> tuple[Grid, Grid]:
    """The axes of a panel between cells of an image."""
    if not isinstance(panel.queries, Grid) or not isinstance(panel.keys, Grid):
        kinds = f"{panel.queries.kind} and {panel.keys.kind}"
        raise UsageError(f"{panel.name} has axes of {kinds}; only grids are drawn over an image")
    return panel.queries, panel.keys


def facts(report: AttentionReport) -> str:
    """The model and the short facts of a report, for a title."""
    return "  ".join([report.model, *(f"{name} {value}" for name, value in report.meta.items())])


def show_image(axis: Axes, image: Pixels, weights: np.ndarray | None = None) -> None:
    """Draw the image, darker where its weight is smaller."""
    height, width = image.shape[1:]
    axis.imshow(image[0] if len(image) == 1 else image.transpose(1, 2, 0), cmap="gray", vmin=0, vmax=255)
    if weights is not None:
        veil = np.zeros((*weights.shape, 4))
        veil[..., 3] = VEIL * (1 - (weights / max(weights.max(), 1e-12)) ** CONTRAST)
        axis.imshow(veil, extent=(-0.5, width - 0.5, height - 0.5, -0.5), interpolation="nearest")


def mark_point(axis: Axes, image: Pixels, point: Point, number: int) -> None:
    """A dot at a point; `number` chooses its colour."""
    height, width = image.shape[1:]
    colour = POINT_COLOURS[number % len(POINT_COLOURS)]
    axis.plot(point[0] * width - 0.5, point[1] * height - 0.5, "o", color=colour, markersize=4, markeredgecolor="white")


def _outline_windows(axis: Axes, image: Pixels, grid: Grid) -> None:
    """Draw the borders between windows, in layers whose attention stays within them."""
    if grid.windows is None:
        return
    (rows, columns), (height, width) = (grid.rows, grid.columns), image.shape[1:]
    windows = grid.windows.reshape(rows, columns)
    x, y = (np.arange(count + 1) * side / count - 0.5 for count, side in ((columns, width), (rows, height)))
    style: dict[str, Any] = {"color": "white", "lw": 0.4, "alpha": 0.6}
    for row, column in zip(*np.nonzero(windows[:, 1:] != windows[:, :-1]), strict=True):
        axis.plot([x[column + 1], x[column + 1]], y[row : row + 2], **style)
    for row, column in zip(*np.nonzero(windows[1:] != windows[:-1]), strict=True):
        axis.plot(x[column : column + 2], [y[row + 1], y[row + 1]], **style)


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
