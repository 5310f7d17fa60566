"""regard plan: the parameters, FLOPs, memory and time of a model, before anything is allocated."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from regard.verbs.options import AsJson, Sets, finite

if TYPE_CHECKING:
    from regard.plan.report import Section


def plan(
    what: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_RECIPE",
            help="Recipe name, TOML file, model folder, MODEL:PRESET as `regard models` lists them, or lectures.",
        ),
    ],
    sets: Sets = [],  # noqa: B006 - typer's way to say "none given"
    batch: Annotated[
        int | None, typer.Option(min=1, help="Sentences in a batch. Default: as many as batch_tokens hold.")
    ] = None,
    source_length: Annotated[int | None, typer.Option(min=1, help="Tokens of a source sentence. Default: 32.")] = None,
    target_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a target sentence. Default: 32, of an image its pixels.")
    ] = None,
    timed: Annotated[
        bool, typer.Option("--time", help="Measure this machine at the model's sizes, and predict the time of a step.")
    ] = False,
    measured: Annotated[
        bool, typer.Option("--measure", help="Also train a few real steps, and compare memory and time with the plan.")
    ] = False,
    device: Annotated[str, typer.Option(help="Of --time and --measure: cpu, cuda or auto.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="Of --time and --measure.")] = 1,
    rounds: Annotated[int, typer.Option(min=1, help="Of --time and --measure: more are more exact.")] = 5,
    gpus: Annotated[int, typer.Option(min=0, help="Plan a training on so many GPUs, with --batch on each.")] = 0,
    tokens: Annotated[float, typer.Option(min=1, callback=finite, help="Of that training.")] = 1e12,
    cluster: Annotated[
        list[str],
        typer.Option(
            help="What --gpus assumes of each GPU: flops, utilisation, memory, wire, storage, failure_days or "
            "restart=VALUE. Repeatable."
        ),
    ] = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Parameters, FLOPs, peak memory, and every attention matrix, before anything is allocated; and time, when asked.

    Example: regard plan transformer:base --set tokenizer.size=37000 --batch 64

    Example: regard plan transformer:small --batch 64 --measure

    Example: regard plan gpt:llama-7b --batch 2 --target-length 4096 --gpus 1024 --tokens 1e12
    """
    from regard.errors import UsageError
    from regard.plan import report
    from regard.plan.plan import LECTURES, make_plan

    if what == "lectures":
        _print([figure.to_json() for figure in LECTURES], [report.lectures()], as_json)
        return
    planned = make_plan(what, sets=sets, batch=batch, source_length=source_length, target_length=target_length)
    if gpus or cluster:
        from regard.plan.cluster import Cluster, on_cluster
        from regard.training.recipe.files import changed

        if not gpus:
            raise UsageError("--cluster describes GPUs; say how many there are with --gpus")
        whole = on_cluster(planned, Cluster.parse(changed({"gpus": gpus}, cluster), where="--cluster"), tokens)
        _print([whole.to_json()], [report.parts(planned), *report.on_cluster(whole)], as_json)
    elif measured:
        from regard.plan.measured_step import measure_planned

        step = measure_planned(what, planned, sets, device=device, threads=threads, rounds=rounds)
        _print([step.to_json()], [report.compared(step), report.times(step.plan, step.predicted)], as_json)
    elif timed:
        from regard.plan.measured_step import predict_step

        predicted = predict_step(planned, device=device, threads=threads, rounds=rounds)
        shown = {"step": {"predicted": predicted.total}, "kinds": predicted.seconds, "token": predicted.token}
        _print([{**planned.to_json(), **shown}], [*report.costs(planned), report.times(planned, predicted)], as_json)
    else:
        _print([planned.to_json()], report.costs(planned), as_json)


def _print(values: Sequence[dict[str, object]], sections: Sequence[Section], as_json: bool) -> None:
    if as_json:
        for value in values:
            print(json.dumps(value))
    elif sys.stdout.isatty():
        _print_tables(sections)
    else:
        for section in sections:
            print(section.title)
            for row in (section.columns, *section.rows):
                print("", *row, sep="\t")


def _print_tables(sections: Sequence[Section]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for section in sections:
        table = Table(box=SIMPLE_HEAD)
        for number, column in enumerate(section.columns):
            table.add_column(column, justify="right" if number else "left")
        for row in section.rows:
            table.add_row(*row)
        console.print(section.title, style="bold", highlight=False)
        console.print(table)
