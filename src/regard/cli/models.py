"""regard models: list models and recipes."""

from __future__ import annotations

import json
import sys
import textwrap

from regard.verbs.options import AsJson, DataRoot, use_data_root

INDENT = " " * 6


def models(as_json: AsJson = False, root: DataRoot = "") -> None:
    """List the models with their presets, and the shipped recipes: what each does, its data and its time.

    Data below the data root (REGARD_DATA, --data-root) are marked as there or missing. Times are those of
    docs/results.md.

    Example: regard models
    """
    from regard.data.sources import data_root
    from regard.families.catalog import MODELS
    from regard.training.recipe.files import recipe_names, shipped

    use_data_root(root)
    recipes = {name: shipped(name) for name in recipe_names()}
    if as_json:
        presets = {name: list(entry.presets) for name, entry in MODELS.items()}
        described = {name: recipe._asdict() for name, recipe in recipes.items()}
        print(json.dumps({"models": presets, "recipes": described, "data_root": data_root()}))
        return
    print("models (train one with --set model.name=…, size with --set model.preset=…)")
    width = max(map(len, MODELS)) + 2
    for name, entry in MODELS.items():
        purpose = (sys.modules[entry.config.__module__].__doc__ or "").partition("\n\n")[0]
        for line in (purpose, f"presets: {', '.join(entry.presets)}"):
            print(textwrap.fill(line, 120, initial_indent=f"  {name:{width}}", subsequent_indent=" " * (width + 2)))
            name = ""
    print(f"recipes (regard train NAME; data root {data_root()})")
    for name, recipe in recipes.items():
        print(f"  {name}")
        for line in (recipe.purpose, f"data: {_needed(recipe.data)}", f"time: {recipe.takes or 'unmeasured'}"):
            print(textwrap.fill(line, 120, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False))


def _needed(data: dict[str, bool] | None) -> str:
    """A description of the data that a recipe needs."""
    if data is None:
        return "yours, with --set data.train=…"
    return ", ".join(f"{path} ({'there' if there else 'missing'})" for path, there in data.items()) or "built in"
