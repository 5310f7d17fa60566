"""regard see with classes of images and of pixels; and the images of `regard generate`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.data.files import write_whole
from regard.errors import UsageError
from regard.verbs.inputs import free_name
from regard.verbs.verb import ImageVerb, label_line, label_values

if TYPE_CHECKING:
    from regard.families.images.pipeline import Segmented
    from regard.look.inspection import GivenInput, Inspected
    from regard.search.pipeline import Labelled


@dataclass(kw_only=True)
class ClassifyImages(ImageVerb):
    """Label images: one line out for each image, label TAB probability.

    A file that is not an image comes out as an empty line with a message on stderr, and the exit code is 1; with
    --skip-bad it is left out, counted and named.

    Example: regard see holiday/*.jpg -m hf:google/vit-base-patch16-224
    """

    abilities, method, does = ("see",), "classify", "label images"

    def answers(self, inputs: list[str]) -> list[Labelled]:
        found: list[Labelled] = self.pipeline.classify(self.files.sources(inputs))
        return found

    def as_text(self, given: str, answer: Labelled) -> str:
        return label_line(answer)

    def as_values(self, given: str, answer: Labelled) -> dict[str, Any]:
        return {"image": given, **label_values(answer)}


@dataclass(kw_only=True)
class Segment(ImageVerb):
    """Name every pixel of images: a mask for each, and one line out: its file TAB the classes and their shares.

    A mask is a PNG as large as the image; the value of a pixel is the number of its class, shown in a colour. A file
    that is not an image comes out as an empty line with a message on stderr, and the exit code is 1; with --skip-bad it
    is left out, counted and named.

    Example: regard see scene.png -m runs/scenes-segmentation -o mask.png
    """

    abilities, method, does = ("segment",), "segment", "segment images"

    output: Annotated[Path, typer.Option("-o", "--output", help="FILE.png for one image, or a folder for masks.")]

    def check(self) -> None:
        self.taken = set[Path]()
        self.single = self.output.suffix.lower() == ".png"
        if self.single:
            self.one_file(self.output, "image", "a folder for the masks of several")

    def inputs(self) -> Any:
        (self.output.parent if self.single else self.output).mkdir(parents=True, exist_ok=True)
        return self.names if self.single else super().inputs()

    def answers(self, inputs: list[str]) -> list[tuple[Path, Segmented]]:
        """The masks, written as they come."""
        from regard.data.images.reading import mask_png

        found: list[tuple[Path, Segmented]] = []
        for name, segmented in zip(inputs, self.pipeline.segment(self.files.sources(inputs)), strict=True):
            place = self.output if self.single else free_name(self.output, name, ".png", self.taken)
            write_whole(place, mask_png(segmented.mask))
            found.append((place, segmented))
        return found

    def as_text(self, given: str, answer: tuple[Path, Segmented]) -> str:
        place, segmented = answer
        return f"{place}\t{', '.join(f'{name} {share:.1%}' for name, share in segmented.shares.items())}"

    def as_values(self, given: str, answer: tuple[Path, Segmented]) -> dict[str, Any]:
        return {"image": given, "mask": str(answer[0]), "shares": answer[1].shares}


def inspect_made_image(pipeline: Any, given: GivenInput) -> Inspected:
    """The attention of a generator of images, given the image of a file, or CLASS#SEED where it makes classes."""
    from regard.families.images.generation import ClassImageGenerator
    from regard.families.images.view import image_report
    from regard.look.inspection import Inspected

    if isinstance(given.file, bytes):
        raise UsageError("this model makes images; name the file of an image, or CLASS#SEED")
    if isinstance(pipeline, ClassImageGenerator):
        label, _, seed = str(given.file).partition("#")
        if not (seed or "0").isdecimal():
            raise UsageError(f"{seed!r} is not a seed; write CLASS#NUMBER")
        recorded = pipeline.attention(label, seed=int(seed or "0"))
    else:
        recorded = pipeline.attention(given.file)
    return Inspected(image_report(recorded, title=given.title, model=pipeline.name, meta={}), {})


def make_images(
    pipeline: Any, prompts: list[str], output: Path | None, *, count: int, keep: float, settings: dict[str, Any]
) -> None:
    """Write one sheet of images: those that a generator makes for classes, or completions of given images."""
    import torch

    from regard.data.images.reading import grid, png
    from regard.families.images.generation import ClassImageGenerator
    from regard.search.settings import SearchSettings

    assert output is not None
    if isinstance(pipeline, ClassImageGenerator):
        labels = (prompts or pipeline.labels) * count
        images, columns = pipeline.make(labels, seed=settings.get("seed", 0)), len(prompts or pipeline.labels)
    else:
        chosen = SearchSettings.parse({"sample": True, **settings})
        given: list[Path | None] = [*map(Path, prompts)] or [None]
        rows = [pipeline.paint(each, keep=keep if each else 0.0, count=count, settings=chosen) for each in given]
        images, columns = torch.cat(rows), count
    write_whole(output, png(grid(images, columns)))
    print(f"{len(images)} images drawn to {output}", file=sys.stderr)
