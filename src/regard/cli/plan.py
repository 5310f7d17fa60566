"""regard plan: what a model will take, before anything is allocated."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from regard.cli.options import AsJson, Sets

if TYPE_CHECKING:
    from regard.studies.cost_parts import Matrix
    from regard.studies.plan import Plan


class Section(NamedTuple):
    """A titled table of text; the first column names the row."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def plan(
    what: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_RECIPE",
            help="Recipe name, TOML file, model folder, MODEL:PRESET such as bert:base, or lectures.",
        ),
    ],
    sets: Sets = [],  # noqa: B006 - typer's way to say "none given"
    batch: Annotated[
        int | None, typer.Option(help="Sentences in a batch. Default: as many as batch_tokens hold.")
    ] = None,
    source_length: Annotated[int | None, typer.Option(help="Tokens of a source sentence. Default: 32.")] = None,
    target_length: Annotated[
        int | None, typer.Option(help="Tokens of a target sentence. Default: 32, of a picture its pixels.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Parameters, FLOPs, memory, and every attention matrix, before anything is allocated.

    Example: regard plan transformer:base --set tokenizer.size=37000 --batch 64
    """
    from regard.studies.plan import LECTURES, make_plan

    if what == "lectures":
        _print([figure.to_json() for figure in LECTURES], [_lectures()], as_json)
        return
    planned = make_plan(what, sets=sets, batch=batch, source_length=source_length, target_length=target_length)
    _print([planned.to_json()], _sections(planned), as_json)


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


def _sections(plan: Plan) -> list[Section]:
    from regard.studies.units import byte_size, scaled

    memory, cache, matrices = plan.memory, plan.cache, plan.costs.matrices
    total = {"parameters": plan.parameters, "flops": plan.forward_flops, "activations": memory["activations"]}
    parts = {**plan.to_json()["parts"], "all": total}
    side = getattr(plan.config, "image_size", None)
    one = "sentence" if side is None else "picture"
    size = f"{plan.batch} sentences of {plan.source_length} source and {plan.target_length} target tokens"
    if side is not None:
        size = f"{plan.batch} pictures of {side} x {side} pixels"
    sections = [
        Section(
            f"{plan.name}: {plan.parameters:,} parameters; a batch of {size}",
            ["part", "parameters", "forward FLOPs", "activations"],
            [
                [name, f"{part['parameters']:,}", scaled(part["flops"]), byte_size(part["activations"])]
                for name, part in parts.items()
            ],
        ),
        Section(
            f"a training step: {scaled(plan.training_flops)}FLOPs (backward is two forwards), in float32",
            ["memory", "size"],
            [[name, byte_size(value)] for name, value in {**memory, "all": sum(memory.values())}.items()],
        ),
        Section(
            f"attention of one {one}, if it were written out in float32 (fused kernels never do)",
            ["matrix", "heads x queries x keys", "entries", "size"],
            [[m.name, _shape(m), f"{m.entries:,}", byte_size(m.nbytes)] for m in matrices]
            + [["all", "", f"{sum(m.entries for m in matrices):,}", byte_size(sum(m.nbytes for m in matrices))]],
        ),
    ]
    if side is None:
        cached = [
            ["of its source", byte_size(cache["sentence"])],
            ["of each hypothesis", byte_size(cache["hypothesis"])],
        ]
        sections.append(Section("what decoding one sentence remembers", ["cache", "size"], cached))
    return sections


def _shape(matrix: Matrix) -> str:
    shape = f"{matrix.heads} x {matrix.queries} x {matrix.keys}"
    return shape if matrix.windows == 1 else f"{matrix.windows} windows, {shape}"


def _lectures() -> Section:
    from regard.studies.plan import LECTURES
    from regard.studies.units import byte_size

    rows = [
        [
            f.what,
            f"{f.formula} = {f.entries:,}",
            byte_size(f.nbytes),
            f"x {f.layers} layers x {f.matrix.heads} heads = {byte_size(f.total_bytes)}" if f.layers > 1 else "",
        ]
        for f in LECTURES
    ]
    return Section("attention in images", ["what", "entries of one matrix", "in float32", "altogether"], rows)
