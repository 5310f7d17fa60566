"""A scene from above as PNG and SVG: pasts, samples of the future, the truth, and who looks at whom."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from regard.attention.record import attention_names
from regard.errors import UsageError
from regard.families.trajectories.pipeline import LIKELIEST, Forecast, Forecaster, find_scene
from regard.families.trajectories.tracks import frame_text
from regard.look.figures import INK, MUTED, RAMP
from regard.look.image_figures import facts
from regard.look.inspection import GivenInput, Inspected
from regard.look.panels import Agents, Kind, Panel, Point
from regard.look.report import AttentionReport

SAMPLES, MOST_SAMPLES = 20, 200
MOST_WEIGHTS = 48 * 2**20  # of one report


def inspect_forecaster(forecaster: Forecaster, given: GivenInput) -> Inspected:
    """Every layer and head while a model decodes a future, and the samples.

    The file is a scene, as FILE@FRAME where it is not given as bytes. Options: `at` (a frame), `samples`, `sample` (the
    number of the one that is looked at; the likeliest future by default), `seed`.
    """
    file = given.file
    if not isinstance(file, bytes) and not Path(file).is_file():
        name, mark, frame = str(file).rpartition("@")
        if mark:
            file, given = name, given._replace(options={**given.options, "at": frame})
    scene = find_scene(file, forecaster.settings.every, given.title)
    at = given.number("at") if given.options.get("at") else None
    samples = min(int(given.number("samples", SAMPLES)), MOST_SAMPLES)
    (answer,) = forecaster.forecast(scene, at=at, samples=samples, seed=int(given.number("seed")))
    report = forecast_report(forecaster, answer, int(given.number("sample", LIKELIEST)), given.title)
    return Inspected(report, {"agents": len(answer.agents), "frame": answer.frame, "first": scene.first,
                              "last": scene.frame(scene.last), "step": scene.step})  # fmt: skip


def forecast_report(
    forecaster: Forecaster, answer: Forecast, sample: int = LIKELIEST, title: str = ""
) -> AttentionReport:
    """The report of a forecast: the scene from above, and the attention while one of its futures is decoded."""
    config, shown = forecaster.config, "likeliest" if sample == LIKELIEST else str(sample)
    panels: list[Panel] = []
    if attention_names(forecaster.model):
        axes = {
            "past": Agents(answer.agents, range(1 - config.past, 1)),
            "future": Agents(answer.agents, range(1, config.future + 1)),
        }
        seen = forecaster.attention(answer, sample)
        for name, weights in seen.weights.items():
            queries, keys = seen.sides[name]
            kind: Kind = "cross" if queries != keys else "self"
            panels.append(Panel(name, kind, weights, axes[queries], axes[keys], seen.neurons[name]))
        size = sum(panel.weights.size for panel in panels)
        if size > MOST_WEIGHTS:
            raise UsageError(
                f"the attention of {len(answer.agents)} agents has {size:,} weights; a report holds at most "
                f"{MOST_WEIGHTS:,}: cut the scene, or write a .csv"
            )
    meta = {"agents": str(len(answer.agents)), "samples": str(len(answer.samples)), "frame": frame_text(answer.frame)}
    details = {**answer.to_json(), "sample": sample}
    title = title or f"{Path(answer.name).stem} from frame {frame_text(answer.frame)}"
    return AttentionReport(
        title, forecaster.name, panels, meta=meta | {"looked at": shown}, shown_as=Agents.view, details=details
    )


COLOURS = ("#2a5cbe", "#c2570c", "#19a05f", "#8b4ac2", "#b3273f", "#0d8a9c", "#8a6d1d", "#5a6472")  # of agents in turn
NAMED = 30  # agents that are named


def draw_scene(report: AttentionReport, points: Sequence[Point] = ()) -> Figure:
    """The scene with all samples, beside how much every agent looks at every other."""
    details, panel = report.details, last_panel(report)
    figure = Figure(figsize=(13 if panel else 8, 6.4))
    if panel is None:
        above = figure.subplots()
    else:
        above, matrix = figure.subplots(1, 2, width_ratios=(8, 5))
        _draw_matrix(matrix, panel)
    _draw_above(above, details)
    figure.suptitle(f"{report.title[:110]}\n{facts(report)}", fontsize=9, color=INK, parse_math=False)
    figure.tight_layout(pad=0.6, rect=(0, 0, 1, 0.96))
    return figure


def last_panel(report: AttentionReport) -> Panel | None:
    """The last layer in which the future looks at the past, or the last of all."""
    found = [panel for panel in report.panels if panel.kind == "cross"] or list(report.panels)
    return found[-1] if found else None


def between_agents(panel: Panel) -> Float[np.ndarray, "N N"]:
    """How much each agent looks at each other: the mean over heads and steps, summed over the steps looked at."""
    assert isinstance(panel.queries, Agents) and isinstance(panel.keys, Agents)
    count = len(panel.queries.names)
    weights = panel.weights.mean(axis=0).reshape(count, len(panel.queries.steps), count, len(panel.keys.steps))
    return weights.mean(axis=1).sum(axis=2)


def _draw_above(axes: Axes, details: Any) -> None:
    for number, agent in enumerate(details["agents"]):
        colour = COLOURS[number % len(COLOURS)]
        past = _line(details["past"][number])
        now = past[-1:]
        for sample in details["samples"]:
            axes.plot(*np.concatenate([now, _line(sample[number])]).T, color=colour, lw=0.7, alpha=0.3, zorder=2)
        axes.plot(*np.concatenate([now, _line(details["likeliest"][number])]).T, color=colour, lw=1.8, zorder=4)
        axes.plot(*past.T, color=colour, lw=2.2, marker="o", ms=3, zorder=3)
        truth = _line(details["truth"][number])
        if len(truth):
            axes.plot(*np.concatenate([now, truth]).T, color=INK, lw=1.2, ls=(0, (3, 2)), zorder=5)
        if number < NAMED:
            axes.annotate(agent, now[0], xytext=(4, 4), textcoords="offset points", fontsize=8, color=INK)
    axes.set_aspect("equal")
    axes.tick_params(labelsize=7, colors=MUTED)
    axes.spines[:].set_visible(False)
    axes.set_title(
        "metres; dots: past; thick: likeliest future; thin: samples; dashed: what happened", fontsize=8, color=MUTED,
        loc="left",
    )  # fmt: skip


def _line(places: Any) -> Float[np.ndarray, "T 2"]:
    """The places of a track that are known."""
    return np.array([place for place in places if place is not None], dtype=float).reshape(-1, 2)


def _draw_matrix(axes: Axes, panel: Panel) -> None:
    assert isinstance(panel.queries, Agents)
    weights, names = between_agents(panel), list(panel.queries.names)
    axes.imshow(weights, cmap=RAMP, norm=Normalize(0, float(weights.max())), aspect="equal", interpolation="nearest")
    if len(names) <= NAMED:
        axes.set_xticks(range(len(names)), names, fontsize=7, color=INK, parse_math=False)
        axes.set_yticks(range(len(names)), names, fontsize=7, color=INK, parse_math=False)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(
        f"whom each agent looks at: {panel.name}, mean of heads and steps", fontsize=8, color=MUTED, loc="left"
    )
