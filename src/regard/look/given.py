"""What adapters of files take and give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import UsageError
from regard.families.catalog import PIPELINES
from regard.families.contract import TEXT
from regard.look.report import AttentionReport


class GivenInput(NamedTuple):
    """The input of a model that reads a file: a path or the bytes of a file, and for some models a text beside it."""

    file: str | Path | bytes
    title: str = ""
    text: str = ""
    options: Mapping[str, str] = {}  # further values of a modality, such as the start of a path

    def number(self, name: str, usual: float = 0) -> float:
        """An option that is a number."""
        text = self.options.get(name, str(usual))
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise UsageError(f"{name} is {text!r:.40}; expected a number")
        return value


class Inspected(NamedTuple):
    """A report, and the answer of the model as plain values for the page."""

    report: AttentionReport
    answer: dict[str, Any]


def inspect_input(pipeline: Any, given: GivenInput) -> Inspected | None:
    """The report of a model that reads files, and its answer; None if its family has no view of files."""
    entry = PIPELINES.get(pipeline.pipeline)
    if entry is None or entry.input == TEXT or not entry.view:
        return None
    inspected: Inspected = entry.load(entry.view)(pipeline, given)
    return inspected
