"""regard evaluate: how good a translator is, and how well its attention aligns words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import AllowPickle, AsJson, Device, Models, To, load_translator


def evaluate(
    data: Annotated[str, typer.Argument(help="Held-out pairs: a path as in data.test, or `phrasebook`.")] = "",
    model: Models = [],  # noqa: B006 - typer's way to say "none given"
    to: To = "",
    beam: Annotated[int | None, typer.Option(help="Beam width. Default: the model's own.")] = None,
    count: Annotated[int, typer.Option(help="How many sentences of the phrasebook, per target language.")] = 500,
    min_words: Annotated[int, typer.Option(help="Phrasebook: shortest sentences.")] = 1,
    max_words: Annotated[int, typer.Option(help="Phrasebook: longest sentences.")] = 60,
    seed: Annotated[int, typer.Option(help="Phrasebook: which draw.")] = 1,
    gold: Annotated[
        str, typer.Option(help="Hand-made alignments, TSV: source, target, links (i-j sure, ipj possible).")
    ] = "",
    gold_first: Annotated[int, typer.Option(help="What the gold counts its words from.")] = 1,
    backward: Annotated[str, typer.Option(help="A model of the opposite direction: align with both, merged.")] = "",
    merge: Annotated[
        str, typer.Option(help="How: intersection, union, grow-diag, …")
    ] = "grow-diag",
    strip_accents: Annotated[bool, typer.Option("--strip-accents", help="Remove accents from the gold text.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the translations here.")] = None,
    as_json: AsJson = False,
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Measure a translator on held-out pairs (BLEU, chrF, exact match) or its alignments against gold (AER).

    Example: regard evaluate ../shared/data/multi30k/test_2016_flickr -m runs/en-de --beam 5
    """
    from regard.errors import UsageError
    from regard.studies.quality import evaluate_alignment, evaluate_pairs, held_out_pairs

    if not data and not gold:
        raise UsageError("say what to measure on: held-out pairs (a path or `phrasebook`), or --gold FILE")
    translator = load_translator(model, device, allow_pickle)
    changes = {} if beam is None else {"beam": beam}
    results: dict[str, object] = {}
    if data:
        pairs = held_out_pairs(translator, data, to, count=count, min_words=min_words, max_words=max_words, seed=seed)
        scores, answers = evaluate_pairs(translator, pairs, **changes)
        results |= scores
        if output:
            output.write_text("".join(f"{answer}\n" for answer in answers), encoding="utf-8")
    if gold:
        other = load_translator([backward], device, allow_pickle) if backward else None
        results |= evaluate_alignment(
            translator, gold, first=gold_first, backward=other, merge=merge, strip_accents=strip_accents
        )
    if as_json:
        print(json.dumps(results, ensure_ascii=False))
    else:
        for name, value in results.items():
            print(f"{name:24} {value:.4f}" if isinstance(value, float) else f"{name:24} {value}")
