"""regard compare: architectures side by side on the same data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.errors import UsageError
from regard.verbs.options import AsJson, Device, Sets, listed, numbers

BINS = "1-10,11-20,21-30,31-40,41-50,51-60"
LENGTHS = "32,64,128,256,512,1024"
COUNTS, SIDES, RUNS = "500,1000,2000,5000,10000", "32,64,128,256", Path("runs/compare")
MEASURED = {  # functions of claims/measurements.py, and the sizes that they are called with
    "gradients": ("gradients_through_time", [1, 5, 10, 20, 50]),
    "heads": ("cost_of_heads", [1, 2, 4, 8, 16]),
    "scaling": ("saturation", [4, 16, 64, 256, 1024]),
}
TRANSLATES = ("translate",), "translate", "translate"  # what a model that is compared must be able to do
SPARSITIES = [0.0, 0.5, 0.7, 0.85, 0.95, 0.99]


def compare(
    what: Annotated[
        str,
        typer.Argument(help="models, length, sequences, data, images, gradients, heads, scaling or superposition."),
    ],
    pairs: Annotated[str, typer.Argument(help="models: the held-out pairs, a path or `phrasebook`.")] = "",
    model: Annotated[
        list[str], typer.Option("-m", "--model", help="models, length: NAME=FOLDER, data: NAME=RECIPE; repeatable.")
    ] = [],  # noqa: B006
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to draw: FILE.svg or .png.")] = None,
    to: Annotated[str, typer.Option("--to", help="Target language.")] = "",
    count: Annotated[
        int, typer.Option(min=1, help="length: sentences per bin; models: how many of the phrasebook.")
    ] = 100,
    show: Annotated[int, typer.Option(min=0, help="models: how many of the sentences that differ most.")] = 10,
    bins: Annotated[str, typer.Option(help="length: bins of source words.")] = BINS,
    lengths: Annotated[str, typer.Option(help="sequences: the lengths to measure.")] = LENGTHS,
    counts: Annotated[str, typer.Option(help="data: the numbers of images to learn from.")] = COUNTS,
    sets: Sets = [],  # noqa: B006
    runs: Annotated[
        Path, typer.Option(help="data: where to train; what is complete there is not trained again.")
    ] = RUNS,
    sides: Annotated[str, typer.Option(help="images: the sides to measure.")] = SIDES,
    width: Annotated[int, typer.Option(min=1, help="sequences: the width of every layer.")] = 128,
    as_json: AsJson = False,
    device: Device = "cpu",
) -> None:
    """Compare models, and put the lectures' claims to the test.

    models: an old and a new translator on the same pairs, named with -m in this order: BLEU and chrF of both, and the
    sentences that differ most. length: BLEU against sentence length, for models named with -m. sequences: recurrence,
    convolution and attention on the same sequence. data: accuracy against the number of training images, for recipes
    named with -m. images: memory and time of attention between all patches, written out or fused, and within windows,
    planned and measured. gradients: how far they reach back in an RNN and an LSTM. heads: what more heads cost.
    scaling: what happens to the softmax without the division by √width. superposition: how features share neurons as
    they get sparse.

    Example: regard compare models test.tsv -m old=runs/en-es -m new=runs/en-es-adapted
    Example: regard compare length -m fixed=runs/phrasebook-rnn-fixed -m attention=runs/phrasebook-rnn -o length.svg
    """
    from regard.look.figures import check_name

    if output:
        check_name(output)  # fail before the work, not after it
    if pairs and what != "models":
        raise UsageError(f"{what} takes no pairs; leave out {pairs!r}")
    match what:
        case "models":
            _models(model, pairs, to, count, show, as_json, device)
        case "length":
            _length(model, output, to, count, bins, as_json, device)
        case "sequences":
            _sequences(output, numbers(lengths, ","), width, as_json)
        case "data":
            _data(model, output, numbers(counts, ","), sets, runs, as_json)
        case "images" | "pictures":
            _pictures(output, numbers(sides, ","), device, as_json)
        case "superposition" | "gradients" | "heads" | "scaling":
            _measured(what, output, as_json)
        case _:
            choices = ("models", "length", "sequences", "data", "images", *MEASURED, "superposition")
            raise UsageError(f"cannot compare {what!r}; choose {listed(choices)}")


def _models(names: list[str], data: str, to: str, count: int, show: int, as_json: bool, device: str) -> None:
    from regard.families.translation.evaluate import SHUFFLES, compare_versions, held_out_pairs, verdict
    from regard.verbs.verb import load_able

    if len(names) != 2 or not data:
        raise UsageError("give the pairs, and the old and the new model: regard compare models PAIRS -m OLD -m NEW")
    labels = [name.rpartition("=")[0] or label for name, label in zip(names, ("old", "new"), strict=True)]
    if labels[0] == labels[1]:
        raise UsageError(f"both models are named {labels[0]!r}; give them different names")
    old, new = (load_able(*TRANSLATES, name.rpartition("=")[2], device=device) for name in names)
    found = compare_versions(old, new, held_out_pairs(old, data, to, count=count), show)
    if as_json:
        print(json.dumps({"models": labels, **asdict(found)}, ensure_ascii=False))
        return
    print(f"{f'{found.sentences:,} sentences':20}{'BLEU':>9}{'chrF':>9}{'exact':>9}")
    for label, scores in zip(labels, (found.old, found.new), strict=True):
        print(f"{label:20}{scores['bleu']:9.2f}{scores['chrf']:9.2f}{scores['exact']:9.4f}")
    tested = ", ".join(f"{name} {verdict(found.p_values[name.lower()])}" for name in ("BLEU", "chrF"))
    print(f"the difference: {tested}; paired approximate randomisation, {SHUFFLES:,} times")
    print(f"{labels[1]} is better in {found.better} sentences, worse in {found.worse}, by chrF")
    for each in found.differences:
        texts = {"source": each.source, "reference": each.reference, labels[0]: each.old, labels[1]: each.new}
        print(f"\n{each.new_chrf - each.old_chrf:+.1f} chrF")
        for label, text in texts.items():
            print(f"  {label:12}{text}")


def _length(names: list[str], output: Path | None, to: str, count: int, bins: str, as_json: bool, device: str) -> None:
    from regard.claims.measurements import scores_by_length
    from regard.verbs.verb import load_able

    if not names:
        raise UsageError("name the models to compare: -m NAME=FOLDER, once for each")
    ranges = [(low, high) for low, high in (numbers(each, "-", count=2) for each in bins.split(","))]
    labels = [f"{low}-{high}" for low, high in ranges]
    results = {}
    for each in names:
        name, _, folder = each.rpartition("=")
        translator = load_able(*TRANSLATES, folder, device=device)
        results[name or Path(folder).name] = scores_by_length(translator, ranges, to=to, count=count)
    lines = [f"{'BLEU by words':20}" + "".join(f"{label:>9}" for label in labels)]
    lines += [f"{name:20}" + "".join(f"{row['bleu']:9.1f}" for row in rows) for name, rows in results.items()]
    _print({"bins": labels, "scores": results}, lines, as_json)
    scores = {name: [float(str(row["bleu"])) for row in rows] for name, rows in results.items()}
    title = f"{count} held-out phrasebook sentences per bin"
    _draw(output, labels, scores, title=title, x_label="source sentence length (words)", y_label="BLEU")


def _sequences(output: Path | None, lengths: list[int], width: int, as_json: bool) -> None:
    from regard.claims.measurements import three_ways

    ways = three_ways(lengths, width=width)
    columns = f"{'length':>7}{'ms':>10}{'MB kept':>10}{'steps':>8}{'layers to see all':>19}"
    lines = [f"{f'one layer, width {width}':28}{columns}"]
    for way in ways:
        cost = f"{1000 * way.seconds:10.2f}{way.megabytes:10.2f}"
        lines.append(f"{way.way:28}{way.length:7}{cost}{way.sequential_steps:8}{way.layers_to_connect:19}")
    _print([asdict(way) for way in ways], lines, as_json)
    names = dict.fromkeys(way.way for way in ways)
    times = {name: [1000 * way.seconds for way in ways if way.way == name] for name in names}
    title = "Three ways of processing a sequence: one layer, forward and backward"
    _draw(output, lengths, times, title=title, x_label="length", y_label="milliseconds", logarithmic=True)


def _data(names: list[str], output: Path | None, counts: list[int], sets: list[str], runs: Path, as_json: bool) -> None:
    from regard.claims.measurements import accuracy_by_count

    recipes = {name or Path(recipe).stem: recipe for name, _, recipe in (each.rpartition("=") for each in names)}
    if not recipes:
        raise UsageError("name the recipes to compare: -m NAME=RECIPE, once for each")
    results = accuracy_by_count(recipes, counts, runs, sets)
    lines = [f"{'accuracy by images':20}" + "".join(f"{count:>9,}" for count in counts)]
    lines += [f"{name:20}" + "".join(f"{value:9.4f}" for value in row) for name, row in results.items()]
    _print({"counts": counts, "accuracy": results}, lines, as_json)
    percent = {name: [100 * value for value in row] for name, row in results.items()}
    title = "The same recipe with more and more data"
    _draw(output, counts, percent, title=title, x_label="training images", y_label="accuracy (%)", log_x=True)


def _pictures(output: Path | None, sides: list[int], device: str, as_json: bool) -> None:
    from regard.claims.measurements import attention_growth
    from regard.device import find_device
    from regard.plan.plan import byte_size

    rows = attention_growth(sides, find_device(device))
    columns = f"{'side':>6}{'tokens':>8}{'planned':>12}{'peak':>12}{'ratio':>7}{'ms':>10}{'times':>7}"
    lines = [f"{'every place looks':28}{columns}"]
    for before, row in zip([None, *rows], rows, strict=False):
        line = f"{row.way:28}{row.side:6}{row.tokens:8,}{byte_size(row.planned):>12}"
        if row.peak is None or row.seconds is None:
            lines.append(f"{line}  more than there is")
            continue
        more = f"{row.seconds / before.seconds:7.1f}" if before and before.seconds and before.way == row.way else ""
        lines.append(f"{line}{byte_size(row.peak):>12}{row.peak / row.planned:7.2f}{1000 * row.seconds:10.1f}{more}")
    _print([asdict(row) for row in rows], lines, as_json)
    ways = dict.fromkeys(row.way for row in rows)
    peaks = {way: [(row.peak or math.nan) / 2**20 for row in rows if row.way == way] for way in ways}
    title = "Two layers of attention between patches of 4 x 4 pixels, one head"
    _draw(output, sides, peaks, title=title, x_label="side of the image (pixels)",
          y_label="peak memory of a forward pass (MB)", logarithmic=True)  # fmt: skip


def _measured(what: str, output: Path | None, as_json: bool) -> None:
    """What is measured by itself, without models or data that are given."""
    from regard.claims import measurements
    from regard.claims.superposition import draw_superposition, superposition, superposition_rows

    if what == "superposition":
        found = superposition(SPARSITIES)
        rows = superposition_rows(found)
    else:
        function, sizes = MEASURED[what]
        rows = getattr(measurements, function)(sizes)
    lines = ["".join(f"{name:>26}" for name in rows[0])]
    for row in rows:
        cells = (f"{value:26.3g}" if isinstance(value, float) else f"{value!s:>26}" for value in row.values())
        lines.append("".join(cells))
    _print(rows, lines, as_json)
    if output and what == "superposition":
        draw_superposition(output, found)
    elif output:
        measurements.CHARTS[what].draw(output, rows)


def _print(values: object, lines: Sequence[str], as_json: bool) -> None:
    print(json.dumps(values) if as_json else "\n".join(lines))


def _draw(output: Path | None, places: Sequence[Any], lines: Mapping[str, list[float]], **options: Any) -> None:
    if output:
        from regard.look.figures import line_chart

        line_chart(output, places, lines, **options)
