"""Line charts: one value against another, a line per model."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from regard.data.files import atomic_write
from regard.errors import UsageError
from regard.look.panels import Panel
from regard.look.report import AttentionReport

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
    installed = set(font_manager.get_font_names())
    style: dict[Any, Any] = {
        "font.family": ["DejaVu Sans", *(name for name in FALLBACK_FONTS if name in installed), "sans-serif"],
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


View = Literal["alignment", "heads"]

INK, MUTED, RULE = "#1b2233", "#5b6478", "#d5dae5"
# One hue whose lightness falls evenly, so it reads the same for colour-blind eyes and on a grey printer.
RAMP = LinearSegmentedColormap.from_list("regard", ["#f6f8fc", "#c3d5f0", "#7ea5dc", "#3e6cb9", "#172b5f"])

MAX_LABEL = 24  # characters; longer words are cut with an ellipsis
MIN_WIDTH = 4.4  # inches, so that a title has room over three words
TITLE_SIZE, TITLE_LINE = 12.5, 0.24  # points, inches
NUMBERS_UP_TO = 14  # words on the longer side for which the cells carry numbers
VECTOR_CELLS = 10_000  # a larger map is an image inside the SVG
NUMBERS_FROM = 0.05  # lighter cells stay empty, so that the numbers that matter stand out


def draw(report: AttentionReport, view: View) -> Figure:
    """The word alignment, or every head; a single head is a full heat map."""
    if view == "alignment":
        if report.alignment is None:
            raise UsageError("there is no word alignment to draw: this model has no cross-attention; draw its heads")
        return heat_map(report.alignment, title=report.title, note=report.model)
    if not report.panels:
        raise UsageError("there are no attention layers to draw: nothing was recorded")
    if len(report.panels) == 1 and report.panels[0].heads == 1:
        panel = report.panels[0]
        return heat_map(panel, title=report.title, note=f"{report.model} · {panel.name}")
    return small_multiples(report)


# The heat map of one matrix


def heat_map(panel: Panel, *, title: str = "", note: str = "") -> Figure:
    """Queries as rows, keys as columns on top: the alignment figure of Bahdanau et al. (2015, figure 3)."""
    weights = panel.weights[0]
    rows, columns = weights.shape
    cell = _cell_size(max(rows, columns))
    size = min(11.0, cell * 72 * 0.52)
    every = max(1, int(np.ceil(5.0 / size)))  # below five points only every n-th word is written
    size = max(size, 5.0)
    row_labels, column_labels = _labels(panel.queries.labels(), every), _labels(panel.keys.labels(), every)

    left = _widest(row_labels, size) + 0.3
    slope = _widest(column_labels, size) * np.sqrt(0.5) + 0.15  # labels lean at 45 degrees
    width = max(left + columns * cell + max(slope, 0.75), MIN_WIDTH)
    lines = _wrap(title, width)
    heading = _heading_height(lines)
    height = heading + slope + rows * cell + 0.35

    figure = _figure(width, height)
    axes = figure.add_axes(_box(left, heading + slope, columns * cell, rows * cell, width, height))
    axes.pcolormesh(
        weights, cmap=RAMP, vmin=0, vmax=1, edgecolors="white", linewidth=min(1.0, cell * 2),
        rasterized=weights.size > VECTOR_CELLS,
    )  # fmt: skip
    axes.invert_yaxis()
    _write_labels(axes, row_labels, column_labels, size)
    if max(rows, columns) <= NUMBERS_UP_TO:
        _write_numbers(axes, weights, size)
    _write_heading(figure, lines, note)
    _draw_scale(figure, left + columns * cell + 0.2, heading + slope, min(rows * cell, 2.2))
    return figure


def _cell_size(words: int) -> float:
    """Inches a cell: generous for a short sentence, still legible at 60 words, bounded in all for very long ones."""
    return float(np.clip(8.5 / max(words, 1), 0.2, 0.56)) if words <= 150 else 30 / words


def _labels(words: Sequence[str], every: int) -> list[str]:
    return [_shorten(word) if index % every == 0 else "" for index, word in enumerate(words)]


def _shorten(word: str) -> str:
    word = _printable(word)
    return word if len(word) <= MAX_LABEL else word[: MAX_LABEL - 1] + "…"


def _printable(text: str) -> str:
    """The text with control characters replaced, since XML does not allow them."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _widest(texts: Sequence[str], size: float, weight: str = "normal") -> float:
    """Width in inches of the widest text, measured with the fonts that will draw it."""
    figure = Figure(dpi=72)
    renderer = FigureCanvasAgg(figure).get_renderer()
    drawn = (figure.text(0, 0, text, fontsize=size, fontweight=weight, parse_math=False) for text in set(texts) if text)
    return max((text.get_window_extent(renderer).width / 72 for text in drawn), default=0.0)


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _box(x: float, y: float, w: float, h: float, width: float, height: float) -> tuple[float, float, float, float]:
    """Inches from the top left corner, as matplotlib's fractions from the bottom left one."""
    return x / width, 1 - (y + h) / height, w / width, h / height


def _write_labels(axes: Axes, row_labels: list[str], column_labels: list[str], size: float) -> None:
    axes.xaxis.tick_top()
    axes.set_xticks(np.arange(len(column_labels)) + 0.5)
    axes.set_yticks(np.arange(len(row_labels)) + 0.5)
    axes.set_xticklabels(
        column_labels, rotation=45, ha="left", rotation_mode="anchor", fontsize=size, color=INK, parse_math=False
    )
    axes.set_yticklabels(row_labels, fontsize=size, color=INK, parse_math=False)
    axes.tick_params(length=0, pad=4)
    axes.spines[:].set_visible(False)


def _write_numbers(axes: Axes, weights: np.ndarray, size: float) -> None:
    for (row, column), weight in np.ndenumerate(weights):
        if weight >= NUMBERS_FROM:
            colour = "white" if weight > 0.62 else INK
            text = f"{weight:.2f}".removeprefix("0")
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=size * 0.8, color=colour)


def _wrap(title: str, width: float) -> list[str]:
    """The title in at most two lines that fit the figure."""
    per_line = len(title) * (width - 0.5) / max(_widest([title], TITLE_SIZE, "bold"), 0.1)
    return textwrap.wrap(_printable(title), max(int(per_line), 12), max_lines=2, placeholder=" …")


def _heading_height(lines: list[str]) -> float:
    return 0.5 + TITLE_LINE * len(lines)


def _write_heading(figure: Figure, lines: list[str], note: str) -> None:
    width, height = figure.get_size_inches()
    x, y = 0.15, 0.15
    for line in lines:
        style: dict[str, Any] = {"fontsize": TITLE_SIZE, "fontweight": "bold", "color": INK}
        figure.text(x / width, 1 - y / height, line, va="top", parse_math=False, **style)
        y += TITLE_LINE
    figure.text(x / width, 1 - (y + 0.03) / height, note, va="top", fontsize=8.5, color=MUTED, parse_math=False)


def _draw_scale(figure: Figure, x: float, y: float, length: float) -> None:
    """The colour scale: weight 0 (bottom) to 1 (top)."""
    width, height = figure.get_size_inches()
    axes = figure.add_axes(_box(x, y, 0.1, length, width, height))
    axes.imshow(np.linspace(1, 0, 128)[:, None], cmap=RAMP, aspect="auto", extent=(0, 1, 0, 1), vmin=0, vmax=1)
    axes.set_xticks([])
    axes.yaxis.tick_right()
    axes.set_yticks([0, 0.5, 1], ["0", ".5", "1"], fontsize=7.5, color=MUTED)
    axes.tick_params(length=0, pad=3)
    axes.spines[:].set_color(RULE)


# Every layer and head


def small_multiples(report: AttentionReport) -> Figure:
    """One row of small maps for each layer, one column for each head; darker is heavier, scaled within each map."""
    columns = max(panel.heads for panel in report.panels)
    side = float(np.clip(13.0 / columns, 0.55, 1.5))
    gap = 0.09
    left = _widest([_shorten(panel.name) for panel in report.panels], 8.5) + 0.3
    width = max(left + columns * (side + gap) + 0.1, MIN_WIDTH)
    lines = _wrap(report.title, width)
    heading = _heading_height(lines) + 0.25
    height = heading + len(report.panels) * (side + gap) + 0.15

    figure = _figure(width, height)
    for row, panel in enumerate(report.panels):
        top = heading + row * (side + gap)
        figure.text(
            (left - 0.12) / width, 1 - (top + side / 2) / height, _shorten(panel.name),
            ha="right", va="center", fontsize=8.5, color=INK, parse_math=False,
        )  # fmt: skip
        for column, weights in enumerate(panel.weights):
            axes = figure.add_axes(_box(left + column * (side + gap), top, side, side, width, height))
            peak = float(weights.max(initial=0.0)) or 1.0
            axes.imshow(weights, cmap=RAMP, vmin=0, vmax=peak, aspect="auto", interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_color(RULE)
    for column in range(columns if columns > 1 else 0):
        x = left + column * (side + gap) + side / 2
        label = f"head {column}" if side > 0.8 else str(column)
        figure.text(x / width, 1 - (heading - 0.07) / height, label, ha="center", va="bottom", fontsize=8, color=MUTED)
    _write_heading(figure, lines, f"{report.model} · rows look at columns · shading is scaled within each map")
    return figure


COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # told apart by colour-blind people too
MARKERS = ("o", "s", "^", "D", "v", "P")


def check_name(path: Path) -> None:
    """Refuse a file whose suffix names no format a chart can have."""
    if path.suffix not in (".svg", ".png"):
        raise UsageError(f"cannot draw a chart to {path.name!r}; name a file ending in .svg or .png")


def line_chart(
    path: Path,
    x: Sequence[str] | Sequence[float],
    lines: Mapping[str, Sequence[float]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    logarithmic: bool = False,
    log_x: bool = False,
    spreads: Mapping[str, Sequence[float]] | None = None,
) -> Path:
    """Draw `lines` over the same `x` to a .svg or .png file; `logarithmic` is both axes, `log_x` only one. `spreads`
    are drawn as bars around the values."""
    check_name(path)
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for number, (name, values) in enumerate(lines.items()):
        style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
        around = (spreads or {}).get(name)
        axes.errorbar(x, values, yerr=around, label=name, linewidth=2, markersize=6, capsize=3, **style)  # type: ignore[arg-type]
    if logarithmic:
        axes.set_yscale("log")
    if logarithmic or log_x:
        axes.set_xscale("log", base=2)
        axes.set_xticks([float(value) for value in x], labels=[str(value) for value in x])
    axes.set_title(title, loc="left", fontweight="bold", parse_math=False)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return save_chart(figure, path)


def save_chart(figure: Figure, path: Path) -> Path:
    """Write a chart as .svg or .png, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        figure.savefig(file, format=path.suffix.lower()[1:], dpi=150)
    return path
