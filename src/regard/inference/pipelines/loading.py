"""Loading the model of a folder for the one pipeline that runs it."""

from __future__ import annotations

from pathlib import Path

from regard.checkpoints import LoadedModel, load_model
from regard.device import find_device
from regard.errors import UsageError, with_article
from regard.models.catalog import models_run_by


def load_for_pipeline(
    pipeline: str, folder: str | Path, device: str, allow_pickle: bool, *, cannot: str = ""
) -> LoadedModel:
    """The model of a folder, ours or Hugging Face's; a model that another pipeline runs is refused.

    `cannot` says what such a model cannot do, for the error message.
    """
    loaded = load_model(Path(folder), find_device(device), allow_pickle)
    if loaded.name not in (expected := models_run_by(pipeline)):
        reason = f", which {cannot}" if cannot else ""
        raise UsageError(
            f"{folder} is {with_article(loaded.name)} model{reason}; expected {with_article(' or '.join(expected))}"
        )
    return loaded
