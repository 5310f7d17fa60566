"""What the claims of the lectures measure, as tables and charts over sizes that one chooses."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from regard.errors import UsageError

DEFAULT_WIDTH = 128  # of the layers of three-ways
MEASURED = {  # claims: the functions of claims/measurements.py, and the charts of their rows
    "gradient-flow": ("gradients_through_time", "gradients"),
    "heads-cost": ("cost_of_heads", "heads"),
    "scaling": ("saturation", "scaling"),
}
SIZES = {  # claims that are measured over sizes: which sizes these are, and the usual ones
    "three-ways": ("lengths", (32, 64, 128, 256, 512, 1024)),
    "windows": ("sides of images", (32, 64, 128, 256)),
    "gradient-flow": ("steps back", (1, 5, 10, 20, 50)),
    "heads-cost": ("numbers of heads", (1, 2, 4, 8, 16)),
    "scaling": ("widths", (4, 16, 64, 256, 1024)),
    "superposition": ("sparsities in percent", (0, 50, 70, 85, 95, 99)),
}


def measure_over(
    claim: str, sizes: Sequence[int], output: Path | None, *, width: int, device: str, as_json: bool
) -> None:
    """Print what a claim measures, by size, and draw it."""
    if claim not in SIZES:
        raise UsageError(f"{claim!r} is not measured over sizes; {', '.join(SIZES)} are")
    chosen = list(sizes or SIZES[claim][1])
    match claim:
        case "three-ways":
            _sequences(output, chosen, width, as_json)
        case "windows":
            _images(output, chosen, device, as_json)
        case "superposition":
            _superposition(output, [size / 100 for size in chosen], as_json)
        case _:
            _measured(claim, chosen, output, as_json)


def _sequences(output: Path | None, lengths: list[int], width: int, as_json: bool) -> None:
    from regard.claims.measurements import three_ways

    ways = three_ways(lengths, width=width)
    columns = f"{'length':>7}{'ms':>10}{'MB kept':>10}{'steps':>8}{'layers to see all':>19}"
    lines = [f"{f'one layer, width {width}':28}{columns}"]
    for way in ways:
        cost = f"{1000 * way.seconds:10.2f}{way.megabytes:10.2f}"
        lines.append(f"{way.way:28}{way.length:7}{cost}{way.sequential_steps:8}{way.layers_to_connect:19}")
    print_table([asdict(way) for way in ways], lines, as_json)
    names = dict.fromkeys(way.way for way in ways)
    times = {name: [1000 * way.seconds for way in ways if way.way == name] for name in names}
    title = "Three ways of processing a sequence: one layer, forward and backward"
    draw_lines(output, lengths, times, title=title, x_label="length", y_label="milliseconds", logarithmic=True)


def _images(output: Path | None, sides: list[int], device: str, as_json: bool) -> None:
    from regard.claims.measurements import attention_growth
    from regard.device import find_device
    from regard.plan.plan import byte_size

    rows = attention_growth(sides, find_device(device))
    columns = f"{'side':>6}{'tokens':>8}{'planned':>12}{'peak':>12}{'ratio':>7}{'ms':>10}{'times':>7}"
    lines = [f"{'every place looks':28}{columns}"]
    for before, row in zip([None, *rows], rows, strict=False):
        line = f"{row.way:28}{row.side:6}{row.tokens:8,}{byte_size(row.planned):>12}"
        if row.peak is None or row.seconds is None:
            lines.append(f"{line}  more than there is")
            continue
        more = f"{row.seconds / before.seconds:7.1f}" if before and before.seconds and before.way == row.way else ""
        lines.append(f"{line}{byte_size(row.peak):>12}{row.peak / row.planned:7.2f}{1000 * row.seconds:10.1f}{more}")
    print_table([asdict(row) for row in rows], lines, as_json)
    ways = dict.fromkeys(row.way for row in rows)
    peaks = {way: [(row.peak or math.nan) / 2**20 for row in rows if row.way == way] for way in ways}
    title = "Two layers of attention between patches of 4 x 4 pixels, one head"
    draw_lines(output, sides, peaks, title=title, x_label="side of the image (pixels)",
          y_label="peak memory of a forward pass (MB)", logarithmic=True)  # fmt: skip


def _superposition(output: Path | None, sparsities: list[float], as_json: bool) -> None:
    from regard.claims.superposition import draw_superposition, superposition, superposition_rows

    if not all(0 <= sparsity < 1 for sparsity in sparsities):
        raise UsageError("a sparsity is from 0 to 99 percent")
    found = superposition(sparsities)
    _print_rows(superposition_rows(found), as_json)
    if output:
        draw_superposition(output, found)


def _measured(claim: str, sizes: list[int], output: Path | None, as_json: bool) -> None:
    from regard.claims import measurements

    function, chart = MEASURED[claim]
    rows = getattr(measurements, function)(sizes)
    _print_rows(rows, as_json)
    if output:
        measurements.CHARTS[chart].draw(output, rows)


def _print_rows(rows: Sequence[Mapping[str, object]], as_json: bool) -> None:
    lines = ["".join(f"{name:>26}" for name in rows[0])]
    for row in rows:
        cells = (f"{value:26.3g}" if isinstance(value, float) else f"{value!s:>26}" for value in row.values())
        lines.append("".join(cells))
    print_table(rows, lines, as_json)


def print_table(values: object, lines: Sequence[str], as_json: bool) -> None:
    """Print a table as lines or as JSON."""
    print(json.dumps(values) if as_json else "\n".join(lines))


def draw_lines(output: Path | None, places: Sequence[Any], lines: Mapping[str, list[float]], **options: Any) -> None:
    """Draw the lines of a table, if a file is named."""
    if output:
        from regard.look.figures import line_chart

        line_chart(output, places, lines, **options)
