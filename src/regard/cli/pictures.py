"""What the verbs do with pictures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.options import load_classifier
from regard.errors import UsageError

if TYPE_CHECKING:
    from regard.inference.pipelines.image_generation import Painter, PictureMaker
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
    from regard.look.pictures import picture_sight, save_picture, sight_of

    points, title = [_point(each) for each in at], Path(picture).name
    match model_name(model):
        case "sagan":
            maker = load_maker(model, device, allow_pickle)
            label, _, seed = picture.partition("#")
            sight = sight_of(maker.attention(label, seed=_whole(seed or "0")), title=picture, model=maker.name, meta={})
        case "gpt":
            painter = load_painter(model, device, allow_pickle)
            sight = sight_of(painter.attention(picture), title=title, model=painter.name, meta={})
        case "segmenter":
            sight = picture_sight(load_segmenter(model, device, allow_pickle), picture, title)
        case _:
            sight = picture_sight(load_classifier(model, device, allow_pickle), picture, title)
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

    from regard.data.images.reading import grid, png
    from regard.inference.decoding.search import SearchSettings

    if output is None or output.suffix.lower() != ".png":
        raise UsageError("this model makes pictures; say where to write them: -o FILE.png")
    if model_name(model) == "sagan":
        maker = load_maker(model, device, allow_pickle)
        labels = (prompts or maker.labels) * count
        pictures, columns = maker.make(labels, seed=settings.get("seed", 0)), len(prompts or maker.labels)
    else:
        painter = load_painter(model, device, allow_pickle)
        chosen = SearchSettings.parse({"sample": True, **settings})
        given: list[Path | None] = [*map(Path, prompts)] or [None]
        rows = [painter.paint(each, keep=keep if each else 0.0, count=count, settings=chosen) for each in given]
        pictures, columns = torch.cat(rows), count
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(png(grid(pictures, columns)))
    print(f"{len(pictures)} pictures drawn to {output}", file=sys.stderr)


def makes_pictures(model: str) -> bool:
    """Whether the model of a folder makes pictures: a SAGAN, or a GPT whose tokens are colours."""
    from regard.checkpoints.folder import resolve
    from regard.checkpoints.hub import local_folder
    from regard.data.images.reading import PREPROCESSING

    name = model_name(model)
    return name == "sagan" or (name == "gpt" and (resolve(local_folder(model)) / PREPROCESSING).is_file())


def model_name(model: str) -> str:
    """Which model of the catalog a folder holds."""
    from regard.checkpoints.folder import resolve
    from regard.checkpoints.hub import local_folder
    from regard.checkpoints.models import identify

    return identify(resolve(local_folder(model)))[0]


def load_maker(model: str, device: str, allow_pickle: bool) -> PictureMaker:
    """The generator of pictures of a folder."""
    from regard.checkpoints.hub import local_folder
    from regard.inference.pipelines.image_generation import PictureMaker

    return PictureMaker.load(local_folder(model), device=device, allow_pickle=allow_pickle)


def load_painter(model: str, device: str, allow_pickle: bool) -> Painter:
    """The model of colours of a folder."""
    from regard.checkpoints.hub import local_folder
    from regard.inference.pipelines.image_generation import Painter

    return Painter.load(local_folder(model), device=device, allow_pickle=allow_pickle)


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
