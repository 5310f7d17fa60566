"""Regard: attention models you can train, run fast, and look into.

>>> import regard
>>> translator = regard.load("runs/en-es")
>>> answer = translator.translate("we are eating bread", beam=5)
>>> answer.text, answer.score, answer.attention, answer.alignment
>>> regard.look(translator, "we are eating bread")  # every layer and head, shown in a notebook cell
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.inference.pipelines import Translator

__all__ = ["load", "look"]


def load(*folders: str | Path, device: str = "cpu", allow_pickle: bool = False) -> Translator:
    """Load a model folder or `hf:owner/name`; several with the same tokenizer translate as an ensemble."""
    from regard.checkpoints.hub import local_folder
    from regard.inference.pipelines import Translator

    return Translator.load(*map(local_folder, folders), device=device, allow_pickle=allow_pickle)


def __getattr__(name: str) -> Any:
    """`regard.look` is imported when it is first used: drawing takes a while to load."""
    if name == "look":
        return import_module("regard.look")
    raise AttributeError(f"module 'regard' has no attribute {name!r}")
