"""regard match: which texts and images belong together, where a phrase points, and answers to questions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import AllowPickle, AsJson, Device, Model, Without, switch_off
from regard.errors import DataError, UsageError

if TYPE_CHECKING:
    from regard.inference.pipelines.vision_language import VisionLanguageModel

TOP = 10


def match(
    context: typer.Context,
    model: Model,
    given: Annotated[list[str], typer.Argument(help="An image and texts; with --images, texts alone.")],
    images: Annotated[
        Path | None, typer.Option("--images", help="Search the images of this folder for each text.")
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="How many images to name for each text.")] = TOP,
    without: Without = [],  # noqa: B006 - typer's way to say "none given"
    as_json: AsJson = False,
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Compare texts with images, as the model was trained to.

    A model of captions scores every text, best first: score TAB text (with --images: score TAB file TAB text). A model
    that points gives the region that a phrase means: left, top, right and bottom from 0 to 1. A model of questions
    answers them: answer TAB probability.

    Example: regard match scene.png "a large red circle" "a small blue square" -m runs/scenes-vilbert
    Example: regard match --images holiday "a dog on a beach" -m runs/flickr8k-vilbert-retrieval
    Example: regard match scene.png "what colour is the large ring" -m runs/scenes-vilbert-questions
    """
    from regard.checkpoints.hub import local_folder
    from regard.inference.pipelines.vision_language import VisionLanguageModel

    if images is None and len(given) < 2:
        raise UsageError("give an image and at least one text, or a folder with --images and a text")
    reader = VisionLanguageModel.load(local_folder(model), device=device, allow_pickle=allow_pickle)
    switch_off(context, reader, without)
    if images is not None:
        _search(reader, images, given, top, as_json)
        return
    image, *texts = given
    for line in _answers(reader, image, texts):
        print(json.dumps(line, ensure_ascii=False) if as_json else "\t".join(_plain(line)))


def _answers(reader: VisionLanguageModel, image: str, texts: list[str]) -> list[dict[str, Any]]:
    match reader.config.head:
        case "point":
            found = zip(texts, reader.point(image, texts), strict=True)
            return [
                {"box": list(each.box), "probability": each.probabilities[each.region], "text": text}
                for text, each in found
            ]
        case "answer":
            answers = zip(texts, reader.answer(image, texts), strict=True)
            return [{"answer": each.label, "probability": each.probability, "text": text} for text, each in answers]
    matches = reader.match(image, texts)
    return [
        _without_nothing({"score": each.score, "probability": each.probability, "text": texts[each.text]})
        for each in matches
    ]


def _without_nothing(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _plain(line: dict[str, Any]) -> list[str]:
    """The values of a line; numbers with four decimals."""
    boxes = (" ".join(f"{side:.4f}" for side in value) if isinstance(value, list) else value for value in line.values())
    return [f"{value:.4f}" if isinstance(value, float) else str(value) for value in boxes]


def _search(reader: VisionLanguageModel, folder: Path, texts: list[str], top: int, as_json: bool) -> None:
    from regard.data.images.reading import SUFFIXES

    if not folder.is_dir():
        raise UsageError(f"--images {folder}: is no folder")
    reader.require("pretraining", "score")
    files, regions = [], []
    for file in sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES):
        try:
            regions.append(reader.regions(file))
            files.append(str(file))
        except DataError as error:
            print(f"regard: {error}", file=sys.stderr)
    if not files:
        raise DataError(f"{folder} has no image that can be read")
    scores = reader.scores(regions, texts)
    for number, text in enumerate(texts):
        for image in scores[:, number].argsort()[::-1][:top].tolist():
            line = {"score": float(scores[image, number]), "image": files[image], "text": text}
            print(json.dumps(line, ensure_ascii=False) if as_json else "\t".join(_plain(line)))
