"""The beginning of a run: it holds its folder, and until its first step is taken the folder can be put back as it was.

A run that fails before its first step removes what it has put there. One that is killed leaves a note of what was there
before (`.starting`), so that the next start can do it.
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
from regard.training.metrics import BOARD, METRICS
from regard.training.publishing import NEW_RECIPE, RECIPE, differences, write_recipe
from regard.training.recipe.recipes import AnyRecipe
from regard.training.safeguards import SignalError

LOCK, STARTING, DATA = ".lock", ".starting", "data"
OWN = (
    RECIPE,
    NEW_RECIPE,
    METRICS,
    BOARD,
    CHECKPOINTS,
    DATA,
    f"{DATA}.parts",
    STARTING,
)  # what a run puts into its folder


@dataclass
class Start:
    """A run that has not taken its first step, in a folder that held the entries `before`."""

    folder: Path
    recipe: AnyRecipe
    before: frozenset[str]
    begun: bool = False

    def note(self) -> None:
        """Leave word, for whoever comes after a kill, that nothing here has been trained; and what it was to be."""
        (self.folder / STARTING).write_text(json.dumps(sorted(self.before)), encoding="utf-8")
        write_recipe(self.recipe, self.folder)

    def begin(self) -> None:
        """The first step is taken: from now on the folder is that of this run."""
        write_recipe(self.recipe, self.folder)
        (self.folder / MANIFEST).unlink(missing_ok=True)  # a published folder is incomplete again until this run ends
        self.keep()

    def keep(self) -> None:
        """What was made stays."""
        (self.folder / STARTING).unlink(missing_ok=True)
        self.begun = True

    def undo(self) -> None:
        """Remove what a run made that was not there before, the note last: whoever is killed here has left one."""
        tidy(self.folder)
        names = {entry.name for entry in self.folder.iterdir()} - self.before
        for name in sorted(names.intersection(OWN), key=OWN.index):
            entry = self.folder / name
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


@contextmanager
def claim(folder: Path, recipe: AnyRecipe, *, resume: bool) -> Iterator[Start]:
    """Hold `folder` for one run; refused while another run has it, or when it holds files and `resume` is off."""
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
            undone = not (start.begun or isinstance(error, SignalError))  # a signal spares the data that are prepared
            if undone:
                start.undo()
            raise
    finally:
        if undone and not had_lock:
            (folder / LOCK).unlink()
        lock.release()
        with suppress(OSError):  # there is something in it
            for made in created:
                made.rmdir()


def _start(folder: Path, recipe: AnyRecipe, resume: bool) -> Start:
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


def _taken_over(folder: Path, recipe: AnyRecipe, resume: bool) -> Start:
    """The folder of a run that was killed before its first step; `resume` spares the data that it had prepared."""
    if resume:
        warnings.warn(f"nothing to resume in {folder}: no step was taken there; it is begun anew", stacklevel=2)
    start = Start(folder, recipe, frozenset(json.loads((folder / STARTING).read_text(encoding="utf-8"))))
    if not resume or not (folder / RECIPE).exists() or differences(recipe, folder):
        start.undo()
    start.note()
    return start
