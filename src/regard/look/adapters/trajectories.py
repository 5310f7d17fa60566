"""Reports of models that forecast tracks: whom and when an agent at a step looks at."""

from __future__ import annotations

from pathlib import Path

from regard.attention.record import attention_names
from regard.data.trajectories.tracks import frame_text
from regard.errors import UsageError
from regard.inference.pipelines.forecaster import LIKELIEST, Forecast, Forecaster, find_scene
from regard.look.adapters.given import GivenInput, Inspected
from regard.look.panels import Agents, Kind, Panel
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
