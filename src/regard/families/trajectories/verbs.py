"""regard forecast: where the agents of a scene will be."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.data.files import write_whole
from regard.verbs.inputs import GivenFiles
from regard.verbs.options import finite
from regard.verbs.verb import AttentionVerb

if TYPE_CHECKING:
    from regard.families.trajectories.pipeline import Forecast

HEADER = "frame,agent,sample,x,y"


@dataclass(kw_only=True)
class ForecastVerb(AttentionVerb):
    """Forecast the agents that are present in a frame: rows of frame, agent, sample, x, y in metres.

    Sample `likeliest` is the future at the mean of the prior. Rows go to stdout, or to -o FILE.csv.

    Example: regard forecast crowds_zara01.txt -m runs/eth-ucy-agentformer --at 5000 --samples 20 -o zara.html
    """

    abilities, method, does = ("forecast",), "forecast", "forecast agents"

    scene: Annotated[
        str,
        typer.Argument(help="A file of rows frame, agent, x, y (text or CSV), builtin:walkers#NUMBER, or - for stdin."),
    ]
    samples: Annotated[int, typer.Option(min=1, max=1000, help="How many futures of all agents.")] = 20
    at: Annotated[
        float | None, typer.Option(callback=finite, help="The frame to forecast from. Default: the last one.")
    ] = None
    every: Annotated[
        int | None, typer.Option(min=1, help="Read every so many frames, the last one included. Default: as trained.")
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same samples.")] = 0
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="FILE.csv, or a view from above: FILE.png, .svg, .html or .json."),
    ] = None

    def check(self) -> None:
        from regard.look.save import check_suffix

        if self.output is not None and self.output.suffix.lower() != ".csv":
            check_suffix(self.output)

    def run(self) -> None:
        source = GivenFiles([self.scene], ()).source(self.scene)
        (answer,) = self.pipeline.forecast(source, at=self.at, samples=self.samples, seed=self.seed, every=self.every)
        if self.as_json or self.output is None:
            self.say("\n".join(_rows(answer)), answer.to_json())
        if self.output is None:
            return
        if self.output.suffix.lower() == ".csv":
            write_whole(self.output, "".join(f"{row}\n" for row in _rows(answer)))
        else:
            from regard.families.trajectories.view import forecast_report
            from regard.look.save import save

            save(forecast_report(self.pipeline, answer), self.output)
        count = len(answer.agents)
        print(f"{count} {'agent' if count == 1 else 'agents'} forecast to {self.output}", file=sys.stderr)


def _rows(answer: Forecast) -> Iterator[str]:
    """The rows of a CSV file."""
    from regard.families.trajectories.tracks import frame_text

    yield HEADER
    futures = [*((str(number), each) for number, each in enumerate(answer.samples)), ("likeliest", answer.likeliest)]
    for name, future in futures:
        for agent, track in zip(answer.agents, future, strict=True):
            quoted = f'"{agent}"' if "," in agent else agent
            for step, (x, y) in enumerate(track, 1):
                yield f"{frame_text(answer.frame + step * answer.step)},{quoted},{name},{x:.3f},{y:.3f}"
