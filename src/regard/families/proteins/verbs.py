"""regard interact: do two proteins bind."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.errors import DataError, UsageError
from regard.verbs.inputs import given_texts
from regard.verbs.verb import LineVerb

if TYPE_CHECKING:
    from regard.families.proteins.pipeline import Interaction


@dataclass(kw_only=True)
class Interact(LineVerb):
    """Whether two proteins bind, by their sequences. One line out for each pair: probability TAB protein TAB protein.

    Lower case, U, B, Z, O and J are read as the nearest letter, and this is told on stderr. For lines of standard input
    the probability alone comes out.

    Example: regard interact MSTAVLENPGLGRKLSDFGQETSYIED other.fasta -m runs/yeast-interactions
    """

    abilities, method, does, unit, at_once = ("interact",), "interact", "compare proteins", "pairs", 256

    first: Annotated[str, typer.Argument(help="A sequence, or a FASTA file; without it, lines A TAB B of stdin.")] = ""
    second: Annotated[str, typer.Argument(help="The same; every protein of the first is paired with every one.")] = ""

    def check(self) -> None:
        if self.first and not self.second:
            raise UsageError("give two proteins, or none to read lines A TAB B from standard input")

    def inputs(self) -> Iterable[Any]:
        """Pairs of a name and a sequence; those of standard input have no names."""
        from regard.data.proteins import given_proteins

        if not self.first:
            return map(_pair, given_texts(None))
        ones, others = given_proteins(self.first), given_proteins(self.second)
        for protein in (*ones, *others):
            for message in protein.told:
                print(f"regard: {protein.name}: {message}", file=sys.stderr)
        return [((one.name, one.sequence), (other.name, other.sequence)) for one in ones for other in others]

    def answers(self, inputs: list[Any]) -> Any:
        ones, others = ([pair[side][1] for pair in inputs] for side in (0, 1))
        return self.pipeline.interact(ones, others)

    def as_text(self, given: Any, answer: Interaction) -> str:
        return "\t".join([f"{answer.probability:.4f}", *(name for name, _ in given if name)])

    def as_values(self, given: Any, answer: Interaction) -> dict[str, Any]:
        if not self.first:
            return {"probability": answer.probability}
        (one, _), (other, _) = given
        return {"first": one, "second": other, "probability": answer.probability, "binds": answer.binds}


def _pair(line: str) -> tuple[tuple[str, str], ...] | DataError:
    columns = line.split("\t")
    if len(columns) != 2:
        return DataError(f"{len(columns)} columns were given; expected two sequences separated by a tab")
    return tuple(("", sequence) for sequence in columns)
