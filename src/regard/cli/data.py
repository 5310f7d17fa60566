"""regard data: `prepare` prepares the data of a recipe before training."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import DataRoot, Sets, use_data_root

data = typer.Typer(help="Work on data: prepare.", rich_markup_mode=None)


@data.callback()
def about() -> None:
    """A group even while it has one member."""


@data.command()
def prepare(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe (see `regard models`) or a TOML file.")],
    sets: Sets = [],  # noqa: B006 - typer's way to say "none given"
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Run folder. Default: runs/RECIPE.")] = None,
    data_root: DataRoot = "",
) -> None:
    """Read, filter and encode the data of a recipe into its run folder, as `regard train` would first of all.

    For corpora that take long, or machines that cost much: `regard train RECIPE -o OUT --resume` then trains at once.
    The encoded data are memory-mapped, so they may be larger than memory. The same command goes on with a preparation
    that was cut short, after the last stage it had finished.

    Example: regard data prepare pairs-transformer --set data.train=a.tsv --set data.source=en --set data.target=fr
    """
    from regard.training.loop import prepare as run
    from regard.training.tasks.catalog import load_recipe

    use_data_root(data_root)
    folder = out or Path("runs") / Path(recipe).stem
    print(run(load_recipe(recipe, sets), folder), file=sys.stderr)
    print(folder)
