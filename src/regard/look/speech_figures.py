"""A recording as PNG and SVG: its wave, its spectrogram with the path of labels, and what every token looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from regard.errors import UsageError
from regard.look.figures import INK, MUTED, RAMP, RULE
from regard.look.panels import Frames, Panel, Point
from regard.look.report import AttentionReport

ACCENT = "#c2570c"
WIDTH, ROW = 10.0, 0.22  # inches of the figure, of one token
MOST_ROWS = 80  # tokens that are drawn


def draw_speech(report: AttentionReport, points: Sequence[Point] = ()) -> Figure:
    """Wave, spectrogram and path above, and below, for the last layer of each kind, tokens against time."""
    if points:
        raise UsageError("tokens look at this recording, not places of it; leave out --at")
    if report.image is None:
        raise UsageError("there is no spectrogram to draw")
    panels = [*_last_of_each_kind(report)]
    heights = [0.6, 1.9, *(max(1.2, ROW * min(MOST_ROWS, len(panel.queries))) for panel in panels)]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.35 * len(heights) + 0.6))
    axes: Any = figure.subplots(len(heights), 1, height_ratios=heights, sharex=True, squeeze=False)[:, 0]
    seconds = float(report.details["seconds"])
    _draw_wave(axes[0], report.details["wave"], seconds)
    axes[1].imshow(report.image.transpose(1, 2, 0), aspect="auto", extent=(0, seconds, 0, 1), interpolation="nearest")
    axes[1].set_yticks([])
    _draw_path(
        axes[1], report.details["path"] or [[w["text"], w["start"], w["end"], 0] for w in report.details["words"]]
    )
    for each, panel in zip(axes[2:], panels, strict=True):
        _draw_panel(each, panel)
    axes[0].set_xlim(0, seconds)
    for each in axes:
        each.spines[:].set_color(RULE)
        each.tick_params(length=0, labelsize=7, colors=MUTED)
    axes[-1].set_xlabel("seconds", fontsize=8, color=MUTED)
    facts = "  ".join([report.model, *(f"{name} {value}" for name, value in report.meta.items())])
    figure.suptitle(f"{report.title[:100]}\n{facts[:140]}", fontsize=9, color=INK, parse_math=False)
    figure.tight_layout(pad=0.5, rect=(0, 0, 1, 1 - 0.1 / figure.get_figheight()))
    return figure


def _last_of_each_kind(report: AttentionReport) -> list[Panel]:
    """The last layer of self-attention and that of cross-attention, as far as they look at frames."""
    found = {panel.kind: panel for panel in report.panels if isinstance(panel.keys, Frames)}
    return list(found.values())


def _draw_wave(axes: Axes, peaks: Sequence[float], seconds: float) -> None:
    at, loud = np.linspace(0, seconds, len(peaks)), np.array(peaks)
    axes.fill_between(at, -loud, loud, color=RAMP(0.75), lw=0)
    axes.set_yticks([])


def _draw_path(axes: Axes, path: Sequence[Sequence[Any]]) -> None:
    """A bar over the frames of every label, with its name above."""
    for label, start, end, _ in path:
        axes.axvspan(start, end, ymin=0.0, ymax=1.0, color=ACCENT, alpha=0.16, lw=0)
        axes.plot([start, end], [0.97, 0.97], color=ACCENT, lw=2.5, solid_capstyle="butt")
        axes.text((start + end) / 2, 1.01, label, fontsize=7, color=INK, ha="center", va="bottom", parse_math=False)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    assert isinstance(panel.keys, Frames)
    weights = panel.weights.mean(axis=0)[:MOST_ROWS]
    weights = weights / np.maximum(weights.max(axis=1, keepdims=True), 1e-9)
    length = len(panel.keys) * panel.keys.seconds
    axes.imshow(
        weights, cmap=RAMP, norm=Normalize(0, 1), aspect="auto", interpolation="nearest",
        extent=(0, length, len(weights) - 0.5, -0.5),
    )  # fmt: skip
    axes.set_yticks(range(len(weights)), panel.queries.labels()[:MOST_ROWS], fontsize=7, color=INK, parse_math=False)
    axes.set_title(
        f"{panel.name}: mean of its heads, darkest where a token looked most", fontsize=7.5, color=MUTED, loc="left"
    )
