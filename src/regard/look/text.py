"""Inspections of models that read texts. What is particular to a kind of model is in its family's view."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from regard.attention.record import attention_names
from regard.errors import UsageError, with_article
from regard.families.catalog import PIPELINES
from regard.families.contract import TEXT
from regard.look.forced_pass import SIDES, kind_of, require_attention
from regard.look.inspection import Inspection, Layer, Recorded
from regard.look.logit_lens import LogitLens, lens_of
from regard.look.neurons import record_neurons
from regard.look.panels import Tokens

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
