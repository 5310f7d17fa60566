"""regard fold: the structure of a protein, from its sequence or the alignment of its family."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.data.files import write_whole
from regard.errors import DataError
from regard.verbs.options import refuse_several
from regard.verbs.verb import FileVerb

if TYPE_CHECKING:
    from regard.families.folding.pipeline import Prediction

STRUCTURES, DRAWN = (".pdb", ".ent"), (".png", ".svg", ".html")


@dataclass(kw_only=True)
class Fold(FileVerb):
    """Predict backbones of proteins. One line out for each: name TAB residues TAB confidence from 0 to 100.

    The shipped recipes train on tens of chains. Such a model knows these by heart, and contacts of other domains from
    their alignments; it does not fold proteins that it has never seen. The confidence is its own estimate.

    Example: regard fold domain.a3m -m runs/pfam-evoformer -o domain.pdb
    """

    abilities, method, does, files_of, unit = ("fold",), "fold", "fold proteins", "protein", "proteins"

    protein: Annotated[
        list[str],
        typer.Argument(
            help="Sequences, FASTA files, A3M files (the alignment of a family, query first), structures (their "
            "sequences), folders of them, or - for FASTA on stdin."
        ),
    ]
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="FILE.pdb of CA atoms, confidence in the B column; FILE.json; .png, .svg or .html."
        ),
    ] = None

    def check(self) -> None:
        from regard.data.proteins import SUFFIXES
        from regard.look.save import check_suffix

        self.suffixes = SUFFIXES  # type: ignore[misc]  # imported when it is needed
        if self.output is not None and self.output.suffix.lower() not in STRUCTURES:
            check_suffix(self.output)

    def writes(self) -> bool:
        return self.output is not None

    def inputs(self) -> list[Any]:
        requests = [request for name in self.names for request in self._read(name)]
        if self.output is not None and self.output.suffix.lower() in DRAWN:
            refuse_several(self.output, len(requests), "protein", "a FILE.pdb or FILE.json")
        return requests

    def _read(self, name: str) -> list[Any]:
        """The proteins of a text or a file; none is answered if one cannot be read."""
        try:
            return list(self.pipeline.read(self.files.source(name)))
        except DataError as error:
            if not self.skip_bad:
                raise
            return [error]

    def answers(self, inputs: list[Any]) -> Any:
        return self.pipeline.predict(inputs)

    def as_text(self, given: Any, answer: Prediction) -> str:
        return f"{answer.name}\t{len(answer.given)}\t{answer.mean_confidence:.1f}"

    def as_values(self, given: Any, answer: Prediction) -> dict[str, Any]:
        """A prediction as plain values; contacts are pairs of residues from 1 on, with a probability of ½ or more."""
        first, second = (answer.contacts >= 0.5).nonzero()
        pairs = [
            [int(i) + 1, int(j) + 1, round(float(answer.contacts[i, j]), 4)]
            for i, j in zip(first, second, strict=True)
            if j - i >= 3
        ]
        return {
            "name": answer.name, "sequence": answer.given.sequence, "rows": len(answer.given.rows),
            "confidence": [round(float(value), 2) for value in answer.confidence],
            "places": [[round(float(x), 3) for x in place] for place in answer.places],
            "contacts": pairs, "told": list(answer.told),
        }  # fmt: skip

    def note(self, given: Any, answer: Prediction | None) -> None:
        if answer is not None:
            for message in answer.told:
                print(f"regard: {answer.name}: {message}", file=sys.stderr)

    def finish(self, answered: list[tuple[Any, Prediction]]) -> None:
        from regard.families.folding.pipeline import NOT_CLAIMED

        print(f"regard: {NOT_CLAIMED}", file=sys.stderr)
        predictions = [answer for _, answer in answered]
        if self.output is None or not predictions:
            return
        if self.output.suffix.lower() in DRAWN:
            from regard.families.folding.view import structure_report
            from regard.look.save import save

            save(structure_report(self.pipeline, predictions[0]), self.output)
        elif self.output.suffix.lower() in STRUCTURES:
            from regard.families.folding.structures import write_pdb

            write_pdb(self.output, [each.chain for each in predictions], [each.confidence for each in predictions])
        else:
            content = [self.as_values(None, each) for each in predictions]
            write_whole(self.output, json.dumps(content, ensure_ascii=False))
        print(f"{len(predictions)} written to {self.output}", file=sys.stderr)
