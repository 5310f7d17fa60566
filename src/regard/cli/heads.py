"""regard heads: how much worse a model becomes without each of its heads."""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.data.files import write_whole
from regard.errors import UsageError, with_article
from regard.verbs.options import AllowPickle, AsJson, Device, Models, To, built_in, refuse_given

if TYPE_CHECKING:
    from regard.claims.heads import HeadTable, Measure
    from regard.data.formats.pairs import Pair

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
    if output is not None and output.suffix.lower() not in DRAWN:
        raise UsageError(f"cannot write the table as {output.name!r}; name a file ending in .png, .svg or .json")
    import regard
    from regard.claims.heads import head_alignment, head_table
    from regard.families.translation.evaluate import held_out_pairs
    from regard.families.translation.translator import Translator

    names = model or [str(built_in())]
    pipeline = regard.load(*names, device=device, allow_pickle=allow_pickle)
    pairs = None
    if isinstance(pipeline, Translator):
        pairs = held_out_pairs(pipeline, data, to, count=count, seed=seed, max_words=max_words)[:count]
    else:
        of_translators = {"--align": align, "--to": to, "--max-words": max_words != LONGEST}
        kind = with_article(type(pipeline).__name__)
        refuse_given(of_translators, f"is for translators, and {names[0]} is {kind}")
    rates = head_alignment(pipeline, pairs) if align and isinstance(pipeline, Translator) and pairs is not None else {}
    measure = _measure(pipeline, names[0], data, metric, pairs, count, seed)
    table = head_table(pipeline, measure, layers=layers, by="mean" if by == "mean" else "zero", progress=_progress)
    table = table.with_alignment(rates)
    if output is not None:
        _write(table, output)
    print(json.dumps(table.to_json()) if as_json else table)


def _measure(
    pipeline: Any, name: str, data: str, metric: str, pairs: list[Pair] | None, count: int, seed: int
) -> Measure:
    from regard.checkpoints.folder import resolve
    from regard.checkpoints.hub import local_folder
    from regard.claims.heads import LOSS, pair_loss, score, text_loss
    from regard.data.formats.plain_text import read_text
    from regard.families.catalog import PIPELINES
    from regard.families.contract import EvaluationOptions
    from regard.families.language.language_models import LanguageModel
    from regard.families.loading import find_pipeline
    from regard.families.translation.evaluate import evaluate_pairs
    from regard.families.translation.translator import Translator

    if isinstance(pipeline, LanguageModel):
        if metric not in ("", LOSS):
            raise UsageError(f"a language model is measured by its loss; leave out --metric {metric}")
        return text_loss(pipeline, [line.text.strip() for line in islice(read_text(data, "line"), count)])
    if isinstance(pipeline, Translator) and pairs is not None:
        if metric in ("", LOSS):
            return pair_loss(pipeline, pairs)
        return score(metric, lambda: evaluate_pairs(pipeline, pairs)[0])
    folder = resolve(local_folder(name))
    entry = PIPELINES[find_pipeline(folder)]
    if not entry.evaluate:
        raise UsageError(f"{name} is {with_article(type(pipeline).__name__)}, which has no evaluation")
    options, evaluation = EvaluationOptions(folder, count, seed), entry.load(entry.evaluate)
    return score(metric, lambda: evaluation(pipeline, data, options).scores)


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\rhead {done + 1} of {total}", end="\n" if done + 1 == total else "", file=sys.stderr, flush=True)


def _write(table: HeadTable, output: Path) -> None:
    if output.suffix.lower() == ".json":
        write_whole(output, json.dumps(table.to_json()) + "\n")
    else:
        from regard.look.figure_files import save_figure
        from regard.look.head_figures import draw_effects

        rows = {layer: [each.effect for each in table.effects if each.layer == layer] for layer in table.layers}
        title, note = f"{table.metric} without a head", f"worse by (all heads: {table.whole:.3f})"
        save_figure(lambda: draw_effects(rows, title=title, note=note), output)
    print(f"effects of heads written to {output}", file=sys.stderr)
