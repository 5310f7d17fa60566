"""regard caption: what is in images, in words."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.errors import UsageError
from regard.verbs.answering import answer_lines
from regard.verbs.files import GivenFiles, Images, SkipBad, title
from regard.verbs.options import AllowPickle, AsJson, Changes, Device, Model, Without

if TYPE_CHECKING:
    from regard.families.captions.pipeline import Caption


def caption(
    model: Model,
    image: Images = None,
    beam: Annotated[int | None, typer.Option(help="Beam width; 1 is greedy. Default: the model's own.")] = None,
    n_best: Annotated[int, typer.Option(help="Above 1: so many lines per image, best first, score TAB text.")] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="Draw words at random instead of searching.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Sampling: below 1 is bolder, above 1 wilder.")] = None,
    seed: Annotated[int | None, typer.Option(help="Sampling: same seed, same captions.")] = None,
    attention: Annotated[
        Path | None, typer.Option(help="Draw where it looked at every word: FILE.svg, .png, .html or .json.")
    ] = None,
    without: Without = [],  # noqa: B006 - typer's way to say "none given"
    change: Changes = [],  # noqa: B006 - typer's way to say "none given"
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Describe images: one line out for each image.

    A file that is no image comes out as an empty line with a message on stderr, and the exit code is 1; with --skip-bad
    it is left out, counted and named.

    Example: regard caption dog.jpg -m runs/flickr8k-captioner --beam 3 --attention dog.png
    """
    from regard.checkpoints.hub import local_folder
    from regard.data.images.reading import SUFFIXES
    from regard.families.captions.pipeline import ImageCaptioner
    from regard.look.interventions import changed, switched_off

    files = GivenFiles(image, SUFFIXES)
    names = list(files.names()) if attention else files.names()
    if isinstance(names, list) and len(names) != 1:
        raise UsageError(f"--attention draws one image, and {len(names)} came; give exactly one file")
    captioner = ImageCaptioner.load(local_folder(model), device=device, allow_pickle=allow_pickle)
    given = {"beam": beam, "temperature": temperature, "seed": seed}
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    changes |= {"n_best": n_best} | ({"sample": True} if sample else {})
    settings = captioner.settings.replace(**changes)

    def show(line: str, found: Caption | None) -> str:
        if attention and found is not None and not found.text:
            print(f"the caption is empty: no word looks at {line}, and nothing is drawn", file=sys.stderr)
        elif attention and found is not None:
            _draw(captioner, files.source(line), title(line), found, attention)
        return _shown(line, found, as_json)

    with changed(captioner, switched_off(without) + change):
        answer_lines(
            iter(names),
            lambda lines: captioner.caption(files.sources(lines), settings=settings), show, skip_bad=skip_bad,
        )  # fmt: skip


def _shown(file: str, found: Caption | None, as_json: bool) -> str:
    if found is None:
        return "null" if as_json else ""
    several = [found, *found.alternatives]
    if as_json:
        others = [each.to_json() for each in found.alternatives]
        return json.dumps({"image": file, **found.to_json(), "alternatives": others}, ensure_ascii=False)
    return found.text if len(several) == 1 else "\n".join(f"{each.score:.4f}\t{each.text}" for each in several)


def _draw(captioner: Any, image: str | bytes, title: str, found: Caption, output: Path) -> None:
    from regard.families.captions.view import caption_report
    from regard.look.save import save

    save(caption_report(captioner, image, found, title), output)
    print(f"attention drawn to {output}", file=sys.stderr)
