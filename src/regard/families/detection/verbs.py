"""regard detect: objects in images, with their boxes."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.data.files import write_whole
from regard.errors import UsageError, with_article
from regard.verbs.answering import answer_lines
from regard.verbs.files import GivenFiles, Images, SkipBad, free_name, title
from regard.verbs.options import AllowPickle, AsJson, Device, Model, Without, switch_off

if TYPE_CHECKING:
    from regard.families.detection.pipeline import Detected, ObjectDetector


def detect(
    context: typer.Context,
    model: Model,
    image: Images = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="FILE.json in COCO's form, FILE.png of one image with boxes, or a folder."),
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help="FILE.npz: boxes, features and class probabilities of regions of every image.")
    ] = None,
    stages: Annotated[
        Path | None, typer.Option(help="FILE.png or .svg: proposals, before and after suppression, of one image.")
    ] = None,
    score: Annotated[float, typer.Option(min=0, max=1, help="Least probability of an object.")] = 0.5,
    without: Without = [],  # noqa: B006 - typer's way to say "none given"
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Find objects in images: one line out for each image, its file TAB its objects, best first.

    An object is its class, its probability and its box x1,y1,x2,y2 in pixels. A file that is no image comes out as an
    empty line with a message on stderr, and the exit code is 1; where files are written, nothing is written then. With
    --skip-bad such a file is left out, counted and named.

    Example: regard detect cells.jpg -m runs/bccd-detector -o cells.json --score 0.3
    """
    import regard
    from regard.data.images.reading import SUFFIXES
    from regard.families.detection.pipeline import ObjectDetector
    from regard.families.detection.view import annotated_png, coco_document, save_stages
    from regard.families.images.pipeline import open_image

    files = GivenFiles(image, SUFFIXES)
    names = list(files.names()) if output or features or stages else files.names()
    if isinstance(names, list) and len(names) != 1 and (stages or (output and output.suffix.lower() == ".png")):
        raise UsageError(f"a figure is of one image, and {len(names)} came; give one, or name a folder with -o")
    if output and output.suffix.lower() not in ("", ".json", ".png") and not output.is_dir():
        raise UsageError(f"{output}: what is found is written to FILE.json, FILE.png or a folder")
    if isinstance(names, list) and not skip_bad:  # nothing is written if an image cannot be read
        for name in names:
            open_image(files.source(name))
    detector = regard.load(model, device=device, allow_pickle=allow_pickle)
    if not isinstance(detector, ObjectDetector):
        raise UsageError(
            f"{model} is {with_article(type(detector).__name__)}, which detects no objects; choose another model"
        )
    switch_off(context, detector, without)
    kept: list[tuple[str, Detected]] = []

    def show(line: str, found: Detected | None) -> str:
        if found is None:
            return "null" if as_json else ""
        kept.append((line, found))
        if as_json:
            return json.dumps({"image": line, "objects": [_plain(each) for each in found.objects]}, ensure_ascii=False)
        objects = (
            f"{each.label} {each.score:.1%} {','.join(f'{side:.0f}' for side in each.box)}" for each in found.objects
        )
        return f"{line}\t{'; '.join(objects)}"

    def finish() -> None:
        """Write the files, after all images were answered."""
        taken: set[Path] = set()
        if output and output.suffix.lower() == ".json":
            write_whole(output, json.dumps(coco_document(kept, detector.labels), ensure_ascii=False).encode())
            print(f"objects of {len(kept):,} images written to {output}", file=sys.stderr)
        elif output:
            for line, found in kept:
                place = output if output.suffix.lower() == ".png" else free_name(output, line, ".png", taken)
                write_whole(place, annotated_png(open_image(files.source(line)), found.objects, detector.labels))
                print(f"{line} drawn to {place}", file=sys.stderr)
        if features:
            _write_features(features, detector, files, [line for line, _ in kept])
            print(f"regions of {len(kept):,} images written to {features}", file=sys.stderr)
        if stages and kept:
            save_stages(detector, files.source(kept[0][0]), title(kept[0][0]), stages)
            print(f"stages drawn to {stages}", file=sys.stderr)

    answer_lines(iter(names), lambda lines: detector.detect(files.sources(lines), score), show, skip_bad=skip_bad)
    finish()


def _plain(each: Any) -> dict[str, Any]:
    return {"label": each.label, "score": round(each.score, 4), "box": [round(side, 1) for side in each.box]}


def _write_features(path: Path, detector: ObjectDetector, files: GivenFiles, names: list[str]) -> None:
    """One array of each kind for every image, named by its number: 0/boxes, 0/features, 0/probabilities."""
    import numpy as np

    table: dict[str, Any] = {"files": np.array(names), "names": np.array(["background", *detector.labels])}
    for number, each in enumerate(detector.regions(files.sources(names))):
        table |= {f"{number}/{name}": getattr(each, name) for name in ("boxes", "features", "probabilities")}
    np.savez(content := io.BytesIO(), **table)
    write_whole(path, content.getvalue())
