"""An inspection: one input of one model, with its axes and layers known at once and weights recorded when asked for.

Adapters write subclasses for their modality; that of texts is here. `regard look` makes an `AttentionReport` of an
inspection; the server keeps inspections and sends their weights, scores and predictions in pieces.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import nn

from regard.attention.record import attention_names
from regard.errors import UsageError, with_article
from regard.families.catalog import PIPELINES
from regard.families.contract import TEXT
from regard.look.forced_pass import SIDES, kind_of, require_attention
from regard.look.neurons import LayerNeurons, record_neurons
from regard.look.panels import Axis, Kind, Panel, Tokens
from regard.look.predictions import TOP, LogitLens, TokenPrediction, lens_of
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


LENS_TOP = 5  # tokens of every layer and place


class TextInspection(Inspection):
    """An inspection whose axes are the tokens of texts."""

    def __init__(self, name: str, model: nn.Module, title: str, texts: dict[str, list[str]], said: str = ""):
        require_attention(model, name)
        axes = {side: Tokens(tokens) for side, tokens in texts.items()}
        super().__init__(name, title, axes, {each: _layer(model, each) for each in attention_names(model)}, said)
        self.model = model

    @abstractmethod
    def run(self) -> object:
        """One whole pass of the model over the input, to its logits."""

    @abstractmethod
    def names(self, ids: Sequence[int]) -> list[str]:
        """Tokens that the model predicts, as they are shown."""

    @property
    def lens_axis(self) -> str:
        """The name of the axis at whose places every layer predicts."""
        return self.prediction_axis or ("target" if "target" in self.axes else "source")

    def logit_lens(self, top: int = LENS_TOP) -> LogitLens:
        """What every layer would have said, at every place."""
        return lens_of(self.model, self.run, self.axes[self.lens_axis].labels(), self.names, top)

    def says(self) -> str:
        """The answer in a few words: the text that was written, or what is predicted for hidden or last tokens."""
        if self.said or not self.prediction_axis:
            return self.said
        found = [each for each in self.predict(top=1) if each.choices]
        best = [each.choices[0] for each in (found if self.prediction_axis == "source" else found[-1:])]
        return ", ".join(f"{each.token.strip() or each.token!r} {each.probability:.1%}" for each in best)

    def record_with_neurons(self, layers: Sequence[str]) -> Recorded:
        with record_neurons(self.model, layers) as neurons:
            recorded = self.record(layers)
        return replace(recorded, neurons=neurons)


def inspect_text(pipeline: Any, text: str, **given: Any) -> TextInspection:
    """The inspection of a model with a text, by the view of its family.

    `to` and `target` are for translators, `pair` for encoders, options of `TextGenerator.generate` for models that
    generate text. Without `max_tokens` a language model only reads its text; a T5 answers it unless `target` gives
    the answer.
    """
    entry = PIPELINES.get(getattr(pipeline, "pipeline", ""))
    if entry is None or entry.input != TEXT or not entry.view:
        raise UsageError(f"{getattr(pipeline, 'name', '') or 'this model'} has no attention to look at with a text")
    inspection: TextInspection = entry.load(entry.view)(pipeline, text, **given)
    return inspection


def refuse_options(pipeline: Any, given: Mapping[str, object]) -> None:
    """Refuse options, by what they are called, that this kind of model does not take."""
    for name, value in given.items():
        if value not in ("", None):
            who = f"{pipeline.name or 'this model'} is {with_article(type(pipeline).__name__)}"
            raise UsageError(f"{who} and takes no {name.removeprefix('a ')}")


def _layer(model: nn.Module, name: str) -> Layer:
    kind = kind_of(name)
    return Layer(name, kind, getattr(model.get_submodule(name), "heads", 1), *SIDES[kind])
