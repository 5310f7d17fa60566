"""Pictures of captions with their maps, chosen by number: every n-th image of a file of captions, for several models.

Example: python bench/captions.py ../shared/data/flickr8k/dev_captions.tsv.gz -m runs/soft -m runs/hard -o pictures
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

import regard
from regard.data.captions.reading import captioned_images
from regard.inference.pipelines.captioner import ImageCaptioner
from regard.look.adapters.captions import caption_report
from regard.look.save import save


def main(
    data: str,
    model: Annotated[list[str], typer.Option("-m", "--model", help="Folders of captioners.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="A folder.")],
    count: Annotated[int, typer.Option(help="Images, evenly spread over the file.")] = 20,
    beam: int = 1,
    device: str = "cpu",
) -> None:
    """Write NUMBER-MODEL.png for every chosen image and model, and captions.json with what was said."""
    found = list(captioned_images(data, problems=[], skip_bad=True))
    chosen = range(0, len(found), max(1, len(found) // count))[:count]
    output.mkdir(parents=True, exist_ok=True)
    said: dict[str, dict[str, object]] = {
        str(number): {"image": found[number].name, "references": found[number].captions} for number in chosen
    }
    for folder in model:
        captioner = regard.load(folder, device=device)
        assert isinstance(captioner, ImageCaptioner)
        for number in chosen:
            image, name, _ = found[number]
            (caption,) = captioner.caption(image, beam=beam)
            said[str(number)][captioner.name] = caption.text
            if captioner.looks:
                save(caption_report(captioner, image, caption, name), output / f"{number:03d}-{captioner.name}.png")
    (output / "captions.json").write_text(json.dumps(said, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
