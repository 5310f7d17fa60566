"""What was seen: recorded attention as plain data, and its JSON form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, Self

import numpy as np

from regard.errors import UsageError
from regard.inference.insight.predictions import Choice, Foretold

Kind = Literal["self", "cross", "causal"]


@dataclass(frozen=True, eq=False)
class Panel:
    """One attention layer on one input: `weights[head, query, key]`, with the text of every query and key."""

    name: str
    kind: Kind
    weights: np.ndarray
    queries: Sequence[str]
    keys: Sequence[str]

    def __post_init__(self) -> None:
        expected = (len(self.queries), len(self.keys))
        if self.weights.ndim != 3 or self.weights.shape[1:] != expected or not self.weights.shape[0]:
            raise UsageError(
                f"panel {self.name!r} has weights of shape {self.weights.shape}; "
                f"its {expected[0]} queries and {expected[1]} keys need (heads, {expected[0]}, {expected[1]})"
            )
        if not np.isfinite(self.weights).all():
            raise UsageError(f"panel {self.name!r} has weights that are not finite; attention weights lie in 0..1")

    @property
    def heads(self) -> int:
        return self.weights.shape[0]

    def head(self, index: int) -> Self:
        """The panel of one head alone, counted from 0."""
        if not 0 <= index < self.heads:
            raise UsageError(f"{self.name!r} has heads 0 to {self.heads - 1}; head {index} was asked for")
        name = f"{self.name} head {index}" if self.heads > 1 else self.name
        return replace(self, name=name, weights=self.weights[index : index + 1])


@dataclass(frozen=True, eq=False)
class Sight:
    """Everything a model looked at on one input: a panel per layer, and for translation the alignment of its words.

    `alignment` has one head, target words as queries and source words as keys. `meta` holds short facts to show beside
    the title, such as `{"score": "-0.31"}`. `foretold` is what the model expected at places of the text `tokens`.
    """

    title: str
    model: str
    panels: Sequence[Panel] = ()
    alignment: Panel | None = None
    meta: dict[str, str] = field(default_factory=dict)
    tokens: Sequence[str] = ()
    foretold: Sequence[Foretold] = ()

    @property
    def source(self) -> list[str]:
        """What was read: the words aligned, or else the keys of the first panel."""
        panel = self._main_panel()
        return list(panel.keys) if panel else []

    @property
    def target(self) -> list[str]:
        """What was written from it: empty unless the model has cross-attention."""
        panel = self._main_panel()
        return list(panel.queries) if panel and panel.kind == "cross" else []

    def _main_panel(self) -> Panel | None:
        crossing = (panel for panel in self.panels if panel.kind == "cross")
        return self.alignment or next(crossing, None) or next(iter(self.panels), None)

    def select(self, panels: str = "*", head: int | None = None) -> Self:
        """Only the panels whose name matches a pattern such as `decoder.*.cross`, and of them one head if given."""
        chosen = [panel for panel in self.panels if fnmatchcase(panel.name, panels)]
        if not chosen:
            known = ", ".join(panel.name for panel in self.panels) or "none were recorded"
            raise UsageError(f"no attention layer matches {panels!r}; the layers are: {known}")
        return replace(self, panels=chosen if head is None else [panel.head(head) for panel in chosen])


def to_json(sight: Sight) -> dict[str, Any]:
    """The sight as plain lists and strings.

    ```
    {"title", "model", "meta": {name: text}, "source": [words], "target": [words],
     "panels": [{"name", "kind": "self" | "cross" | "causal", "heads", "queries": [words], "keys": [words],
                 "weights": [head][query][key]}],
     "alignment": one such panel with one head (queries = target words, keys = source words), or null,
     "tokens": [words], "foretold": [{"place", "choices": [choice], "came": choice or null, "rank", "written"}]}
    ```
    A choice is {"token", "probability", "drawn"}; see `Foretold`. Weights and shares are rounded to six decimals.
    """
    return {
        "title": sight.title,
        "model": sight.model,
        "meta": dict(sight.meta),
        "source": sight.source,
        "target": sight.target,
        "panels": [_panel_to_json(panel) for panel in sight.panels],
        "alignment": _panel_to_json(sight.alignment) if sight.alignment else None,
        "tokens": list(sight.tokens),
        "foretold": [foretold_to_json(each) for each in sight.foretold],
    }


def _panel_to_json(panel: Panel) -> dict[str, Any]:
    return {
        "name": panel.name,
        "kind": panel.kind,
        "heads": panel.heads,
        "queries": list(panel.queries),
        "keys": list(panel.keys),
        "weights": panel.weights.astype(np.float64).round(6).tolist(),
    }


def foretold_to_json(foretold: Foretold) -> dict[str, Any]:
    """What was foretold at one place, as plain values."""
    return {
        "place": foretold.place,
        "choices": [_choice_to_json(each) for each in foretold.choices],
        "came": None if foretold.came is None else _choice_to_json(foretold.came),
        "rank": foretold.rank,
        "written": foretold.written,
    }


def _choice_to_json(choice: Choice) -> dict[str, Any]:
    drawn = None if choice.drawn is None else round(choice.drawn, 6)
    return {"token": choice.token, "probability": round(choice.probability, 6), "drawn": drawn}


def from_json(data: dict[str, Any]) -> Sight:
    """The sight that `to_json` wrote."""
    alignment = data["alignment"]
    return Sight(
        title=data["title"],
        model=data["model"],
        panels=[_panel_from_json(panel) for panel in data["panels"]],
        alignment=_panel_from_json(alignment) if alignment else None,
        meta=data["meta"],
        tokens=data["tokens"],
        foretold=[_foretold_from_json(each) for each in data["foretold"]],
    )


def _foretold_from_json(data: dict[str, Any]) -> Foretold:
    came = None if data["came"] is None else Choice(**data["came"])
    return Foretold(data["place"], [Choice(**each) for each in data["choices"]], came, data["rank"], data["written"])


def _panel_from_json(data: dict[str, Any]) -> Panel:
    shape = (data["heads"], len(data["queries"]), len(data["keys"]))
    weights = np.asarray(data["weights"], dtype=np.float64).reshape(shape)
    return Panel(data["name"], data["kind"], weights, data["queries"], data["keys"])
