"""regard train: train a model by a recipe and write its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import DataRoot, Sets, use_data_root
from regard.errors import UsageError


def train(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe (see `regard models`) or a TOML file.")],
    sets: Sets = [],  # noqa: B006 - typer's way to say "none given"
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Run folder. Default: runs/RECIPE.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue exactly where a run stopped.")] = False,
    data_root: DataRoot = "",
) -> None:
    """Train a model by a recipe; the folder it leaves is ready for `regard translate -m`.

    Example: regard train pairs-transformer --set data.train=my.tsv --set data.source=en --set data.target=fr
    """
    from regard.processes import Share
    from regard.training.loop import train as run
    from regard.training.tasks.catalog import load_recipe

    use_data_root(data_root)
    folder = out or Path("runs") / Path(recipe).stem
    if resume and not folder.is_dir():
        raise UsageError(f"there is no run in {folder} to resume; leave out --resume to begin one")
    run(load_recipe(recipe, sets), folder, resume=resume)
    if Share.launched().rank == 0:
        print(folder)
