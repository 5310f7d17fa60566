"""Regard: attention models you can train, run fast, and look into.

>>> import regard
>>> translator = regard.load("runs/en-es")
>>> answer = translator.translate("we are eating bread", beam=5)
>>> answer.text, answer.score, answer.attention, answer.alignment
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.inference.pipelines import Translator

__all__ = ["load"]


def load(*folders: str | Path, device: str = "cpu", allow_pickle: bool = False) -> Translator:
    """Load a model folder or `hf:owner/name`; several with the same tokenizer translate as an ensemble."""
    from regard.checkpoints.hub import local_folder
    from regard.inference.pipelines import Translator

    return Translator.load(*map(local_folder, folders), device=device, allow_pickle=allow_pickle)
