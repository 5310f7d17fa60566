"""regard heads: how much worse a model becomes without each of its heads."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.data.files import write_whole
from regard.errors import UsageError
from regard.verbs.options import AllowPickle, AsJson, Device, Models, To, check_suffix
from regard.verbs.progress import Progress

if TYPE_CHECKING:
    from regard.claims.heads import HeadTable

BY = ("zero", "mean")
DRAWN = (".png", ".svg", ".json")
LONGEST = 60  # words of a sentence of the phrasebook


def heads(
    data: Annotated[
        str,
        typer.Argument(
            help="As for evaluate: pairs, labelled texts, images, `phrasebook`; for a GPT, a file of texts."
        ),
    ],
    model: Models = [],  # noqa: B006 - typer's way to say "none given"
    metric: Annotated[
        str, typer.Option(help="loss, or a metric of `regard evaluate`, such as bleu. Default: loss, else the first.")
    ] = "",
    by: Annotated[str, typer.Option(help="What a head is replaced by: zero, or its mean over the data.")] = "zero",
    layers: Annotated[str, typer.Option(help="Pattern of layers, such as 'decoder.*.cross'.")] = "*",
    count: Annotated[int, typer.Option(min=1, help="Most texts or pairs that are measured on.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Built-in data: which draw.")] = 1,
    max_words: Annotated[int, typer.Option(min=1, help="phrasebook: longest sentence, in words.")] = LONGEST,
    align: Annotated[
        bool, typer.Option("--align", help="Translators: beside every cross head, the alignment error of its weights.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Draw the table: FILE.png or .svg; or write FILE.json.")
    ] = None,
    to: To = "",
    as_json: AsJson = False,
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Switch every head off in turn, and print what the model loses by it, most needed head first.

    Lines are LAYER:HEAD, the metric without that head, and by how much it is worse; `--without LAYER:HEAD` shows the
    same change in an answer. With --align a cross head also has the alignment error rate of its weights.

    Example: regard heads phrasebook -m runs/en-es --count 200 -o heads.png
    Example: regard heads stories.txt -m runs/gpt --by mean
    """
    if by not in BY:
        raise UsageError(f"--by is {by!r}; expected zero or mean")
    check_suffix(output, DRAWN, "the table")
    import regard
    from regard.claims.heads import head_table, measured
    from regard.families.loading import default_model

    names = model or [default_model()]
    pipeline = regard.load(*names, device=device, allow_pickle=allow_pickle)
    own = {"--align": align, "--to": to, "--max-words": max_words != LONGEST}
    measure, rates = measured(pipeline, names[0], data, metric, own, to=to, count=count, seed=seed, max_words=max_words)
    with Progress("heads") as progress:
        table = head_table(
            pipeline, measure, layers=layers, by="mean" if by == "mean" else "zero", progress=progress.show
        )
    table = table.with_alignment(rates)
    if output is not None:
        _write(table, output)
    print(json.dumps(table.to_json()) if as_json else table)


def _write(table: HeadTable, output: Path) -> None:
    if output.suffix.lower() == ".json":
        write_whole(output, json.dumps(table.to_json()) + "\n")
    else:
        from regard.claims.heads import draw_effects
        from regard.look.figures import save_figure

        rows = {layer: [each.effect for each in table.effects if each.layer == layer] for layer in table.layers}
        title, note = f"{table.metric} without a head", f"worse by (all heads: {table.whole:.3f})"
        save_figure(lambda: draw_effects(rows, title=title, note=note), output)
    print(f"effects of heads written to {output}", file=sys.stderr)
