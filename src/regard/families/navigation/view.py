"""A house from above as PNG and SVG: ranked paths, and which steps the words of an instruction look at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, to_rgba
from matplotlib.figure import Figure

from regard.attention.record import attention_names
from regard.errors import UsageError
from regard.families.navigation.houses import House
from regard.families.navigation.pipeline import Navigation, Navigator, PathAttention, find_house
from regard.look.figures import INK, MUTED, RAMP, RULE
from regard.look.inspection import GivenInput, Inspected
from regard.look.panels import Kind, Panel, Point, Steps, Tokens
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


START, END, LIT = "#19a05f", "#c2570c", "#ff9a3c"
DRAWN = 8  # paths beside the chosen one


def draw_house(report: AttentionReport, points: Sequence[Point] = ()) -> Figure:
    """The house with its best paths, darker where they are more probable, beside what each word looks at."""
    details, panel = report.details, word_panel(report)
    words = len(panel.queries) if panel else 0
    figure = Figure(figsize=(13 if panel else 7.5, float(np.clip(0.19 * words + 1.6, 6.0, 16.0))))
    if panel is None:
        house_axes = figure.subplots()
        lit = None
    else:
        house_axes, matrix = figure.subplots(1, 2, width_ratios=(7, 5))
        weights = panel.weights.mean(axis=0)
        _draw_matrix(matrix, panel, weights)
        lit = weights.mean(axis=0)[1:]
    _draw_plan(house_axes, details, lit)
    shown = "  ".join([report.model, *(f"{name} {value}" for name, value in report.meta.items())])
    figure.suptitle(f"{report.title[:110]}\n{shown}", fontsize=9, color=INK, parse_math=False)
    figure.tight_layout(pad=0.6, rect=(0, 0, 1, 0.97))
    return figure


def word_panel(report: AttentionReport) -> Panel | None:
    """The last layer in which words look at steps."""
    found = [panel for panel in report.panels if isinstance(panel.queries, Tokens) and isinstance(panel.keys, Steps)]
    return found[-1] if found else None


def _draw_plan(axes: Axes, details: Any, lit: np.ndarray | None) -> None:
    """Viewpoints and edges in grey, lower floors lighter; the chosen path on top, its viewpoints lit by the words."""
    positions = np.array(details["house"]["positions"])
    x, y, z = positions.T
    height = (z - z.min()) / max(float(np.ptp(z)), 1e-6)
    for a, b in details["house"]["edges"]:
        axes.plot(x[[a, b]], y[[a, b]], color=RULE, lw=0.8, zorder=1)
    axes.scatter(x, y, s=14, c=[(0.82 - 0.3 * each,) * 3 for each in height], zorder=2)
    paths, rank = details["paths"], details["rank"]
    most = max(path["probability"] for path in paths)
    for path in reversed(paths[:DRAWN]):
        share = path["probability"] / max(most, 1e-9)
        axes.plot(
            x[path["viewpoints"]], y[path["viewpoints"]], color=RAMP(0.25 + 0.75 * share), lw=2, alpha=0.7, zorder=3
        )
    chosen = paths[rank]["viewpoints"]
    axes.plot(x[chosen], y[chosen], color=RAMP(1.0), lw=3.5, zorder=4)
    light = np.zeros(len(chosen)) if lit is None else lit / max(float(lit.max()), 1e-9)
    colours = [to_rgba(LIT, 0.35 + 0.6 * float(each)) for each in light]
    axes.scatter(x[chosen], y[chosen], s=60 + 240 * light, c=colours, edgecolors="white", zorder=5)
    for number, place in enumerate(chosen):
        axes.annotate(str(number), (x[place], y[place]), fontsize=7, ha="center", va="center", color=INK, zorder=6)
    for place, colour, name in ((chosen[0], START, "start"), (chosen[-1], END, "end")):
        axes.annotate(name, (x[place], y[place]), xytext=(6, 8), textcoords="offset points", color=colour, fontsize=9)
    turned = details["heading"]
    axes.annotate(
        "", xy=(x[chosen[0]] + 1.2 * np.sin(turned), y[chosen[0]] + 1.2 * np.cos(turned)),
        xytext=(x[chosen[0]], y[chosen[0]]), arrowprops={"arrowstyle": "->", "color": START}, zorder=7,
    )  # fmt: skip
    axes.set_aspect("equal")
    axes.set_title(
        f"{len(paths)} paths, the most probable {most:.1%}; darker: more probable; larger: looked at more",
        fontsize=8, color=MUTED, loc="left",
    )  # fmt: skip
    axes.set_axis_off()


def _draw_matrix(axes: Axes, panel: Panel, weights: np.ndarray) -> None:
    axes.imshow(weights, cmap=RAMP, norm=Normalize(0, float(weights.max())), aspect="auto", interpolation="nearest")
    axes.set_yticks(range(len(weights)), panel.queries.labels(), fontsize=7, color=INK, parse_math=False)
    names = ["path", *(str(number) for number in range(weights.shape[1] - 1))]
    axes.set_xticks(range(weights.shape[1]), names, fontsize=8, color=INK)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(f"what words look at: {panel.name}, mean of its heads", fontsize=8, color=MUTED, loc="left")
