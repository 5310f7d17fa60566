"""Attention of words on an image as PNG and SVG: the image once for every word, dark where it is not looked at."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from regard.errors import UsageError
from regard.families.captions.pipeline import DRAWN, Caption, CaptionAttention, ImageCaptioner
from regard.families.images.pipeline import ImageSource
from regard.look.figures import INK, MUTED
from regard.look.image_figures import CELL, facts, mark_point, show_image
from regard.look.inspection import GivenInput, Inspected
from regard.look.panels import Grid, Panel, Point, Tokens
from regard.look.report import AttentionReport

STRIP = "strip"  # the view: the image once for every word


def inspect_caption(captioner: ImageCaptioner, given: GivenInput) -> Inspected:
    """The caption of an image, and where the model looked at every word of it."""
    (found,) = captioner.caption(given.file)
    answer = {"caption": found.text, "score": found.score}
    return Inspected(caption_report(captioner, given.file, found, given.title), answer)


def caption_report(captioner: ImageCaptioner, image: ImageSource, caption: Caption, title: str) -> AttentionReport:
    """Where the model looked while it wrote a caption; without attention, a report without panels."""
    meta = {"caption": caption.text, "score": f"{caption.score:.4f}"}
    if not captioner.looks or not caption.ids:
        seen = CaptionAttention(captioner.shown(image), [], (1, 1), {})
    else:
        seen = captioner.attention(image, caption.ids)
    words, cells = Tokens(seen.tokens), Grid(*seen.grid)
    panels = [
        Panel(name, "cross", weights, words, cells, seen.neurons.get(name)) for name, weights in seen.weights.items()
    ]
    details = {"gates": [round(gate, 4) for gate in seen.gates], "drawn": [DRAWN in panel.name for panel in panels]}
    return AttentionReport(
        title or str(image),
        captioner.name,
        panels,
        meta=meta,
        image=seen.pixels,
        shown_as=STRIP if panels else "",
        details=details if panels else {},
    )


COLUMNS = 8  # words of a row
LETTERS = 16  # of the title, for each column


def draw_strip(report: AttentionReport, points: Sequence[Point] = ()) -> Figure:
    """The image, then for every word what each layer looked at (the mean of its heads); drawn places are dots.

    Weights that places were drawn from are above the draws. Where the report has gates, the gate of a word is written
    beside it.
    """
    if points:
        raise UsageError("words look at this image, not places of it; leave out --at")
    if report.image is None or not report.panels:
        raise UsageError("there is no attention between words and an image to draw: nothing was recorded")
    words = report.panels[0].queries.labels()
    gates, drawn = report.details.get("gates", []), report.details.get("drawn", [False] * len(report.panels))
    lines = [range(first, min(first + COLUMNS, len(words))) for first in range(0, len(words), COLUMNS)]
    rows = len(lines) * len(report.panels)
    figure = Figure(figsize=(CELL * (min(COLUMNS, len(words)) + 1) + 0.2, (CELL + 0.25) * rows + 0.5))
    axes = figure.subplots(rows, min(COLUMNS, len(words)) + 1, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    show_image(axes[0][0], report.image)
    for number, line in enumerate(lines):
        for which, panel in enumerate(report.panels):
            row = axes[number * len(report.panels) + which]
            if number or which:
                row[0].text(0.95, 0.5, panel.name, fontsize=6, color=MUTED, ha="right", transform=row[0].transAxes)
            for axis, word in zip(row[1:], line, strict=False):
                _draw_word(axis, report, panel, word, is_drawn=bool(drawn[which]))
                said = words[word] + (f"  β {gates[word]:.2f}" if gates and which == 0 else "")
                axis.set_title(said if which == 0 else "", fontsize=7, color=INK, loc="left")
    title = wrap(f"{report.title}  {facts(report)}", LETTERS * axes.shape[1])
    figure.suptitle("\n".join(title), fontsize=9, color=INK)
    room = 1 - (0.2 + 0.15 * len(title)) / figure.get_figheight()
    figure.tight_layout(pad=0.3, h_pad=1.4, rect=(0, 0, 1, room))  # h_pad: the words above each row
    return figure


def _draw_word(axis: Axes, report: AttentionReport, panel: Panel, word: int, *, is_drawn: bool) -> None:
    grid = panel.keys
    if not isinstance(grid, Grid):
        raise UsageError(f"{panel.name} has keys of {grid.kind}; only the cells of an image are drawn over it")
    assert report.image is not None
    weights = panel.weights[:, word, grid.extra :].mean(axis=0).reshape(grid.rows, grid.columns)
    show_image(axis, report.image, None if is_drawn else weights)
    if is_drawn:
        row, column = np.unravel_index(int(weights.argmax()), weights.shape)
        mark_point(axis, report.image, ((column + 0.5) / grid.columns, (row + 0.5) / grid.rows), 0)
