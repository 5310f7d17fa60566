"""Line charts: one value against another, a line per model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from regard.data.files import atomic_write
from regard.errors import UsageError

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
