"""regard segment: the class of every pixel."""

from __future__ import annotations

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
    from regard.families.images.pipeline import ImageSegmenter, Segmented
    from regard.look.panels import Point
    from regard.look.report import AttentionReport


def look_at_file(
    path: str,
    text: str,
    model: str,
    output: Path,
    layers: str,
    head: int | None,
    at: list[str],
    changes: list[str],
    other: str,
    logit_lens: bool,
    device: str,
    allow_pickle: bool,
) -> None:
    """Draw the attention of a model that reads files, some of them with a text.

    An image generator takes CLASS#SEED in place of a file. `other` is the input that changes take from.
    """
    import regard
    from regard.families.images.generation import ClassImageGenerator, PixelGenerator
    from regard.families.images.view import image_report
    from regard.look.given import GivenInput, inspect_input
    from regard.look.interventions import changed
    from regard.look.report import changed_facts, summary
    from regard.look.save import save

    files, points, name = GivenFiles([path], ()), [_point(each) for each in at], title(path)
    pipeline = regard.load(model, device=device, allow_pickle=allow_pickle)

    def inspected(read: str = path) -> AttentionReport:
        match pipeline:
            case ClassImageGenerator():
                label, _, seed = read.partition("#")
                recorded = pipeline.attention(label, seed=_seed(seed or "0"))
                return image_report(recorded, title=read, model=pipeline.name, meta={})
            case PixelGenerator():
                return image_report(pipeline.attention(read), title=name, model=pipeline.name, meta={})
        found = inspect_input(pipeline, GivenInput(files.source(read), name, text))
        if found is None:
            raise UsageError(f"{model} is {with_article(type(pipeline).__name__)}, whose attention cannot be drawn")
        if not found.report.panels and not found.report.shown_as:
            raise UsageError(f"{model} has no attention to look at, or says nothing about {name}")
        return found.report

    original = inspected() if changes else None
    with changed(pipeline, changes, (lambda: inspected(other)) if other else None):
        report = inspected()
    if original is not None:
        told = [each.removesuffix("=off") for each in changes]
        report.meta.update(changed_facts(told, summary(original), summary(report)))
    if logit_lens:
        if report.logit_lens is None:
            raise UsageError(f"{model} has no logit lens: its layers have no common way to its answer")
        print(report.logit_lens)
    save(report, output, panels=None if layers == "*" else layers, head=head, points=points)
    print(f"attention drawn to {output}", file=sys.stderr)


def make_images(
    prompts: list[str],
    model: str,
    output: Path | None,
    *,
    count: int,
    keep: float,
    settings: dict[str, Any],
    device: str,
    allow_pickle: bool,
) -> None:
    """Write one sheet of images: those that a generator makes for classes, or completions of given images."""
    import torch

    import regard
    from regard.data.images.reading import grid, png
    from regard.families.images.generation import ClassImageGenerator, PixelGenerator
    from regard.search.settings import SearchSettings

    if output is None or output.suffix.lower() != ".png":
        raise UsageError("this model generates images; name the file to write them to: -o FILE.png")
    pipeline = regard.load(model, device=device, allow_pickle=allow_pickle)
    if isinstance(pipeline, ClassImageGenerator):
        labels = (prompts or pipeline.labels) * count
        images, columns = pipeline.make(labels, seed=settings.get("seed", 0)), len(prompts or pipeline.labels)
    else:
        assert isinstance(pipeline, PixelGenerator)  # the only other pipeline that generates images
        chosen = SearchSettings.parse({"sample": True, **settings})
        given: list[Path | None] = [*map(Path, prompts)] or [None]
        rows = [pipeline.paint(each, keep=keep if each else 0.0, count=count, settings=chosen) for each in given]
        images, columns = torch.cat(rows), count
    write_whole(output, png(grid(images, columns)))
    print(f"{len(images)} images drawn to {output}", file=sys.stderr)


def load_segmenter(model: str, device: str, allow_pickle: bool) -> ImageSegmenter:
    """The segmenter of a model folder."""
    from regard.checkpoints.hub import local_folder
    from regard.families.images.pipeline import ImageSegmenter

    return ImageSegmenter.load(local_folder(model), device=device, allow_pickle=allow_pickle)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"{text!r} is no seed; write CLASS#NUMBER")
    return int(text)


def _point(text: str) -> Point:
    """Parse X,Y as a point of the image."""
    try:
        x, y = map(float, text.split(","))
        if 0 <= x <= 1 and 0 <= y <= 1:
            return x, y
    except ValueError:
        pass
    raise UsageError(f"--at {text!r} is no place; write X,Y from 0,0 (top left) to 1,1 (bottom right)")


def segment(
    context: typer.Context,
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="FILE.png for one image, or a folder for masks.")],
    image: Images = None,
    without: Without = [],  # noqa: B006 - typer's way to say "none given"
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Name every pixel of images: a mask for each, and one line out: its file TAB the classes and their shares.

    A mask is a PNG as large as the image; the value of a pixel is the number of its class, shown in a colour. A file
    that is no image comes out as an empty line with a message on stderr, and the exit code is 1; with --skip-bad it is
    left out, counted and named.

    Example: regard segment scene.png -m runs/scenes-segmentation -o mask.png
    """
    from regard.data.images.reading import SUFFIXES, mask_png

    files, single = GivenFiles(image, SUFFIXES), output.suffix.lower() == ".png"
    names = list(files.names()) if single else files.names()
    if isinstance(names, list) and len(names) != 1:
        raise UsageError(f"{output} is one file; give one image, or a folder for the masks of several")
    segmenter = load_segmenter(model, device, allow_pickle)
    switch_off(context, segmenter, without)
    (output.parent if single else output).mkdir(parents=True, exist_ok=True)
    written: set[Path] = set()

    def show(line: str, found: Segmented | None) -> str:
        if found is None:
            return "null" if as_json else ""
        mask = output if single else free_name(output, line, ".png", written)
        write_whole(mask, mask_png(found.mask))
        if as_json:
            return json.dumps({"image": line, "mask": str(mask), "shares": found.shares}, ensure_ascii=False)
        return f"{mask}\t{', '.join(f'{name} {share:.1%}' for name, share in found.shares.items())}"

    answer_lines(iter(names), lambda lines: segmenter.segment(files.sources(lines)), show, skip_bad=skip_bad)
