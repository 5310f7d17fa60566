"""regard navigate: the paths through a house that an instruction may mean."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.verbs.answering import given_texts
from regard.verbs.options import AllowPickle, AsJson, Device, Model, Without, finite, switch_off

if TYPE_CHECKING:
    from regard.families.navigation.pipeline import Navigation


def navigate(
    context: typer.Context,
    model: Model,
    scan: Annotated[
        str,
        typer.Option(help="The house: a connectivity file, ARCHIVE#SCAN, FOLDER#SCAN, or builtin:houses#NUMBER."),
    ],
    start: Annotated[str, typer.Option(help="The id of the viewpoint where the path starts.")],
    instruction: Annotated[list[str] | None, typer.Argument(help="Instructions; without any, lines of stdin.")] = None,
    heading: Annotated[
        float, typer.Option(callback=finite, help="Degrees at the start, clockwise from the y axis of the house.")
    ] = 0.0,
    top: Annotated[int, typer.Option(min=1, help="How many paths to print for each instruction.")] = 5,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Draw the house and its paths: FILE.png, .svg, .html or .json."),
    ] = None,
    without: Without = [],  # noqa: B006 - typer's way to say "none given"
    as_json: AsJson = False,
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Rank the paths from a start by an instruction. One line out for each: probability TAB metres TAB viewpoints.

    The model sees no images, only the geometry of the house.

    Example: regard navigate "Turn left and go up the stairs." --scan builtin:houses#0 --start house-1-000-000
    -m runs/houses-vlnbert -o house.png
    """
    from regard.checkpoints.hub import local_folder
    from regard.errors import UsageError
    from regard.families.navigation.pipeline import Navigator, find_house
    from regard.look.save import check_suffix

    texts = [text for text in given_texts(instruction) if text.strip()]
    if not texts:
        raise UsageError("there is no instruction; say where to go")
    if output is not None:
        check_suffix(output)
        if len(texts) > 1:
            raise UsageError(f"{output} is one file; give one instruction with it")
    navigator = Navigator.load(local_folder(model), device=device, allow_pickle=allow_pickle)
    switch_off(context, navigator, without)
    answers = navigator.navigate(texts, find_house(scan), start, heading=math.radians(heading))
    for answer in answers:
        _print(answer, top, as_json)
    if output is not None:
        from regard.families.navigation.view import navigation_report
        from regard.look.save import save

        save(navigation_report(navigator, answers[0]), output)
        print(f"house drawn to {output}", file=sys.stderr)


def _print(answer: Navigation, top: int, as_json: bool) -> None:
    paths: list[dict[str, Any]] = [
        {"probability": each.probability, "length": each.length, "viewpoints": list(each.viewpoints)}
        for each in answer.paths[:top]
    ]
    if as_json:
        print(json.dumps({"instruction": answer.instruction, "images": False, "paths": paths}, ensure_ascii=False))
        return
    for path in paths:
        print(f"{path['probability']:.4f}\t{path['length']:.1f}\t{' '.join(path['viewpoints'])}")
