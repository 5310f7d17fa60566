"""Figures of claims as charts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from regard.look.figures import line_chart

Outcome = Literal["holds", "does not hold", "depends"]
Row = dict[str, object]


@dataclass(frozen=True)
class ClaimOptions:
    """How claims that train are tested: with how many seeds, for how many steps (None: as each says), and where."""

    seeds: int = 3
    steps: int | None = None
    runs: Path = Path("runs/claims")


@dataclass(frozen=True)
class Chart:
    """How rows of figures are drawn: the column of the x-axis, the columns of the lines, and the labels."""

    title: str
    x: str
    y: tuple[str, ...]
    x_label: str
    y_label: str
    by: str = ""  # a column whose values each get their own line
    spread: str = ""  # a column with the spread of the first y
    logarithmic: bool = False
    log_x: bool = True
    only: tuple[str, ...] = ()  # the values of x that are drawn; empty: all

    def axis(self, rows: Sequence[Row]) -> list[float] | list[str]:
        """The values of x, in order."""
        values = [value for value in dict.fromkeys(row[self.x] for row in rows) if not self.only or value in self.only]
        if any(isinstance(value, str) for value in values):
            return [str(value) for value in values]
        return [float(str(value)) for value in values]

    def lines(self, rows: Sequence[Row]) -> dict[str, list[float]]:
        """The y values of each line."""
        if not self.by:
            return {name: [float(str(row[name])) for row in rows] for name in self.y}
        return self._by(rows, self.y[0])

    def spreads(self, rows: Sequence[Row]) -> dict[str, list[float]]:
        """The spread of each value; empty where nothing varies."""
        return self._by(rows, self.spread) if self.spread else {}

    def _by(self, rows: Sequence[Row], column: str) -> dict[str, list[float]]:
        lines: dict[str, list[float]] = {}
        for row in rows:
            if not self.only or row[self.x] in self.only:
                lines.setdefault(str(row[self.by]), []).append(float(str(row[column])))
        return lines


@dataclass(frozen=True)
class Verdict:
    """What a test found: the outcome, one sentence of why, the figures it rests on, and how to draw them."""

    outcome: Outcome
    words: str
    rows: list[Row] = field(default_factory=list)
    chart: Chart | None = None


@dataclass(frozen=True)
class Claim:
    """A claim of a lecture, and the test of it. `regard claims NAME` runs the test."""

    name: str
    lecture: str  # the part of the lectures that makes it
    statement: str
    test: Callable[[ClaimOptions], Verdict]
    trains: bool = False  # takes minutes, not seconds


def judge(holds: bool, words: str, rows: list[Row] | None = None, chart: Chart | None = None) -> Verdict:
    """The verdict on a claim that holds or does not."""
    return Verdict("holds" if holds else "does not hold", words, rows or [], chart)


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
