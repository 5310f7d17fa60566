"""regard train: train a model by a recipe and write its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.errors import UsageError
from regard.verbs.options import DataRoot, Sets, use_data_root

if TYPE_CHECKING:
    from regard.training.recipe.base import Recipe


def train(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe (see `regard models`) or a TOML file.")],
    sets: Sets = [],  # noqa: B006 - typer's way to say "none given"
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Run folder. Default: runs/RECIPE.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue exactly where a run stopped.")] = False,
    both: Annotated[
        bool, typer.Option("--both", help="Train both directions, one after the other: OUT/en-fr and OUT/fr-en.")
    ] = False,
    data_root: DataRoot = "",
) -> None:
    """Train a model by a recipe; the folder it leaves is ready for `regard translate -m`.

    With --both, --resume continues the direction that was interrupted and begins the one that was not.

    Example: regard train pairs-transformer --set data.train=my.tsv --set data.source=en --set data.target=fr
    """
    from regard.checkpoints.folder import is_sealed
    from regard.training.recipe.load import load_recipe

    use_data_root(data_root)
    folder = out or Path("runs") / Path(recipe).stem
    if resume and not folder.is_dir():
        raise UsageError(f"there is no run in {folder} to resume; leave out --resume to begin one")
    forwards: Any = load_recipe(recipe, sets)
    if not both:
        _train(forwards, folder, resume)
        return
    if not hasattr(forwards, "reversed"):  # only recipes of translators have two directions
        raise UsageError(f"--both is for translators; {recipe} is a recipe of task {forwards.task!r}")
    for each in (forwards, forwards.reversed()):
        place = folder / f"{each.data.source}-{each.data.target}"
        if not (resume and is_sealed(place)):  # a direction that is complete is not trained again
            _train(each, place, resume and place.is_dir())


def _train(recipe: Recipe, folder: Path, resume: bool) -> None:
    from regard.processes import Share
    from regard.training.loop import train as run

    run(recipe, folder, resume=resume)
    if Share.launched().rank == 0:
        print(folder)
