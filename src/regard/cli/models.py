"""regard models and regard doctor: what there is, and whether it can run here."""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, requires, version

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


def doctor() -> None:
    """Check this machine: versions, threads, memory, GPU, and a small attention computed both ways.

    Example: regard doctor
    """
    import os
    import platform

    import torch

    from regard.attention import attend, attention_weights
    from regard.errors import RegardError

    print(f"regard {version('regard')} · Python {platform.python_version()} · {platform.platform()}")
    missing = []
    for requirement in requires("regard") or []:
        name = requirement.split(";")[0].split(">")[0].split("=")[0].strip()
        if "extra ==" in requirement:
            continue
        try:
            print(f"  {name:18}{version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    print(f"threads {torch.get_num_threads()} of {os.cpu_count()} cores · " + _accelerator())
    q, k, v = (torch.randn(2, 4, 9, 16) for _ in range(3))
    difference = (attend(q, k, v, causal=True) - attention_weights(q, k, causal=True) @ v).abs().max().item()
    print(f"fused attention agrees with the formula to {difference:.1e}")
    if missing or difference > 1e-4:
        raise RegardError(
            f"not healthy: missing {', '.join(missing) or 'nothing'}, attention difference {difference:.1e}"
        )
    print("healthy")


def _accelerator() -> str:
    import torch

    if not torch.cuda.is_available():
        return "no GPU (everything runs on the CPU)"
    return f"{torch.cuda.get_device_name()}, {torch.cuda.get_device_properties(0).total_memory / 2**30:.0f} GiB"
