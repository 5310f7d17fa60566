"""An inspection: one input of one model, with its axes and layers known at once and weights recorded when asked for.

Adapters write subclasses for their modality. `regard look` makes an `AttentionReport` of an inspection; the server
keeps inspections and sends their weights, scores and predictions in pieces.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from regard.errors import UsageError
from regard.families.catalog import PIPELINES
from regard.families.contract import TEXT
from regard.look.neurons import LayerNeurons
from regard.look.panels import Axis, Kind, Panel
from regard.look.predictions import TOP, TokenPrediction
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


WORDS = ("target_words", "source_words")  # the axes of a word alignment: queries, keys


class Layer(NamedTuple):
    """An attention layer; `queries` and `keys` are names of axes of its inspection."""

    name: str
    kind: Kind
    heads: int
    queries: str
    keys: str


@dataclass(frozen=True)
class Recorded:
    """What a pass recorded: the weights of every layer, and the word alignment if its layer is among them."""

    weights: Mapping[str, Float[np.ndarray, "H Tq Tk"]]
    alignment: Float[np.ndarray, "targets sources"] | None = None
    neurons: Mapping[str, LayerNeurons] = field(default_factory=dict)


@dataclass
class Inspection(ABC):
    """A model and one input. `said` is the model's answer as a text, `meta` short facts to show beside the title."""

    name: str
    title: str
    axes: Mapping[str, Axis]
    layers: Mapping[str, Layer]
    said: str = ""
    meta: dict[str, str] = field(default_factory=dict)
    alignment_layer: str = ""  # the layer whose attention aligns words; empty if none does

    @abstractmethod
    def record(self, layers: Sequence[str], *, scores: bool = False) -> Recorded:
        """Record these layers in one pass; with `scores`, the values before the softmax."""

    def record_with_neurons(self, layers: Sequence[str]) -> Recorded:
        """Record these layers, and what their scores are made of."""
        return self.record(layers)

    @property
    def prediction_axis(self) -> str:
        """The name of the axis at whose places the model predicts tokens; empty if it predicts none here."""
        return ""

    @property
    def places(self) -> int:
        """The number of places on that axis."""
        return len(self.axes[self.prediction_axis]) if self.prediction_axis else 0

    def predict(
        self, places: tuple[int, int] | None = None, *, top: int = TOP, **sampling: Any
    ) -> list[TokenPrediction]:
        """The predictions at all places or at a range of them; `sampling` is how tokens would be drawn."""
        return []

    def report(self, *, top: int = TOP) -> AttentionReport:
        """Every layer and head, the word alignment, and all predictions."""
        recorded = self.record_with_neurons(list(self.layers))
        panels = [
            Panel(name, kind, recorded.weights[name], self.axes[queries], self.axes[keys], recorded.neurons.get(name))
            for name, kind, _, queries, keys in self.layers.values()
        ]
        alignment = None
        if recorded.alignment is not None:
            targets, sources = (self.axes[name] for name in WORDS)
            alignment = Panel(self.alignment_layer, "cross", recorded.alignment[None], targets, sources)
        tokens = self.axes[self.prediction_axis].labels() if self.prediction_axis else []
        return AttentionReport(self.title, self.name, panels, alignment, dict(self.meta), tokens, self.predict(top=top))
