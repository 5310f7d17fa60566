"""regard compare: architectures side by side on the same data."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.tables import DEFAULT_WIDTH, draw_lines, measure_over, print_table
from regard.errors import UsageError
from regard.verbs.options import AsJson, Device, Sets, numbers

BINS = "1-10,11-20,21-30,31-40,41-50,51-60"
COUNTS, RUNS = "500,1000,2000,5000,10000", Path("runs/compare")
MOVED = {  # earlier subjects, which are claims now
    "sequences": "three-ways", "images": "windows", "pictures": "windows", "gradients": "gradient-flow",
    "heads": "heads-cost", "scaling": "scaling", "superposition": "superposition",
}  # fmt: skip
TRANSLATES = ("translate",), "translate", "translate"  # what a model that is compared must be able to do


def compare(
    what: Annotated[
        str,
        typer.Argument(help="models, length or data."),
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
    lengths: Annotated[str, typer.Option(hidden=True)] = "",
    counts: Annotated[str, typer.Option(help="data: the numbers of images to learn from.")] = COUNTS,
    sets: Sets = [],  # noqa: B006
    runs: Annotated[
        Path, typer.Option(help="data: where to train; what is complete there is not trained again.")
    ] = RUNS,
    sides: Annotated[str, typer.Option(hidden=True)] = "",
    width: Annotated[int, typer.Option(min=1, hidden=True)] = DEFAULT_WIDTH,
    as_json: AsJson = False,
    device: Device = "cpu",
) -> None:
    """Compare models on the same data.

    models: an old and a new translator on the same pairs, named with -m in this order: BLEU and chrF of both, and the
    sentences that differ most. length: BLEU against sentence length, for models named with -m. data: accuracy against
    the number of training images, for recipes named with -m. What the lectures claim is measured by `regard claims`.

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
        case "data":
            _data(model, output, numbers(counts, ","), sets, runs, as_json)
        case _ if what in MOVED:
            sizes = numbers(lengths or sides, ",") if lengths or sides else []
            measure_over(MOVED[what], sizes, output, width=width, device=device, as_json=as_json)
            print(f"regard: `compare {what}` is `claims {MOVED[what]} --sizes` now", file=sys.stderr)
        case _:
            raise UsageError(f"cannot compare {what!r}; choose models, length or data")


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
    print_table({"bins": labels, "scores": results}, lines, as_json)
    scores = {name: [float(str(row["bleu"])) for row in rows] for name, rows in results.items()}
    title = f"{count} held-out phrasebook sentences per bin"
    draw_lines(output, labels, scores, title=title, x_label="source sentence length (words)", y_label="BLEU")


def _data(names: list[str], output: Path | None, counts: list[int], sets: list[str], runs: Path, as_json: bool) -> None:
    from regard.claims.measurements import accuracy_by_count

    recipes = {name or Path(recipe).stem: recipe for name, _, recipe in (each.rpartition("=") for each in names)}
    if not recipes:
        raise UsageError("name the recipes to compare: -m NAME=RECIPE, once for each")
    results = accuracy_by_count(recipes, counts, runs, sets)
    lines = [f"{'accuracy by images':20}" + "".join(f"{count:>9,}" for count in counts)]
    lines += [f"{name:20}" + "".join(f"{value:9.4f}" for value in row) for name, row in results.items()]
    print_table({"counts": counts, "accuracy": results}, lines, as_json)
    percent = {name: [100 * value for value in row] for name, row in results.items()}
    title = "The same recipe with more and more data"
    draw_lines(output, counts, percent, title=title, x_label="training images", y_label="accuracy (%)", log_x=True)
