"""regard segment: the class of every pixel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.answering import answer_lines
from regard.cli.files import GivenFiles, Images, SkipBad, free_name
from regard.cli.images import load_segmenter
from regard.cli.options import AllowPickle, AsJson, Device, Model, Without, switch_off
from regard.data.whole_files import write_whole
from regard.errors import UsageError

if TYPE_CHECKING:
    from regard.inference.pipelines.images import Segmented


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
