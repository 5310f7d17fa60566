"""Labelled texts and text pairs in tab-separated tables, as in GLUE; quotes have no special meaning."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from regard.data.formats.lines import read_lines, refuse
from regard.errors import DataError

Place = str | int  # a column: its name in the header, or its index if there is no header


class Example(NamedTuple):
    """A text, the second text of a pair (else empty), and the index of its label or its numeric value."""

    text: str
    pair: str
    target: float


@dataclass(frozen=True)
class Table:
    """The columns of texts and labels in a table; without `labels` the label column has numbers."""

    text: Place
    pair: Place | None
    label: Place
    labels: Sequence[str]

    def read(self, path: str | Path) -> Iterator[Example]:
        """The rows of a file (also .gz)."""
        lines = enumerate(read_lines(path, refuse), 1)
        wanted = (self.text, self.label) if self.pair is None else (self.text, self.label, self.pair)
        header = next(lines, (0, ""))[1].split("\t") if any(isinstance(place, str) for place in wanted) else None
        columns = [_column(place, header, path) for place in wanted]
        for number, line in lines:
            cells = line.split("\t")
            if not line.strip():
                continue
            if len(cells) <= max(columns):
                raise DataError(
                    f"{path}, line {number}: {len(cells)} columns, but column {max(columns) + 1} is needed; "
                    "columns are separated by tabs"
                )
            text, label, *pair = (cells[column] for column in columns)
            yield Example(text, pair[0] if pair else "", self._target(label, f"{path}, line {number}"))

    def _target(self, label: str, where: str) -> float:
        label = label.strip()
        if self.labels:
            if label not in self.labels:
                raise DataError(f"{where}: the label {label!r} is not one of data.labels: {', '.join(self.labels)}")
            return float(self.labels.index(label))
        try:
            value = float(label)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise DataError(f"{where}: {label!r} is not a number; if it is a label, list the labels in data.labels")
        return value


def _column(place: Place, header: Sequence[str] | None, path: str | Path) -> int:
    if isinstance(place, int):
        return place
    if header is None or place not in header:
        raise DataError(f"{path}: there is no column {place!r}; the first line has {', '.join(header or ())}")
    return header.index(place)
