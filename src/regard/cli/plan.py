"""regard plan: the parameters, FLOPs, memory and time of a model, before anything is allocated."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from regard.verbs.options import AsJson, Sets, finite

if TYPE_CHECKING:
    from regard.plan.cluster import ClusterPlan
    from regard.plan.measure import Matrix
    from regard.plan.measured_step import MeasuredStep, PredictedStep
    from regard.plan.plan import Plan

KINDS = {
    "product": "matrix products", "convolution": "convolutions", "norm": "norms", "attention": "fused attention",
    "recurrent": "recurrent kernels", "draw": "random numbers of dropout",
    "elementwise": "element-wise operations and copies", "update": "clipping and AdamW",
    "launch": "operator launch overhead",
}  # fmt: skip


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
    from regard.plan.lectures import LECTURES
    from regard.plan.plan import make_plan

    if what == "lectures":
        _print([figure.to_json() for figure in LECTURES], [_lectures()], as_json)
        return
    planned = make_plan(what, sets=sets, batch=batch, source_length=source_length, target_length=target_length)
    if gpus or cluster:
        whole = _whole(planned, gpus, tokens, cluster)
        _print([whole.to_json()], [_parts(planned), *_on_cluster(whole)], as_json)
    elif measured:
        step = _measured_step(what, planned, sets, device, threads, rounds)
        _print([step.to_json()], [_compared(step), _time(step.plan, step.predicted)], as_json)
    elif timed:
        from regard.plan.measured_step import predict_step

        predicted = predict_step(planned, device=device, threads=threads, rounds=rounds)
        shown = {"step": {"predicted": predicted.total}, "kinds": predicted.seconds, "token": predicted.token}
        values = {**planned.to_json(), **shown}
        _print([values], [*_sections(planned), _time(planned, predicted)], as_json)
    else:
        _print([planned.to_json()], _sections(planned), as_json)


def _whole(plan: Plan, gpus: int, tokens: float, assumptions: Sequence[str]) -> ClusterPlan:
    from regard.errors import UsageError
    from regard.plan.cluster import Cluster, on_cluster
    from regard.training.recipe.files import changed

    if not gpus:
        raise UsageError("--cluster describes GPUs; say how many there are with --gpus")
    return on_cluster(plan, Cluster.parse(changed({"gpus": gpus}, assumptions), where="--cluster"), tokens)


def _measured_step(what: str, plan: Plan, sets: Sequence[str], device: str, threads: int, rounds: int) -> MeasuredStep:
    """Measure a step of the recipe itself, or of a preset on synthetic data."""
    import tempfile
    from pathlib import Path

    from regard.errors import UsageError
    from regard.families.catalog import MODELS
    from regard.plan.measured_step import measure_step
    from regard.plan.synthetic import synthetic_recipe
    from regard.training.recipe.load import load_recipe

    if Path(what).is_dir():
        raise UsageError(f"{what} is a trained model; --measure trains a recipe or a preset, so name what it came from")
    with tempfile.TemporaryDirectory() as folder:
        if what.partition(":")[0] in MODELS:
            recipe = synthetic_recipe(
                what, plan.config, sets, Path(folder),
                batch=plan.batch, source=plan.source_length, target=plan.target_length,
            )  # fmt: skip
        else:
            recipe = load_recipe(what, sets)
        return measure_step(recipe, device=device, threads=threads, rounds=rounds)


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


def _compared(step: MeasuredStep) -> Section:
    from regard.plan.machine import warning
    from regard.plan.units import byte_size

    plan, predicted, disturbed = step.plan, step.predicted, warning(step.others)
    peak = sum(plan.memory.values())
    rows = [
        ["peak memory of tensors", byte_size(peak), byte_size(step.peak), f"{step.memory_ratio:.2f}"],
        ["time of a step", _duration(predicted.total), _duration(step.seconds), f"{step.ratio:.2f}"],
        ["resident memory of the process", "", byte_size(step.resident), ""],
    ]
    title = f"{plan.name}: {plan.parameters:,} parameters; a batch of {plan.reads}"
    return Section(title + (f"  ({disturbed})" if disturbed else ""), ["", "planned", "measured", "ratio"], rows)


def _time(plan: Plan, predicted: PredictedStep) -> Section:
    kinds = sorted(predicted.seconds.items(), key=lambda item: -item[1])
    rows = [[KINDS[kind], _duration(seconds), f"{seconds / predicted.total:.0%}"] for kind, seconds in kinds]
    whole, unit = plan.training.steps * predicted.total, _unit(plan)
    title = (
        f"a training step: {_duration(predicted.total)}, {plan.tokens / predicted.total:,.0f} {unit} a second; "
        f"{plan.training.steps:,} steps: {_duration(whole)}"
    )
    written = [["a token written alone, at least", _duration(predicted.token), ""]] if predicted.token else []
    return Section(title, ["work", "time", "share"], [*rows, ["all", _duration(predicted.total), ""], *written])


def _on_cluster(whole: ClusterPlan) -> list[Section]:
    from regard.plan.units import byte_size, scaled

    ways, cluster = whole.ways, whole.cluster
    fits = [byte_size(round(way.total)) + ("" if whole.fits(way) else ", too much") for way in ways]
    rows = [
        *([f"memory: {part}", *(byte_size(round(way.memory[part])) for way in ways)] for part in ways[0].memory),
        ["memory of a GPU", *fits],
        ["sent by a GPU, a step", *(byte_size(round(way.sent)) for way in ways)],
        ["sending", *(_duration(way.talking) for way in ways)],
        ["computing", *(_duration(whole.computing) for _ in ways)],
        ["a step", *(_duration(way.step) for way in ways)],
        ["utilisation, losses included", *(f"{whole.utilisation(way):.1%}" for way in ways)],
        ["the whole training", *(_duration(86400 * whole.days(way)) for way in ways)],
    ]
    lasting = [
        ["a failure every", _duration(whole.failure_seconds)],
        ["a checkpoint", byte_size(round(whole.checkpoint_bytes))],
        ["stops training for", _duration(whole.checkpoint_seconds)],
        ["and is written every", _duration(whole.interval)],
        ["lost to both, and to restarts", f"{whole.lost:.2%} of all time"],
    ]
    title = (
        f"{scaled(round(whole.tokens))}tokens on {cluster.gpus:,} GPUs: {whole.steps:,} steps of "
        f"{whole.tokens_per_step:,} tokens, {scaled(round(whole.flops_per_step))}FLOPs on each GPU"
    )
    return [Section(title, ["", *(way.name for way in ways)], rows), Section("failures", ["", ""], lasting)]


def _duration(seconds: float) -> str:
    for size, unit in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{1e6 * seconds:.3g} µs"


def _unit(plan: Plan) -> str:
    """What a step learns from, as a plural."""
    return f"{plan.config.examples.one}s" if plan.config.examples else "tokens"


def _parts(plan: Plan) -> Section:
    from regard.plan.units import byte_size, scaled

    total = {"parameters": plan.parameters, "flops": plan.forward_flops, "activations": plan.measured.activations}
    parts = {name: vars(part) for name, part in plan.measured.parts.items()} | {"all": total}
    return Section(
        f"{plan.name}: {plan.parameters:,} parameters; a batch of {plan.reads}",
        ["part", "parameters", "forward FLOPs", "activations"],
        [
            [name, f"{part['parameters']:,}", scaled(part["flops"]), byte_size(part["activations"])]
            for name, part in parts.items()
        ],
    )


def _sections(plan: Plan) -> list[Section]:
    from regard.plan.units import byte_size, scaled

    memory, matrices = plan.memory, plan.measured.matrices
    one = plan.config.examples.one if plan.config.examples else "sentence"
    sections = [
        _parts(plan),
        Section(
            f"a training step: {scaled(plan.training_flops)}FLOPs forward and backward, in float32",
            ["memory at its fullest", "size"],
            [[name, byte_size(value)] for name, value in {**memory, "all": sum(memory.values())}.items()],
        ),
        Section(
            f"attention of one {one}, if it were materialised in float32 (fused kernels never do)",
            ["matrix", "heads x queries x keys", "entries", "size"],
            [[m.name, _shape(m), f"{m.entries:,}", byte_size(m.nbytes)] for m in matrices]
            + [["all", "", f"{sum(m.entries for m in matrices):,}", byte_size(sum(m.nbytes for m in matrices))]],
        ),
    ]
    if not plan.config.examples and any(plan.cache.values()):
        cached = [
            ["of its source", byte_size(plan.cache["sentence"])],
            ["of each hypothesis", byte_size(plan.cache["hypothesis"])],
        ]
        sections.append(Section("what decoding one sentence remembers", ["cache", "size"], cached))
    return sections


def _shape(matrix: Matrix) -> str:
    shape = f"{matrix.heads} x {matrix.queries} x {matrix.keys}"
    return shape if matrix.windows == 1 else f"{matrix.windows} windows, {shape}"


def _lectures() -> Section:
    from regard.plan.lectures import LECTURES
    from regard.plan.units import byte_size

    rows = [
        [
            f.what,
            f"{f.formula} = {f.entries:,}",
            byte_size(f.nbytes),
            f"x {f.layers} layers x {f.heads} heads = {byte_size(f.total_bytes)}" if f.layers > 1 else "",
        ]
        for f in LECTURES
    ]
    return Section("attention in images", ["what", "entries of one matrix", "in float32", "altogether"], rows)
