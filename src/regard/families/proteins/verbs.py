"""regard interact: do two proteins bind."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from regard.errors import DataError, UsageError
from regard.verbs.answering import answer_lines, given_texts
from regard.verbs.options import AllowPickle, AsJson, Device, Model, Without, switch_off

if TYPE_CHECKING:
    from regard.families.proteins.pipeline import Interaction, InteractionPredictor

MANY = 256  # pairs that are answered together


def interact(
    context: typer.Context,
    model: Model,
    first: Annotated[str, typer.Argument(help="A sequence, or a FASTA file; without it, lines A TAB B of stdin.")] = "",
    second: Annotated[str, typer.Argument(help="The same; every protein of the first is paired with every one.")] = "",
    without: Without = [],  # noqa: B006 - typer's way to say "none given"
    as_json: AsJson = False,
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Whether two proteins bind, by their sequences. One line out for each pair: probability TAB protein TAB protein.

    Lower case, U, B, Z, O and J are read as the nearest letter, and this is told on stderr.

    Example: regard interact MSTAVLENPGLGRKLSDFGQETSYIED other.fasta -m runs/yeast-interactions
    """
    from regard.checkpoints.hub import local_folder
    from regard.data.proteins.fasta import given_proteins
    from regard.families.proteins.pipeline import InteractionPredictor

    if first and not second:
        raise UsageError("give two proteins, or none to read lines A TAB B from standard input")
    predictor = InteractionPredictor.load(local_folder(model), device=device, allow_pickle=allow_pickle)
    switch_off(context, predictor, without)
    if not first:
        answer_lines(
            given_texts(None), lambda lines: _answer_lines(predictor, lines), lambda _, found: _shown(found, as_json)
        )
        return
    ones, others = given_proteins(first), given_proteins(second)
    for protein in (*ones, *others):
        for told in protein.told:
            print(f"regard: {protein.name}: {told}", file=sys.stderr)
    pairs = [(one, other) for one in ones for other in others]
    for start in range(0, len(pairs), MANY):
        some = pairs[start : start + MANY]
        found = predictor.interact([one.sequence for one, _ in some], [other.sequence for _, other in some])
        for (one, other), answer in zip(some, found, strict=True):
            _print(one.name, other.name, answer, as_json)


def _answer_lines(predictor: InteractionPredictor, lines: list[str]) -> list[Interaction]:
    pairs = [line.split("\t") for line in lines]
    for pair in pairs:
        if len(pair) != 2:
            raise DataError(f"{len(pair)} columns came; expected two sequences separated by a tab")
    return predictor.interact([one for one, _ in pairs], [other for _, other in pairs])


def _shown(answer: Interaction | None, as_json: bool) -> str:
    if as_json:
        return json.dumps({"probability": None if answer is None else answer.probability})
    return "" if answer is None else f"{answer.probability:.4f}"


def _print(one: str, other: str, answer: Interaction, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"first": one, "second": other, "probability": answer.probability, "binds": answer.binds}))
    else:
        print(f"{answer.probability:.4f}\t{one}\t{other}")
