"""What `regard plan` shows: plans, predictions and measurements as tables of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from regard.plan.cluster import ClusterPlan
from regard.plan.machine import warning
from regard.plan.measure import Matrix
from regard.plan.measured_step import MeasuredStep, PredictedStep
from regard.plan.plan import LECTURES, Plan, byte_size, scaled

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


def compared(step: MeasuredStep) -> Section:
    """A step as planned and as measured."""
    plan, predicted, disturbed = step.plan, step.predicted, warning(step.others)
    peak = sum(plan.memory.values())
    rows = [
        ["peak memory of tensors", byte_size(peak), byte_size(step.peak), f"{step.memory_ratio:.2f}"],
        ["time of a step", _duration(predicted.total), _duration(step.seconds), f"{step.ratio:.2f}"],
        ["resident memory of the process", "", byte_size(step.resident), ""],
    ]
    title = f"{plan.name}: {plan.parameters:,} parameters; a batch of {plan.reads}"
    return Section(title + (f"  ({disturbed})" if disturbed else ""), ["", "planned", "measured", "ratio"], rows)


def times(plan: Plan, predicted: PredictedStep) -> Section:
    """The predicted time of a step, by kind of work."""
    kinds = sorted(predicted.seconds.items(), key=lambda item: -item[1])
    rows = [[KINDS[kind], _duration(seconds), f"{seconds / predicted.total:.0%}"] for kind, seconds in kinds]
    whole = plan.training.steps * predicted.total
    unit = f"{plan.config.examples.one}s" if plan.config.examples else "tokens"  # what a step learns from
    title = (
        f"a training step: {_duration(predicted.total)}, {plan.tokens / predicted.total:,.0f} {unit} a second; "
        f"{plan.training.steps:,} steps: {_duration(whole)}"
    )
    written = [["a token written alone, at least", _duration(predicted.token), ""]] if predicted.token else []
    return Section(title, ["work", "time", "share"], [*rows, ["all", _duration(predicted.total), ""], *written])


def on_cluster(whole: ClusterPlan) -> list[Section]:
    """A training on many GPUs, and what failures cost."""
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


def parts(plan: Plan) -> Section:
    """What each part of a model costs."""
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


def costs(plan: Plan) -> list[Section]:
    """Everything that a plan knows without time."""
    memory, matrices = plan.memory, plan.measured.matrices
    one = plan.config.examples.one if plan.config.examples else "sentence"
    sections = [
        parts(plan),
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


def lectures() -> Section:
    """The worked examples of the lectures."""
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
