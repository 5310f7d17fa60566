"""regard navigate: the paths through a house that an instruction may mean."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.errors import UsageError
from regard.verbs.inputs import given_texts
from regard.verbs.options import finite, refuse_several
from regard.verbs.verb import AttentionVerb

if TYPE_CHECKING:
    from regard.families.navigation.pipeline import Navigation


@dataclass(kw_only=True)
class Navigate(AttentionVerb):
    """Rank the paths from a start by an instruction. One line out for each: probability TAB metres TAB viewpoints.

    The model sees no images, only the geometry of the house.

    Example: regard navigate "Turn left and go up the stairs." --scan builtin:houses#0 --start house-1-000-000
    -m runs/houses-vlnbert -o house.png
    """

    abilities, method, does = ("navigate",), "navigate", "follow instructions through houses"

    instruction: Annotated[list[str] | None, typer.Argument(help="Instructions; without any, lines of stdin.")] = None
    scan: Annotated[
        str, typer.Option(help="The house: a connectivity file, ARCHIVE#SCAN, FOLDER#SCAN, or builtin:houses#NUMBER.")
    ]
    start: Annotated[str, typer.Option(help="The id of the viewpoint where the path starts.")]
    heading: Annotated[
        float, typer.Option(callback=finite, help="Degrees at the start, clockwise from the y axis of the house.")
    ] = 0.0
    top: Annotated[int, typer.Option(min=1, help="How many paths to print for each instruction.")] = 5
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Draw the house and its paths: FILE.png, .svg, .html or .json."),
    ] = None

    def check(self) -> None:
        from regard.look.save import check_suffix

        self.texts = [text for text in given_texts(self.instruction) if text.strip()]
        if not self.texts:
            raise UsageError("there is no instruction; say where to go")
        if self.output is not None:
            check_suffix(self.output)
            refuse_several(self.output, len(self.texts), "instruction")

    def run(self) -> None:
        from regard.families.navigation.pipeline import find_house

        heading = math.radians(self.heading)
        answers = self.pipeline.navigate(self.texts, find_house(self.scan), self.start, heading=heading)
        for answer in answers:
            self._print(answer)
        if self.output is not None:
            from regard.families.navigation.view import navigation_report
            from regard.look.save import save

            save(navigation_report(self.pipeline, answers[0]), self.output)
            print(f"house drawn to {self.output}", file=sys.stderr)

    def _print(self, answer: Navigation) -> None:
        best = answer.paths[: self.top]
        paths: list[dict[str, Any]] = [
            {"probability": each.probability, "length": each.length, "viewpoints": list(each.viewpoints)}
            for each in best
        ]
        lines = (f"{each.probability:.4f}\t{each.length:.1f}\t{' '.join(each.viewpoints)}" for each in best)
        self.say("\n".join(lines), {"instruction": answer.instruction, "images": False, "paths": paths})
