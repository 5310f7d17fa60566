"""regard models: what there is."""

from __future__ import annotations

import json
import sys

from regard.cli.options import AsJson


def models(as_json: AsJson = False) -> None:
    """List the models with their presets, and the shipped recipes.

    Example: regard models
    """
    from regard.models.catalog import MODELS
    from regard.training.recipe import recipe_names

    if as_json:
        presets = {name: list(entry.presets) for name, entry in MODELS.items()}
        print(json.dumps({"models": presets, "recipes": recipe_names()}))
        return
    print("models (train one with --set model.name=…, size with --set model.preset=…)")
    for name, entry in MODELS.items():
        purpose = (sys.modules[entry.model.__module__].__doc__ or "").split("\n")[0]
        print(f"  {name:13}{purpose}\n{'':15}presets: {', '.join(entry.presets)}")
    print("recipes (regard train NAME)")
    for name in recipe_names():
        print(f"  {name}")
