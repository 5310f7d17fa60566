"""Reports of models that rank paths: attention between the words of an instruction and the steps of a path."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from regard.attention.record import attention_names
from regard.data.paths.houses import House
from regard.errors import UsageError
from regard.inference.pipelines.navigator import Navigation, Navigator, PathAttention, find_house
from regard.look.adapters.given import GivenInput, Inspected
from regard.look.panels import Kind, Panel, Steps, Tokens
from regard.look.report import AttentionReport

SHOWN = 30  # candidate paths in a report


def inspect_navigator(navigator: Navigator, given: GivenInput) -> Inspected:
    """Every layer and head while a model reads an instruction with its best path, or with that of another rank.

    The file is a house, as GRAPH@START where it is not given as bytes. Options: `start`, `rank`, and `heading` in
    degrees, clockwise from the y axis.
    """
    house, start = _place(given)
    heading = math.radians(given.number("heading"))
    (answer,) = navigator.navigate(given.text, house, start, heading=heading)
    rank = int(given.number("rank"))
    if not 0 <= rank < len(answer.paths):
        raise UsageError(f"rank is {rank}; there are paths 0 to {len(answer.paths) - 1}")
    return Inspected(navigation_report(navigator, answer, rank), _as_json(answer))


def navigation_report(navigator: Navigator, answer: Navigation, rank: int = 0) -> AttentionReport:
    """The report of an answer: the house, its ranked paths, and the attention to one of them."""
    chosen, house = answer.paths[rank], answer.house
    panels: list[Panel] = []
    if attention_names(navigator.model):
        seen = navigator.attention(answer.instruction, house, chosen.numbers, answer.heading)
        panels = _panels(seen, Steps(chosen.numbers))
    meta = {"probability": f"{chosen.probability:.1%}", "length": f"{chosen.length:.1f} m", "images": "none"}
    details = {"house": _drawn(house), "heading": answer.heading, "rank": rank, **_as_json(answer)}
    return AttentionReport(answer.instruction, navigator.name, panels, meta=meta, shown_as=Steps.view, details=details)


def _panels(seen: PathAttention, steps: Steps) -> list[Panel]:
    axes = {"words": Tokens(seen.pieces), "steps": steps}
    panels = []
    for name, weights in seen.weights.items():
        queries, keys = seen.sides[name]
        kind: Kind = "self" if queries == keys else "cross"
        panels.append(Panel(name, kind, weights, axes[queries], axes[keys], seen.neurons.get(name)))
    return panels


def _drawn(house: House) -> dict[str, Any]:
    """A house as it is drawn from above."""
    edges = np.argwhere(np.triu(house.edges)).tolist()
    return {"viewpoints": list(house.viewpoints), "positions": house.positions.round(3).tolist(), "edges": edges}


def _as_json(answer: Navigation) -> dict[str, Any]:
    paths = [
        {"viewpoints": list(each.numbers), "probability": round(each.probability, 6), "length": round(each.length, 3)}
        for each in answer.paths[:SHOWN]
    ]
    return {"paths": paths}


def _place(given: GivenInput) -> tuple[House, str]:
    """The house of an input, and the viewpoint to start from."""
    if isinstance(given.file, bytes):
        reference, start = given.file, given.options.get("start", "")
        house = find_house(reference)
    else:
        graph, mark, named = str(given.file).rpartition("@")
        house, start = find_house(graph if mark else named), given.options.get("start", named if mark else "")
    if not start:
        raise UsageError(f"say where the path starts, as GRAPH@VIEWPOINT; a viewpoint of it is {house.viewpoints[0]}")
    return house, start
