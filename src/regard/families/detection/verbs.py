"""regard see: objects in images, with their boxes."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.data.files import write_whole
from regard.errors import UsageError
from regard.verbs.inputs import free_name, title
from regard.verbs.verb import ImageVerb

if TYPE_CHECKING:
    from regard.families.detection.pipeline import Detected


@dataclass(kw_only=True)
class Detect(ImageVerb):
    """Find objects in images: one line out for each image, its file TAB its objects, best first.

    An object is its class, its probability and its box x1,y1,x2,y2 in pixels. A file that is not an image comes out as
    an empty line with a message on stderr, and the exit code is 1; where files are written, nothing is written then.
    With --skip-bad such a file is left out, counted and named.

    Example: regard see cells.jpg -m runs/bccd-detector -o cells.json --score 0.3
    """

    abilities, method, does = ("detect",), "detect", "detect objects"

    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="FILE.json in COCO's form, FILE.png of one image with boxes, or a folder."),
    ] = None
    features: Annotated[
        Path | None, typer.Option(help="FILE.npz: boxes, features and class probabilities of regions of every image.")
    ] = None
    stages: Annotated[
        Path | None, typer.Option(help="FILE.png or .svg: proposals, before and after suppression, of one image.")
    ] = None
    score: Annotated[float, typer.Option(min=0, max=1, help="Least probability of an object.")] = 0.5

    @property
    def form(self) -> str:
        return self.output.suffix.lower() if self.output else ""

    def writes(self) -> bool:
        return bool(self.output or self.features or self.stages)

    def check(self) -> None:
        self.one_file(self.stages or (self.output if self.form == ".png" else None), "image", "a folder with -o")
        if self.output and self.form not in ("", ".json", ".png") and not self.output.is_dir():
            raise UsageError(f"{self.output}: objects are written to FILE.json, FILE.png or a folder")
        super().check()

    def answers(self, inputs: list[str]) -> Any:
        return self.pipeline.detect(self.files.sources(inputs), self.score)

    def as_text(self, given: str, answer: Detected) -> str:
        boxes = (f"{each.label} {each.score:.1%} {','.join(f'{x:.0f}' for x in each.box)}" for each in answer.objects)
        return f"{given}\t{'; '.join(boxes)}"

    def as_values(self, given: str, answer: Detected) -> dict[str, Any]:
        objects = [
            {"label": each.label, "score": round(each.score, 4), "box": [round(side, 1) for side in each.box]}
            for each in answer.objects
        ]
        return {"image": given, "objects": objects}

    def finish(self, answered: list[tuple[str, Detected]]) -> None:
        from regard.families.detection.view import annotated_png, coco_document, save_stages

        taken, labels = set[Path](), self.pipeline.labels if self.writes() else ()
        if self.output and self.form == ".json":
            write_whole(self.output, json.dumps(coco_document(answered, labels), ensure_ascii=False).encode())
            print(f"objects of {len(answered):,} images written to {self.output}", file=sys.stderr)
        elif self.output:
            for name, found in answered:
                place = self.output if self.form == ".png" else free_name(self.output, name, ".png", taken)
                image = self.read(self.files.source(name))
                write_whole(place, annotated_png(image, found.objects, labels))
                print(f"{name} drawn to {place}", file=sys.stderr)
        if self.features:
            self._write_features(self.features, [name for name, _ in answered])
            print(f"regions of {len(answered):,} images written to {self.features}", file=sys.stderr)
        if self.stages and answered:
            name = answered[0][0]
            save_stages(self.pipeline, self.files.source(name), title(name), self.stages)
            print(f"stages drawn to {self.stages}", file=sys.stderr)

    def _write_features(self, path: Path, names: list[str]) -> None:
        """One array of each kind for every image, named by its number: 0/boxes, 0/features, 0/probabilities."""
        import numpy as np

        table: dict[str, Any] = {"files": np.array(names), "names": np.array(["background", *self.pipeline.labels])}
        for number, each in enumerate(self.pipeline.regions(self.files.sources(names))):
            table |= {f"{number}/{name}": getattr(each, name) for name in ("boxes", "features", "probabilities")}
        np.savez(content := io.BytesIO(), **table)
        write_whole(path, content.getvalue())
