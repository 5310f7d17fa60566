"""What the verbs do with pictures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import UsageError

if TYPE_CHECKING:
    from regard.inference.pipelines.images import ImageSegmenter
    from regard.look.pictures import Point


def look_at_picture(
    picture: str,
    model: str,
    output: Path,
    layers: str,
    head: int | None,
    at: list[str],
    device: str,
    allow_pickle: bool,
) -> None:
    """Draw where a model of pictures looks."""
    import regard
    from regard.inference.pipelines.image_generation import Painter, PictureMaker
    from regard.inference.pipelines.images import PictureReader
    from regard.look.pictures import picture_sight, save_picture, sight_of

    points, title = [_point(each) for each in at], Path(picture).name
    found = regard.load(model, device=device, allow_pickle=allow_pickle)
    match found:
        case PictureMaker():
            label, _, seed = picture.partition("#")
            seen = found.attention(label, seed=_whole(seed or "0"))
            sight = sight_of(seen, title=picture, model=found.name, meta={})
        case Painter():
            sight = sight_of(found.attention(picture), title=title, model=found.name, meta={})
        case _:
            assert isinstance(found, PictureReader)  # the others are no models of images
            sight = picture_sight(found, picture, title)
    save_picture(sight, output, layers=layers, head=head, points=points)
    print(f"attention drawn to {output}", file=sys.stderr)


def make_pictures(
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
    """Write one sheet of pictures: those a generator makes of classes, or ways to go on below given pictures."""
    import torch

    import regard
    from regard.data.images.reading import grid, png
    from regard.inference.decoding.search import SearchSettings
    from regard.inference.pipelines.image_generation import Painter, PictureMaker

    if output is None or output.suffix.lower() != ".png":
        raise UsageError("this model makes pictures; say where to write them: -o FILE.png")
    found = regard.load(model, device=device, allow_pickle=allow_pickle)
    if isinstance(found, PictureMaker):
        labels = (prompts or found.labels) * count
        pictures, columns = found.make(labels, seed=settings.get("seed", 0)), len(prompts or found.labels)
    else:
        assert isinstance(found, Painter)  # the only other pipeline that generates images
        chosen = SearchSettings.parse({"sample": True, **settings})
        given: list[Path | None] = [*map(Path, prompts)] or [None]
        rows = [found.paint(each, keep=keep if each else 0.0, count=count, settings=chosen) for each in given]
        pictures, columns = torch.cat(rows), count
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(png(grid(pictures, columns)))
    print(f"{len(pictures)} pictures drawn to {output}", file=sys.stderr)


def load_segmenter(model: str, device: str, allow_pickle: bool) -> ImageSegmenter:
    """The model that names pixels of a folder."""
    from regard.checkpoints.hub import local_folder
    from regard.inference.pipelines.images import ImageSegmenter

    return ImageSegmenter.load(local_folder(model), device=device, allow_pickle=allow_pickle)


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"{text!r} is no seed; write CLASS#NUMBER")
    return int(text)


def _point(text: str) -> Point:
    try:
        x, y = map(float, text.split(","))
        if 0 <= x <= 1 and 0 <= y <= 1:
            return x, y
    except ValueError:
        pass
    raise UsageError(f"--at {text!r} is no place; write X,Y from 0,0 (top left) to 1,1 (bottom right)")
