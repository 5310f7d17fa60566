"""Figures of claims as charts."""

from collections.abc import Sequence
from pathlib import Path

from regard.claims.claim import Chart, Row
from regard.look.charts import line_chart


def draw_rows(path: Path, chart: Chart, rows: Sequence[Row]) -> None:
    """Draw rows of figures, with their spread where they have one."""
    line_chart(
        path,
        chart.axis(rows),
        chart.lines(rows),
        title=chart.title,
        x_label=chart.x_label,
        y_label=chart.y_label,
        logarithmic=chart.logarithmic,
        log_x=chart.log_x,
        spreads=chart.spreads(rows),
    )
