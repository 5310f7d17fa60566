"""The start of a run: it locks its folder, and until its first step the folder can be restored to what it was.

A run that fails before its first step removes what it wrote. A run that is killed leaves a note (`.starting`) of what
was there before, so that the next start can remove the rest.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import filelock

from regard.checkpoints.folder import CHECKPOINTS, MANIFEST, tidy
from regard.errors import UsageError
from regard.search.settings import RECIPE
from regard.training.metrics_log import BOARD, METRICS
from regard.training.publishing import NEW_RECIPE, differences, write_recipe
from regard.training.recipe.base import Recipe
from regard.training.safeguards import SignalError

LOCK, STARTING, DATA = ".lock", ".starting", "data"
# What a run writes into its folder, in the order in which a failed start removes it.
OWN = (RECIPE, NEW_RECIPE, METRICS, BOARD, CHECKPOINTS, DATA, f"{DATA}.parts", STARTING)


@dataclass
class Start:
    """A run that has not taken its first step, in a folder that held the entries `before`."""

    folder: Path
    recipe: Recipe
    before: frozenset[str]
    begun: bool = False

    def note(self) -> None:
        """Note, in case this process is killed, that nothing has been trained yet; and write the recipe."""
        (self.folder / STARTING).write_text(json.dumps(sorted(self.before)), encoding="utf-8")
        write_recipe(self.recipe, self.folder)

    def begin(self) -> None:
        """Call after the first step: from now on the folder belongs to this run."""
        write_recipe(self.recipe, self.folder)
        (self.folder / MANIFEST).unlink(missing_ok=True)  # a published folder is incomplete again until this run ends
        self.keep()

    def keep(self) -> None:
        """Keep what was written."""
        (self.folder / STARTING).unlink(missing_ok=True)
        self.begun = True

    def undo(self) -> None:
        """Remove what this run wrote. The note goes last, so that a kill in the middle leaves it."""
        tidy(self.folder)
        names = {entry.name for entry in self.folder.iterdir()} - self.before
        for name in sorted(names.intersection(OWN), key=OWN.index):
            entry = self.folder / name
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


@contextmanager
def claim(folder: Path, recipe: Recipe, *, resume: bool) -> Iterator[Start]:
    """Lock `folder` for one run; refused while another run has it, or if it holds files and `resume` is off."""
    created = [each for each in (folder, *folder.parents) if not each.exists()]
    had_lock = (folder / LOCK).exists() and not (folder / STARTING).exists()
    lock, undone = filelock.FileLock(folder / LOCK), True
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise UsageError(f"{folder} is in use by another run; wait for it, or train into another folder") from None
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {error}; choose a folder that you may write into") from None
    try:
        start = _start(folder, recipe, resume)
        try:
            yield start
            undone = False
        except BaseException as error:
            undone = not (start.begun or isinstance(error, SignalError))  # after a signal the prepared data stay
            if undone:
                start.undo()
            raise
    finally:
        if undone and not had_lock:
            (folder / LOCK).unlink()
        lock.release()
        with suppress(OSError):  # it is not empty
            for made in created:
                made.rmdir()


def _start(folder: Path, recipe: Recipe, resume: bool) -> Start:
    tidy(folder)
    names = frozenset(entry.name for entry in folder.iterdir()) - {LOCK}
    killed = STARTING in names
    if names.difference(OWN if killed else ()) and not resume:
        raise UsageError(f"{folder} is not empty; continue its run with --resume, or train into another folder")
    if killed:
        return _taken_over(folder, recipe, resume)
    start = Start(folder, recipe, names)
    if RECIPE not in names:
        start.note()
    elif changed := differences(recipe, folder):
        raise UsageError(
            f"{folder} was begun with another {' and '.join(changed)}; --resume may change only [training] and "
            "[decoding]. Train into another folder, or leave the rest of the recipe as it was"
        )
    return start


def _taken_over(folder: Path, recipe: Recipe, resume: bool) -> Start:
    """Take over the folder of a run killed before its first step; `resume` keeps the data that it prepared."""
    if resume:
        warnings.warn(f"nothing to resume in {folder}: no step was taken there; the run starts again", stacklevel=2)
    start = Start(folder, recipe, frozenset(json.loads((folder / STARTING).read_text(encoding="utf-8"))))
    if not resume or not (folder / RECIPE).exists() or differences(recipe, folder):
        start.undo()
    start.note()
    return start
