"""regard match: which texts and images belong together, where a phrase points, and answers to questions."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.errors import DataError, UsageError
from regard.verbs.inputs import STDIN, GivenFiles, SkipBad, files_in, given_texts, tell_skipped
from regard.verbs.options import refuse_given
from regard.verbs.verb import AttentionVerb

TOP = 10
BREAKS = re.compile(r"[\t\r\n]+")  # what would begin another column or line


@dataclass(kw_only=True)
class MatchVerb(AttentionVerb):
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

    abilities, method, does = ("compare",), "match", "compare images with texts"

    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[GIVEN]...",
            help="An image (- for stdin) and texts; with --images, texts alone. Without texts, lines of stdin.",
        ),
    ] = None
    images: Annotated[Path | None, typer.Option("--images", help="Search the images of this folder for each text.")] = (
        None
    )
    top: Annotated[int, typer.Option("--top", min=1, help="How many images to name for each text.")] = TOP
    skip_bad: SkipBad = False

    def check(self) -> None:
        given = self.arguments or []
        if self.images is None:
            refuse_given({"--top": self.top != TOP}, "counts the images of --images, which is not given")
            if not given:
                raise UsageError("give an image and at least one text, or a folder with --images and a text")
            if given == [STDIN]:
                raise UsageError("standard input has the image; give at least one text beside it")
        elif not self.images.is_dir():
            raise UsageError(f"--images {self.images} is not a folder")
        texts = given[1:] if self.images is None else given
        self.texts = texts or [line for line in given_texts(None) if line.strip()]
        if not self.texts:
            raise UsageError("there is no text; give an image and at least one text, or texts as lines of stdin")

    def run(self) -> None:
        if self.images is not None:
            self._search(self.images)
            return
        image = (self.arguments or [])[0]
        for values in self._compared(GivenFiles([image], ()).source(image)):
            self._print(values)

    def _compared(self, image: str | bytes) -> Iterator[dict[str, Any]]:
        model, texts = self.pipeline, self.texts
        match model.config.head:
            case "point":
                for text, found in zip(texts, model.point(image, texts), strict=True):
                    yield {"box": list(found.box), "probability": found.probabilities[found.region], "text": text}
            case "answer":
                for text, found in zip(texts, model.answer(image, texts), strict=True):
                    yield {"answer": found.label, "probability": found.probability, "text": text}
            case _:
                for found in model.match(image, texts):
                    yield {"score": found.score, "probability": found.probability, "text": texts[found.text]}

    def _print(self, values: dict[str, Any]) -> None:
        self.say("\t".join(map(_plain, values.values())), values)

    def _search(self, folder: Path) -> None:
        from regard.data.images.files import SUFFIXES

        self.pipeline.require("pretraining", "score")
        files, regions, bad = list[str](), [], list[str]()
        for file in files_in(folder, SUFFIXES):
            try:
                regions.append(self.pipeline.regions(file))
                files.append(file)
            except DataError as error:
                bad.append(file)
                print(f"regard: {'skipped: ' if self.skip_bad else ''}{error}", file=sys.stderr)
        if not files:
            raise DataError(f"{folder} has no image that can be read")
        scores = self.pipeline.scores(regions, self.texts)
        for number, text in enumerate(self.texts):
            for row in scores[:, number].argsort()[::-1][: self.top].tolist():
                score = float(scores[row, number])
                probability = self.pipeline.probability(score)
                self._print({"score": score, "probability": probability, "image": files[row], "text": text})
        if self.skip_bad:
            tell_skipped(bad, len(files) + len(bad))
        elif bad:
            raise typer.Exit(1)


def _plain(value: Any) -> str:
    """A value as a column; numbers have four decimals."""
    if isinstance(value, list):
        return " ".join(map(_plain, value))
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else BREAKS.sub(" ", str(value))
