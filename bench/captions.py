"""Pictures of captions with their maps, chosen by number: every n-th image of a file of captions, or of the built-in
test scenes, for several models.

Example: python bench/captions.py ../shared/data/flickr8k/dev_captions.tsv.gz -m runs/soft -m runs/hard -o images
Example: python bench/captions.py scenes -m runs/scenes-captioner -m runs/scenes-captioner-hard -o images --sheet 20
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from PIL import Image

import regard
from regard.data.captions import CaptionedImage, captioned_images
from regard.data.synthetic.shapes import scenes
from regard.families.captions.pipeline import ImageCaptioner
from regard.families.captions.view import caption_report
from regard.look.save import save
from regard.training.recipe.files import SCENES

SCENE_COUNT, SCENE_SIZE = 500, 64


def main(
    data: str,
    model: Annotated[list[str], typer.Option("-m", "--model", help="Folders of captioners.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="A folder.")],
    count: Annotated[int, typer.Option(help="Images, evenly spread over the file.")] = 20,
    sheet: Annotated[int, typer.Option(help="Also all figures of so many images, evenly chosen, in sheet.png.")] = 0,
    beam: int = 1,
    device: str = "cpu",
) -> None:
    """Write NUMBER-MODEL.png for every chosen image and model, and captions.json with what was said."""
    found = _scenes() if data == SCENES else list(captioned_images(data, problems=[], skip_bad=True))
    chosen = range(0, len(found), max(1, len(found) // count))[:count]
    output.mkdir(parents=True, exist_ok=True)
    said: dict[str, dict[str, object]] = {
        str(number): {"image": found[number].name, "references": found[number].captions} for number in chosen
    }
    names = []
    for folder in model:
        captioner = regard.load(folder, device=device)
        assert isinstance(captioner, ImageCaptioner)
        names.append(captioner.name)
        for number in chosen:
            image, name, _ = found[number]
            (caption,) = captioner.caption(image, beam=beam)
            said[str(number)][captioner.name] = caption.text
            if captioner.looks:
                save(caption_report(captioner, image, caption, name), output / f"{number:03d}-{captioner.name}.png")
    (output / "captions.json").write_text(json.dumps(said, indent=1, ensure_ascii=False), encoding="utf-8")
    if sheet:
        shown = chosen[:: max(1, len(chosen) // sheet)][:sheet]
        rows = [[output / f"{number:03d}-{name}.png" for name in names] for number in shown]
        write_sheet([[file for file in row if file.exists()] for row in rows], output / "sheet.png")


def _scenes() -> list[CaptionedImage]:
    drawn = enumerate(scenes(part="test", count=SCENE_COUNT, seed=1, size=SCENE_SIZE))
    return [
        CaptionedImage(Image.fromarray(scene.pixels.transpose(1, 2, 0)), f"scene {number}", list(scene.captions))
        for number, scene in drawn
    ]


def write_sheet(rows: list[list[Path]], path: Path, width: int = 800, colours: int = 128) -> None:
    """Images side by side, each row under the one before, all at one scale, at which the widest has `width` pixels.

    Few colours keep the file small.
    """
    found = [[Image.open(file).convert("RGB") for file in row] for row in rows]
    factor = width / max(image.width for row in found for image in row)
    scaled = [[image.resize((int(image.width * factor), int(image.height * factor))) for image in row] for row in found]
    heights = [max(image.height for image in row) for row in scaled]
    whole = Image.new("RGB", (width * max(map(len, scaled)), sum(heights)), "white")
    for number, row in enumerate(scaled):
        for column, image in enumerate(row):
            whole.paste(image, (column * width, sum(heights[:number])))
    whole.quantize(colours).save(path, optimize=True)


if __name__ == "__main__":
    typer.run(main)
