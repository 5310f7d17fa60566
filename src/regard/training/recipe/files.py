"""Recipes as files: those that come with the package, reading TOML, and changes from the command line (--set)."""

from __future__ import annotations

import difflib
import itertools
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.sources import PARTS, is_there, located
from regard.errors import ConfigError, UsageError
from regard.families.catalog import recipe_folders

BUILT_IN = "builtin:"  # begins the names of generated data
PHRASEBOOK, SCENES = "phrasebook", "scenes"  # data sets that are generated, so no files are needed
MOST_SIMILAR = 4  # recipes that are proposed for an unknown name
OLD_PARTS = ("old", "old_valid")  # what the model of model.init was trained on


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(_recipe_files())


@cache
def _recipe_files() -> dict[str, Traversable]:
    files = (file for folder in recipe_folders() for file in folder.iterdir())
    return {file.name.removesuffix(".toml"): file for file in files if file.name.endswith(".toml")}


def recipe_text(name: str) -> str:
    """The text of a recipe that comes with the package; it begins with a comment on its purpose."""
    if name not in recipe_names():
        raise UsageError(f"there is no shipped recipe {name!r}; {_similar(name)}")
    return _recipe_files()[name].read_text(encoding="utf-8")


def _similar(name: str) -> str:
    """A hint for an unknown name: the recipe that is spelt alike, or those that share a word with it, or the list."""
    names = recipe_names()
    words = set(name.lower().split("-"))
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    near = near or [each for each in names if words & set(each.split("-"))][:MOST_SIMILAR]
    if near:
        return f"did you mean {', '.join(map(repr, near[:-1]))}{' or ' * (len(near) > 1)}{near[-1]!r}?"
    return "`regard models` lists them; pairs-transformer learns from sentence pairs of yours"


def shipped_values(name: str) -> dict[str, Any]:
    """The values of a recipe that comes with the package; a path is refused."""
    recipe_text(name)
    return recipe_values(name)


class Shipped(NamedTuple):
    """The description of a recipe of the package, known before it runs."""

    purpose: str
    data: dict[str, bool] | None  # its files, and whether each exists; None if the user must name them
    takes: str  # how long it was measured to take; empty if it was never measured


def shipped(name: str) -> Shipped:
    """The purpose, data files and training time of a recipe of the package."""
    values = located(shipped_values(name))
    data = {path: is_there(path) for path in data_files(values["data"])} if "data" in values else None
    return Shipped(opening_comment(recipe_text(name)), data, values.get("takes", ""))


def opening_comment(text: str) -> str:
    """The comment that a recipe begins with, as one line."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines)


def data_files(data: Mapping[str, Any]) -> list[str]:
    """The file paths that a [data] section names; built-in data are left out."""
    found = (path for part in (*PARTS, *OLD_PARTS) for path in _strings(data.get(part, "")))
    return [path for path in found if path and path not in (PHRASEBOOK, SCENES) and not path.startswith(BUILT_IN)]


def _strings(value: object) -> list[str]:
    """All paths within a value: a path, a table of paths, or a list of paths or corpora."""
    if isinstance(value, dict) and "path" in value:
        return _strings(value["path"])
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [value] if isinstance(value, str) else [text for each in inner for text in _strings(each)]


def read_values(name_or_path: str, sets: Sequence[str] = ()) -> dict[str, Any]:
    """The values of a recipe, by its name or path, with `section.key=value` changes made and data paths located."""
    values: dict[str, Any] = located(changed(recipe_values(name_or_path), sets))
    return values


def changed(values: dict[str, Any], sets: Sequence[str]) -> dict[str, Any]:
    """Recipe values with `section.key=value` changes made to them.

    A model folder that is named by a change brings its shape with it, so the recipe's own preset gives way.
    """
    for change in sets:
        _merge(values, change)
    keys = {change.partition("=")[0].strip() for change in sets}
    if "model.init" in keys and not keys & {"model", "model.preset"} and values["model"]["init"]:
        values["model"].pop("preset", None)
    return values


def recipe_values(name_or_path: str, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """The values of a recipe as they are written; those of its `base` stand where it has none of its own.

    `above` are the recipes that are based on this one. The time that a base takes is not that of another recipe.
    """
    values = _read(name_or_path)
    base = values.pop("base", "")
    if not base:
        return values
    if not isinstance(base, str):
        raise ConfigError(f"{name_or_path}: base = {base!r}: expected the name of a recipe, or the path of a TOML file")
    beside = Path(name_or_path).parent / base
    found = str(beside) if beside.suffix == ".toml" else base
    if found in (*above, name_or_path):
        raise ConfigError(f"{name_or_path}: base = {base!r}: leads back to the recipe itself; name another one")
    inherited = recipe_values(found, (*above, name_or_path))
    inherited.pop("takes", None)
    return _overlaid(inherited, values)


def _overlaid(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Tables with the values of others laid over them, key by key."""
    both = {key: _overlaid(values[key], new) for key, new in changes.items() if _are_tables(values.get(key), new)}
    return {**values, **changes, **both}


def _are_tables(*values: object) -> bool:
    return all(isinstance(value, dict) for value in values)


def _read(name: str) -> dict[str, Any]:
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise UsageError(f"there is no recipe file {name!r}; give an existing TOML file or one of {recipe_names()}")
        text = path.read_text(encoding="utf-8")
    else:
        text = recipe_text(name)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: not valid TOML: {error}") from None


def _merge(values: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise UsageError(f"--set {change!r} is not understood; write section.key=value, as in training.lr=3e-4")
    table = values
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise UsageError(f"--set {change!r}: {part!r} is a value, not a section")
    table[path[-1]] = _value(text.strip())


def _value(text: str) -> object:
    """A TOML value; any other text (a bare word, a path) is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
