"""regard look: every layer and head of a model on one input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import AllowPickle, Device, Models, To, load_translator, reads_pictures


def look(
    text: Annotated[str, typer.Argument(help="The sentence to look at, or the file of a picture.")],
    model: Models = [],  # noqa: B006 - typer's way to say "none given"
    output: Annotated[Path, typer.Option("-o", "--output", help="FILE.html, .svg, .png or .json.")] = Path("look.html"),
    target: Annotated[str, typer.Option(help="Look at this translation instead of the model's own.")] = "",
    layers: Annotated[str, typer.Option(help="Pattern of layers, such as 'decoder.*.cross'.")] = "*",
    head: Annotated[int | None, typer.Option(help="One head only, counted from 0.")] = None,
    at: Annotated[
        list[str] | None, typer.Option(help="Pictures: the place that looks, as X,Y from 0,0 to 1,1. Repeatable.")
    ] = None,
    to: To = "",
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Draw where a model looks: every layer and head, as one offline page, a picture or JSON.

    Example: regard look "we are eating bread" -m runs/en-es -o bread.html
    Example: regard look cat.jpg -m runs/cifar10-vit -o cat.png --at 0.5,0.4
    """
    if len(model) == 1 and reads_pictures(model[0]):
        from regard.cli.pictures import look_at_picture

        look_at_picture(text, model[0], output, layers, head, at or [], device, allow_pickle)
        return
    from regard.data.pieces import well_formed
    from regard.look.figures import save
    from regard.look.views import translation_sight

    translator = load_translator(model, device, allow_pickle)
    answer = translator.translate(well_formed(text), to=to)
    sight = translation_sight(translator, answer, target=well_formed(target))
    save(sight, output, panels=None if layers == "*" else layers, head=head, view="heads")
    print(f"attention drawn to {output}", file=sys.stderr)
