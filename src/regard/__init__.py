"""Regard: attention models you can train, run fast, and look into.

>>> import regard
>>> regard.load().translate("where is the station?", to="fr").text  # the built-in models: en, es, pt, fr, de, it
>>> translator = regard.load("runs/en-es")
>>> answer = translator.translate("we are eating bread", beam=5)
>>> answer.text, answer.score, answer.attention, answer.alignment
>>> encoder = regard.load("hf:sentence-transformers/all-MiniLM-L6-v2")
>>> encoder.embed(["we are eating bread", "they have lunch"])  # models of BERT's family load as a TextEncoder
>>> regard.load("hf:openai-community/gpt2").generate("In a shocking finding,", temperature=0.8, best_of=10).text
>>> regard.look(translator, "we are eating bread")  # every layer and head, in a notebook cell
>>> regard.look("hf:openai-community/gpt2", "In a shocking finding,", max_tokens=20)  # also what it predicted next
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.families.loading import Pipeline

__all__ = ["load", "look"]

# Where torch allocates with mimalloc (ARM), memory that is free for 10 ms is returned to the system, and the next
# training step has to ask for it again page by page, which costs a tenth of the step. One minute is soon enough.
# torch reads the variable when it is imported.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "60000")


def load(*folders: str | Path, device: str = "cpu", allow_pickle: bool = False, precision: str = "fp32") -> Pipeline:
    """Load a model folder or `hf:owner/name` as the pipeline that runs it; without one, the built-in translators.

    `families/catalog.py` lists the pipelines: a `Translator` for models of sentence pairs, a `TextEncoder`
    for BERT's family, a `LanguageModel` for GPTs, an `ImageClassifier` for image models, and others. Several folders of
    translators with the same tokenizer translate as an ensemble. `precision` is for models that write or translate:
    fp32 is exact; int8 on a CPU, bf16 and fp16 on a GPU are faster and less exact.
    """
    from regard.families.loading import load_pipeline

    return load_pipeline(*folders, device=device, allow_pickle=allow_pickle, precision=precision)


def __getattr__(name: str) -> Any:
    """Import `regard.look` when it is first used: the drawing libraries take a while to load."""
    if name == "look":
        return import_module("regard.look")
    raise AttributeError(f"module 'regard' has no attribute {name!r}")
