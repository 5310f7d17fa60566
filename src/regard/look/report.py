"""The attention report: everything recorded for one input of one model, and its JSON form."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Self

import numpy as np
from jaxtyping import Float
from PIL import Image

from regard.data.images.reading import Pixels, png
from regard.errors import UsageError
from regard.look.neurons import LayerNeurons, OwnNeurons
from regard.look.panels import Axis, Grid, Panel, Tokens, axis_from_json, axis_to_json
from regard.look.predictions import LogitLens, TokenPrediction, TokenProbability

VERSION = 2  # of the JSON form; files of version 1 have no "version"
EARLIER_PREDICTIONS = "foretold"  # the key of predictions in files of version 1 and early ones of version 2
DATA_URL = "data:image/png;base64,"


@dataclass(frozen=True, eq=False)
class AttentionReport:
    """The panels of a model on one input, and what else is known of that input.

    `meta` holds short facts to show beside the title, such as `{"score": "-0.31"}`. Texts may have an `alignment` (one
    head, target words as queries, source words as keys) and `predictions`: what the model predicted at places of the
    text `tokens`. For images, `image` holds the pixels that grids lie over, and `rollout` how much of each cell
    reaches the model's answer through all layers. `shown_as` names the view of a report whose axes have different
    views, and `details` are plain values for that view alone. `logit_lens` is what every layer would have said.
    """

    title: str
    model: str
    panels: Sequence[Panel] = ()
    alignment: Panel | None = None
    meta: dict[str, str] = field(default_factory=dict)
    tokens: Sequence[str] = ()
    predictions: Sequence[TokenPrediction] = ()
    image: Pixels | None = None
    rollout: Float[np.ndarray, "rows columns"] | None = None
    shown_as: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    logit_lens: LogitLens | None = None

    @property
    def all_panels(self) -> list[Panel]:
        """The word alignment, if there is one, and the panels of the layers."""
        return [*([self.alignment] if self.alignment else []), *self.panels]

    @property
    def source(self) -> list[str]:
        """The text that was read: the aligned words, or the keys of the first panel."""
        panel = self._main_panel()
        return panel.keys.labels() if panel and isinstance(panel.keys, Tokens) else []

    @property
    def target(self) -> list[str]:
        """The text that was generated from it; empty unless the model has cross-attention."""
        panel = self._main_panel()
        is_text = panel is not None and panel.kind == "cross" and isinstance(panel.queries, Tokens)
        return panel.queries.labels() if panel and is_text else []

    def _main_panel(self) -> Panel | None:
        crossing = (panel for panel in self.panels if panel.kind == "cross")
        return self.alignment or next(crossing, None) or next(iter(self.panels), None)

    @property
    def is_between_cells(self) -> bool:
        """Whether every panel is attention between the cells of an image."""
        axes = (axis for panel in self.panels for axis in (panel.queries, panel.keys))
        return self.image is not None and all(isinstance(axis, Grid) for axis in axes)

    @property
    def view(self) -> str:
        """The view that shows this report: the one it names, that of all its axes, or the labelled matrix of tokens."""
        if self.shown_as:
            return self.shown_as
        views = {axis.view for panel in self.all_panels for axis in (panel.queries, panel.keys)}
        return views.pop() if len(views) == 1 else Tokens.view

    def select(self, panels: str = "*", head: int | None = None) -> Self:
        """Only the panels whose name matches a pattern such as `decoder.*.cross`, and of them one head if given."""
        chosen = [panel for panel in self.panels if fnmatchcase(panel.name, panels)]
        if not chosen:
            known = ", ".join(panel.name for panel in self.panels) or "none were recorded"
            raise UsageError(f"no attention layer matches {panels!r}; the layers are: {known}")
        return replace(self, panels=chosen if head is None else [panel.head(head) for panel in chosen])


def summary(report: AttentionReport) -> str:
    """The short facts of a report as one text."""
    return ", ".join(f"{name} {value}" for name, value in report.meta.items())


def changed_facts(without: Sequence[str], original: str, changed: str) -> dict[str, str]:
    """The facts of a report that was made with heads switched off: which, and what the whole model says."""
    facts = {"without": ", ".join(without)}
    if original or changed:
        facts["original"] = "the same" if original == changed else original
    return facts


# The JSON form


def describe(report: AttentionReport) -> dict[str, Any]:
    """Everything but the weights, as plain values.

    ```
    {"version", "title", "model", "meta": {name: text},
     "axes": [{"kind": "tokens", "texts"}, {"kind": "grid", "rows", "columns", "extra", "windows"} or
              {"kind": "boxes", "boxes": [x1, y1, x2, y2 as fractions], "names"}],
     "panels": [{"name", "kind": "self" | "cross" | "causal", "heads", "axes": [of its queries, of its keys]}],
     "alignment": one such panel with one head (queries = target words, keys = source words), or null,
     "tokens": [words], "predictions": [{"place", "choices": [choice], "came": choice or null, "rank", "written"}],
     "picture": a data URL or null, "rollout": {"grid": [rows, columns], "weights"} or null}
    ```
    The axes of a panel are numbers of entries in the list of axes, since most panels share theirs. A choice is
    {"token", "probability", "drawn"}. A report of attention between the cells of an image also has "layers" (`_layer`).
    "shown_as" and "details" are there if the report has them, and so is "logit_lens": {"places": [labels],
    "layers": [{"name", "top": [[token, probability], ...] for each place}]}.
    """
    axes: list[dict[str, Any]] = []
    described = {
        "version": VERSION,
        "title": report.title,
        "model": report.model,
        "meta": dict(report.meta),
        "axes": axes,
        "panels": [_describe_panel(panel, axes) for panel in report.panels],
        "alignment": _describe_panel(report.alignment, axes) if report.alignment else None,
        "tokens": list(report.tokens),
        "predictions": [prediction_to_json(each) for each in report.predictions],
        "picture": None if report.image is None else DATA_URL + base64.b64encode(png(report.image)).decode(),
        "rollout": None,
    }
    if report.rollout is not None:
        weights = report.rollout.round(6).flatten().tolist()
        described["rollout"] = {"grid": list(report.rollout.shape), "weights": weights}
    if report.shown_as:
        described |= {"shown_as": report.shown_as, "details": dict(report.details)}
    if report.logit_lens is not None:
        described["logit_lens"] = report.logit_lens.to_json()
    if report.is_between_cells:
        described["layers"] = [_layer(panel) for panel in report.panels]
    return described


def to_json(report: AttentionReport) -> dict[str, Any]:
    """The whole report as plain values: `describe`, with weights[head][query][key] rounded to six decimals.

    Every panel of a text also has its "queries" and "keys" as words, and the report "source" and "target". The weights
    of attention between cells are in "layers", which repeats every panel in the form that version 1 wrote. "neurons" of
    a panel are its query and key vectors, or null: queries[window][head][query][dimension], the same of "keys",
    "scale", "bias", "additive", "cells" and "own" (see `LayerNeurons`).
    """
    described = describe(report)
    if report.is_between_cells:
        for layer, form, panel in zip(described["layers"], described["panels"], report.panels, strict=True):
            layer["weights"] = _rounded(panel.weights, 6)
            form["neurons"] = _neurons_to_json(panel.neurons)
    else:
        written = zip([described["alignment"], *described["panels"]], [report.alignment, *report.panels], strict=True)
        for form, each in written:
            if each is not None:
                form |= {"queries": each.queries.labels(), "keys": each.keys.labels()}
                form |= {"weights": _rounded(each.weights, 6), "neurons": _neurons_to_json(each.neurons)}
    return described | {"source": report.source, "target": report.target}


def from_json(data: dict[str, Any]) -> AttentionReport:
    """The report that `to_json` wrote, in this version or in version 1."""
    version = data.get("version", 1)
    if version > VERSION:
        raise UsageError(f"the report has version {version}; this version of Regard reads up to {VERSION}")
    axes = [axis_from_json(each) for each in data.get("axes", [])]
    alignment, picture, rollout = data.get("alignment"), data.get("picture"), data.get("rollout")
    predicted = data.get("predictions", data.get(EARLIER_PREDICTIONS, []))
    return AttentionReport(
        title=data["title"],
        model=data["model"],
        panels=_panels_from_json(data, axes),
        alignment=_panel_from_json(alignment, axes) if alignment else None,
        meta=data["meta"],
        tokens=data.get("tokens", []),
        predictions=[_prediction_from_json(each) for each in predicted],
        image=_pixels(picture) if picture else None,
        rollout=np.reshape(rollout["weights"], rollout["grid"]) if rollout else None,
        shown_as=data.get("shown_as", ""),
        details=data.get("details", {}),
        logit_lens=LogitLens.from_json(data["logit_lens"]) if "logit_lens" in data else None,
    )


def _describe_panel(panel: Panel, axes: list[dict[str, Any]]) -> dict[str, Any]:
    """A panel without its weights; axes that are not in the list yet are added to it."""

    def number(axis: Axis) -> int:
        form = axis_to_json(axis)
        if form not in axes:
            axes.append(form)
        return axes.index(form)

    numbers = [number(panel.queries), number(panel.keys)]
    return {"name": panel.name, "kind": panel.kind, "heads": panel.heads, "axes": numbers}


def _layer(panel: Panel) -> dict[str, Any]:
    """A panel between grids as version 1 wrote it, for readers of those files."""
    assert isinstance(panel.queries, Grid) and isinstance(panel.keys, Grid)
    return {
        "name": panel.name,
        "heads": panel.heads,
        "queries": [panel.queries.rows, panel.queries.columns],
        "keys": [panel.keys.rows, panel.keys.columns],
        "extra": panel.queries.extra,
        "windows": None if panel.queries.windows is None else panel.queries.windows.tolist(),
    }


def _rounded(values: np.ndarray, digits: int = 5) -> list[Any]:
    plain: list[Any] = values.astype(np.float64).round(digits).tolist()
    return plain


def prediction_to_json(prediction: TokenPrediction) -> dict[str, Any]:
    """The prediction at one place as plain values."""
    return {
        "place": prediction.place,
        "choices": [_choice_to_json(each) for each in prediction.choices],
        "came": None if prediction.actual is None else _choice_to_json(prediction.actual),
        "rank": prediction.rank,
        "written": prediction.generated,
    }


def _choice_to_json(choice: TokenProbability) -> dict[str, Any]:
    drawn = None if choice.drawn is None else round(choice.drawn, 6)
    return {"token": choice.token, "probability": round(choice.probability, 6), "drawn": drawn}


def _panels_from_json(data: dict[str, Any], axes: list[Axis]) -> list[Panel]:
    """Panels whose weights are their own, or those of the layer of the same number in a report of an image."""
    layers = data.get("layers")
    if layers is None:
        return [_panel_from_json(each, axes) for each in data["panels"]]
    panels = data.get("panels", [{}] * len(layers))
    return [_panel_from_json(layer | panel, axes) for layer, panel in zip(layers, panels, strict=True)]


def _panel_from_json(data: dict[str, Any], axes: list[Axis]) -> Panel:
    if "axes" in data:
        queries, keys = (axes[number] for number in data["axes"])
    elif "extra" in data:
        windows = None if data["windows"] is None else np.asarray(data["windows"], dtype=np.int64)
        queries, keys = (
            Grid(rows, columns, data["extra"], windows) for rows, columns in (data["queries"], data["keys"])
        )
    else:
        queries, keys = Tokens(data["queries"]), Tokens(data["keys"])
    weights = np.asarray(data["weights"], dtype=np.float64).reshape(data["heads"], len(queries), len(keys))
    neurons = _neurons_from_json(data.get("neurons"))
    return Panel(data["name"], data.get("kind", "self"), weights, queries, keys, neurons)


def _neurons_to_json(neurons: LayerNeurons | None) -> dict[str, Any] | None:
    if neurons is None:
        return None
    arrays = {"queries": neurons.queries, "keys": neurons.keys, "bias": neurons.bias, "additive": neurons.additive}
    cells = None if neurons.cells is None else [each.tolist() for each in neurons.cells]
    own = None
    if neurons.own is not None:
        own = {"queries": _rounded(neurons.own.queries), "keys": _rounded(neurons.own.keys)}
        own["groups"] = [each.tolist() for each in neurons.own.groups]
    rounded = {name: None if each is None else _rounded(each) for name, each in arrays.items()}
    return rounded | {"scale": neurons.scale, "cells": cells, "own": own}


def _neurons_from_json(data: dict[str, Any] | None) -> LayerNeurons | None:
    if data is None:
        return None
    queries, keys = (np.asarray(data[name], dtype=np.float32) for name in ("queries", "keys"))
    bias, additive = (
        None if data[name] is None else np.asarray(data[name], dtype=np.float32) for name in ("bias", "additive")
    )
    cells = None if data["cells"] is None else (np.asarray(data["cells"][0]), np.asarray(data["cells"][1]))
    own = None
    if data.get("own") is not None:
        asking, asked = (np.asarray(data["own"][name], dtype=np.float32) for name in ("queries", "keys"))
        of_queries, of_keys = map(np.asarray, data["own"]["groups"])
        own = OwnNeurons(asking, asked, (of_queries, of_keys))
    return LayerNeurons(queries, keys, data["scale"], bias, additive, cells, own)


def _prediction_from_json(data: dict[str, Any]) -> TokenPrediction:
    came = None if data["came"] is None else TokenProbability(**data["came"])
    return TokenPrediction(
        data["place"], [TokenProbability(**each) for each in data["choices"]], came, data["rank"], data["written"]
    )


def _pixels(url: str) -> Pixels:
    with Image.open(io.BytesIO(base64.b64decode(url.removeprefix(DATA_URL)))) as image:
        pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
