"""regard segment: the class of every pixel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.answering import answer_lines, given_texts
from regard.cli.images import load_segmenter
from regard.cli.options import AllowPickle, AsJson, Device, Model, Without, switch_off
from regard.errors import UsageError

if TYPE_CHECKING:
    from regard.inference.pipelines.images import Segmented


def segment(
    context: typer.Context,
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="FILE.png for one image, or a folder for masks.")],
    image: Annotated[list[str] | None, typer.Argument(help="Files of images; without any, lines of stdin.")] = None,
    without: Without = [],  # noqa: B006 - typer's way to say "none given"
    as_json: AsJson = False,
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Name every pixel of images: a mask for each, and one line out: its file TAB the classes and their shares.

    A mask is a PNG as large as the image; the value of a pixel is the number of its class, shown in a colour. A file
    that is no image comes out as an empty line with a message on stderr, and the exit code is 1.

    Example: regard segment scene.png -m runs/scenes-segmentation -o mask.png
    """
    from regard.data.images.reading import mask_png

    single = output.suffix.lower() == ".png"
    if single and len(image or ()) != 1:
        raise UsageError(f"{output} is one file; give one image, or a folder for the masks of several")
    segmenter = load_segmenter(model, device, allow_pickle)
    switch_off(context, segmenter, without)
    (output.parent if single else output).mkdir(parents=True, exist_ok=True)
    written: set[Path] = set()

    def show(line: str, found: Segmented | None) -> str:
        if found is None:
            return "null" if as_json else ""
        mask = output if single else _free_name(output, Path(line).stem, written)
        mask.write_bytes(mask_png(found.mask))
        if as_json:
            return json.dumps({"image": line, "mask": str(mask), "shares": found.shares}, ensure_ascii=False)
        return f"{mask}\t{', '.join(f'{name} {share:.1%}' for name, share in found.shares.items())}"

    answer_lines(given_texts(image), segmenter.segment, show)


def _free_name(folder: Path, stem: str, written: set[Path]) -> Path:
    """A file name that no other image of this call has."""
    path, number = folder / f"{stem}.png", 1
    while path in written:
        number += 1
        path = folder / f"{stem}-{number}.png"
    written.add(path)
    return path
