"""regard fold: the structure of a protein, from its sequence or the alignment of its family."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.data.files import write_whole
from regard.errors import UsageError, with_article
from regard.verbs.files import GivenFiles
from regard.verbs.options import AllowPickle, AsJson, Device, Model, Without, switch_off

if TYPE_CHECKING:
    from regard.families.folding.pipeline import Prediction

STRUCTURES = (".pdb", ".ent")


def fold(
    context: typer.Context,
    protein: Annotated[
        list[str],
        typer.Argument(
            help="Sequences, FASTA files, A3M files (the alignment of a family, query first), structures (their "
            "sequences), folders of them, or - for FASTA on stdin."
        ),
    ],
    model: Model,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="FILE.pdb of CA atoms, confidence in the B column; FILE.json; .png, .svg or .html."
        ),
    ] = None,
    without: Without = [],  # noqa: B006 - typer's way to say "none given"
    as_json: AsJson = False,
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Predict backbones of proteins. One line out for each: name TAB residues TAB confidence from 0 to 100.

    The shipped recipes train on tens of chains. Such a model knows these by heart, and contacts of other domains from
    their alignments; it does not fold proteins that it has never seen. The confidence is its own estimate.

    Example: regard fold domain.a3m -m runs/pfam-evoformer -o domain.pdb
    """
    import regard
    from regard.data.proteins.fasta import SUFFIXES
    from regard.families.folding.pipeline import NOT_CLAIMED, StructurePredictor
    from regard.look.save import check_suffix

    if output is not None and output.suffix.lower() not in STRUCTURES:
        check_suffix(output)
    predictor = regard.load(model, device=device, allow_pickle=allow_pickle)
    if not isinstance(predictor, StructurePredictor):
        raise UsageError(
            f"{model} is {with_article(type(predictor).__name__)}, which folds no proteins; choose another model"
        )
    switch_off(context, predictor, without)
    files = GivenFiles(protein, SUFFIXES)
    requests = [request for name in files.names() for request in predictor.read(files.source(name))]
    drawn = output is not None and output.suffix.lower() in (".png", ".svg", ".html")
    if drawn and len(requests) > 1:
        raise UsageError(f"{output} shows one protein, but {len(requests)} came; name a FILE.pdb or FILE.json")
    predictions = predictor.predict(requests)
    for each in predictions:
        for told in each.told:
            print(f"regard: {each.name}: {told}", file=sys.stderr)
        print(json.dumps(_plain(each), ensure_ascii=False) if as_json else _line(each))
    print(f"regard: {NOT_CLAIMED}", file=sys.stderr)
    if output is None:
        return
    if drawn:
        from regard.families.folding.view import structure_report
        from regard.look.save import save

        save(structure_report(predictor, predictions[0]), output)
    else:
        _write(output, predictions)
    print(f"{len(predictions)} written to {output}", file=sys.stderr)


def _line(each: Prediction) -> str:
    return f"{each.name}\t{len(each.given)}\t{each.mean_confidence:.1f}"


def _plain(each: Prediction) -> dict[str, Any]:
    """A prediction as plain values; contacts are pairs of residues from 1 on, with a probability of ½ or more."""
    first, second = ((each.contacts >= 0.5) & (_apart(each) >= 3)).nonzero()
    pairs = [
        [int(i) + 1, int(j) + 1, round(float(each.contacts[i, j]), 4)]
        for i, j in zip(first, second, strict=True)
        if i < j
    ]
    return {
        "name": each.name, "sequence": each.given.sequence, "rows": len(each.given.rows),
        "confidence": [round(float(value), 2) for value in each.confidence],
        "places": [[round(float(x), 3) for x in place] for place in each.places],
        "contacts": pairs, "told": list(each.told),
    }  # fmt: skip


def _apart(each: Prediction) -> Any:
    import numpy as np

    places = np.arange(len(each.given))
    return np.abs(places[:, None] - places[None])


def _write(output: Path, predictions: list[Prediction]) -> None:
    """A PDB file of all chains, or JSON; whole or not at all."""
    from regard.families.folding.structures import write_pdb

    if output.suffix.lower() in STRUCTURES:
        write_pdb(output, [each.chain for each in predictions], [each.confidence for each in predictions])
        return
    write_whole(output, json.dumps([_plain(each) for each in predictions], ensure_ascii=False))
