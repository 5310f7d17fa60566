"""regard claims: the claims of the lectures, put to the test."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.tables import DEFAULT_WIDTH, measure_over
from regard.verbs.options import AsJson, Device, numbers, refuse_given


def claims(
    names: Annotated[list[str] | None, typer.Argument(help="The claims to test; none: list them.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Test all of them.")] = False,
    quick: Annotated[bool, typer.Option(help="With --all: leave out those that train.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Claims that train: the number of seeds.")] = 3,
    steps: Annotated[int | None, typer.Option(min=1, help="Claims that train: steps of each run.")] = None,
    runs: Annotated[Path, typer.Option(help="Claims that train: where; complete runs are used again.")] = Path(
        "runs/claims"
    ),
    figures: Annotated[bool, typer.Option(help="Print the figures below each verdict.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="One claim: where to draw its figures, FILE.svg or .png.")
    ] = None,
    sizes: Annotated[
        str, typer.Option(help="One claim that is measured: print what it measures at these sizes, such as 32,64,128.")
    ] = "",
    width: Annotated[int, typer.Option(min=1, help="three-ways with --sizes: of every layer.")] = DEFAULT_WIDTH,
    as_json: AsJson = False,
    device: Device = "cpu",
) -> None:
    """Test what the lectures claim, on built-in data: holds, does not hold, or depends, with the figures.

    With --sizes, the figures alone: three-ways by length, windows by the side of images, gradient-flow by steps back,
    heads-cost by the number of heads, scaling by width, superposition by sparsity in percent.

    Example: regard claims scaling permutation --figures
    Example: regard claims three-ways --sizes 32,128,512 -o ways.svg
    Example: regard claims --all
    """
    from regard.claims.claims import CLAIMS, ClaimOptions, find_claim
    from regard.errors import UsageError

    if names and every:
        raise UsageError("name claims or give --all, not both")
    if quick and not every:
        raise UsageError("--quick goes with --all")
    chosen = [find_claim(name) for name in names or []]
    if every:
        chosen = [claim for claim in CLAIMS if not (quick and claim.trains)]
    if not chosen:
        listed = [{"name": c.name, "lecture": c.lecture, "claim": c.statement, "trains": c.trains} for c in CLAIMS]
        print(json.dumps(listed) if as_json else "\n".join(f"{c['name']:28}{c['claim']}" for c in listed))
        return
    if output:
        from regard.look.figures import check_name

        if len(chosen) > 1:
            raise UsageError("an image shows the figures of one claim; name one")
        check_name(output)  # fail before the work, not after it
    if sizes:
        if len(chosen) > 1:
            raise UsageError("--sizes is for one claim; name one")
        measure_over(chosen[0].name, numbers(sizes, ","), output, width=width, device=device, as_json=as_json)
        return
    refuse_given({"--width": width != DEFAULT_WIDTH, "--device": device != "cpu"}, "is for --sizes")
    options, results, begin = ClaimOptions(seeds, steps, runs), [], time.monotonic()
    for claim in chosen:
        start = time.monotonic()
        verdict = claim.test(options)
        seconds = round(time.monotonic() - start, 1)
        results.append({
            "name": claim.name, "lecture": claim.lecture, "claim": claim.statement, "seconds": seconds,
            "outcome": verdict.outcome, "words": verdict.words, "rows": verdict.rows,
        })  # fmt: skip
        if not as_json:
            print(f"{claim.name:28}{verdict.outcome:15}{seconds:8.1f} s  {verdict.words}", flush=True)
            for row in verdict.rows if figures else ():
                cells = (
                    f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                    for name, value in row.items()
                )
                print("    " + ", ".join(cells))
        if output:
            if verdict.chart is None:
                raise UsageError(f"the figures of {claim.name!r} are a table, not an image; print them with --figures")
            verdict.chart.draw(output, verdict.rows)
    if as_json:
        print(json.dumps(results))
    print(f"{len(chosen)} claims in {time.monotonic() - begin:.0f} s", file=sys.stderr)
