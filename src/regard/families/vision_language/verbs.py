"""regard match: which texts and images belong together, where a phrase points, and answers to questions."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.errors import DataError, UsageError
from regard.verbs.answering import given_texts
from regard.verbs.files import STDIN, GivenFiles, SkipBad, files_in, tell_skipped
from regard.verbs.options import AllowPickle, AsJson, Device, Model, Without, refuse_given, switch_off

if TYPE_CHECKING:
    from regard.families.vision_language.pipeline import VisionLanguageModel

TOP = 10
BREAKS = re.compile(r"[\t\r\n]+")  # what would begin another column or line


def match(
    context: typer.Context,
    model: Model,
    given: Annotated[
        list[str] | None,
        typer.Argument(
            help="An image (- for stdin) and texts; with --images, texts alone. Without texts, lines of stdin."
        ),
    ] = None,
    images: Annotated[
        Path | None, typer.Option("--images", help="Search the images of this folder for each text.")
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="How many images to name for each text.")] = TOP,
    without: Without = [],  # noqa: B006 - typer's way to say "none given"
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Compare texts with images, as the model was trained to. One line out for each text; its columns are

    \b
    score TAB probability TAB text           captions, best first
    score TAB probability TAB image TAB text with --images, best first for each text
    box TAB probability TAB text             pointing: the region that a phrase means
    answer TAB probability TAB text          questions

    The probability is empty where the model only ranks. A box is its left, top, right and bottom from 0 to 1, with
    spaces between them.

    Example: regard match scene.png "a large red circle" "a small blue square" -m runs/scenes-vilbert
    Example: regard match --images holiday "a dog on a beach" -m runs/flickr8k-vilbert-retrieval
    Example: regard match scene.png "what colour is the large ring" -m runs/scenes-vilbert-questions
    """
    from regard.checkpoints.hub import local_folder
    from regard.families.vision_language.pipeline import VisionLanguageModel

    refuse_given({"--top": images is None and top != TOP}, "counts the images of --images, which is not given")
    if images is None and not given:
        raise UsageError("give an image and at least one text, or a folder with --images and a text")
    image, *texts = given or () if images is None else (STDIN, *(given or ()))
    if images is None and image == STDIN and not texts:
        raise UsageError("standard input has the image; give at least one text beside it")
    texts = texts or [line for line in given_texts(None) if line.strip()]
    if not texts:
        raise UsageError("no text came; give an image and at least one text, or texts as lines of standard input")
    reader = VisionLanguageModel.load(local_folder(model), device=device, allow_pickle=allow_pickle)
    switch_off(context, reader, without)
    if images is not None:
        _search(reader, images, texts, top, as_json, skip_bad)
        return
    for line in _answers(reader, GivenFiles([image], ()).source(image), texts):
        _print(line, as_json)


def _answers(reader: VisionLanguageModel, image: str | bytes, texts: list[str]) -> list[dict[str, Any]]:
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
    return [
        {"score": each.score, "probability": each.probability, "text": texts[each.text]}
        for each in reader.match(image, texts)
    ]


def _print(line: dict[str, Any], as_json: bool) -> None:
    print(json.dumps(line, ensure_ascii=False) if as_json else "\t".join(map(_plain, line.values())))


def _plain(value: Any) -> str:
    """A value as a column; numbers have four decimals."""
    if isinstance(value, list):
        return " ".join(map(_plain, value))
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else BREAKS.sub(" ", str(value))


def _search(
    reader: VisionLanguageModel, folder: Path, texts: list[str], top: int, as_json: bool, skip_bad: bool
) -> None:
    from regard.data.images.reading import SUFFIXES

    if not folder.is_dir():
        raise UsageError(f"--images {folder}: is no folder")
    reader.require("pretraining", "score")
    files, regions, bad = list[str](), [], list[str]()
    for file in files_in(folder, SUFFIXES):
        try:
            regions.append(reader.regions(file))
            files.append(file)
        except DataError as error:
            bad.append(file)
            print(f"regard: {'skipped: ' if skip_bad else ''}{error}", file=sys.stderr)
    if not files:
        raise DataError(f"{folder} has no image that can be read")
    scores = reader.scores(regions, texts)
    for number, text in enumerate(texts):
        for image in scores[:, number].argsort()[::-1][:top].tolist():
            score = float(scores[image, number])
            _print(
                {"score": score, "probability": reader.probability(score), "image": files[image], "text": text}, as_json
            )
    if skip_bad:
        tell_skipped(bad, len(files) + len(bad))
    elif bad:
        raise typer.Exit(1)
